/* The table of handles. A number holds a place in the table and how often that place was used
 * before, so that a number that was destroyed, or never given out, is an exception and not a wild
 * pointer. A handle in use by a call of another thread cannot be destroyed. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "handles.h"

typedef struct entry {
  handle_kind kind;
  int32_t users; /* calls that hold it */
  bool closing;  /* its destroy function is running */
  int64_t uses;  /* how often the place was given out */
  void *pointer, *extra;
  void (*free_extra)(void *);
} entry;

enum { PLACE_BITS = 24 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *table;
static int64_t places;

static const char *const kind_names[] = {"a handle", "a team", "a ce plan", "an ep plan",
                                         "an ep handle"};

static entry *find(int64_t number) {
  const int64_t place = number & (((int64_t)1 << PLACE_BITS) - 1);
  if (number <= 0 || place >= places) return NULL;
  entry *e = &table[place];
  return e->pointer != NULL && e->uses == number >> PLACE_BITS ? e : NULL;
}

void *handle_acquire(ffi_call *call, const char *what, handle_kind kind, int64_t number) {
  void *pointer = NULL;
  handle_kind found = ANY_HANDLE;
  pthread_mutex_lock(&lock);
  entry *e = find(number);
  if (e != NULL && !e->closing) {
    found = e->kind;
    if (found == kind) {
      e->users++;
      pointer = e->pointer;
    }
  }
  pthread_mutex_unlock(&lock);
  if (pointer == NULL && found == ANY_HANDLE)
    raise_error(call, "ValueError", "%s: %s is handle %" PRId64 ", which is not alive", call->name,
                what, number);
  else if (pointer == NULL)
    raise_error(call, "TypeError", "%s: %s is %s, expected %s", call->name, what, kind_names[found],
                kind_names[kind]);
  return pointer;
}

void handle_release(int64_t number) {
  pthread_mutex_lock(&lock);
  entry *e = find(number);
  if (e != NULL) e->users--;
  pthread_mutex_unlock(&lock);
}

void *handle_extra(const ffi_call *call) {
  pthread_mutex_lock(&lock);
  entry *e = call->handles_held > 0 ? find(call->handles[0]) : NULL;
  void *extra = e != NULL ? e->extra : NULL;
  pthread_mutex_unlock(&lock);
  return extra;
}

/* The place of a free entry, or −1 without memory. Under the lock. */
static int64_t free_place(void) {
  for (int64_t i = 0; i < places; i++)
    if (table[i].pointer == NULL) return i;
  const int64_t more = places == 0 ? 64 : 2 * places;
  if (more > (int64_t)1 << PLACE_BITS) return -1;
  entry *grown = (entry *)realloc(table, (size_t)more * sizeof *grown);
  if (grown == NULL) return -1;
  for (int64_t i = places; i < more; i++)
    grown[i] = (entry){ANY_HANDLE, 0, false, 0, NULL, NULL, NULL};
  const int64_t place = places;
  table = grown;
  places = more;
  return place;
}

int64_t handle_keep(ffi_call *call, handle_kind kind, void *pointer, void *extra,
                    void (*free_extra)(void *)) {
  int64_t number = 0;
  pthread_mutex_lock(&lock);
  const int64_t place = free_place();
  if (place >= 0) {
    entry *e = &table[place];
    *e = (entry){kind, 0, false, e->uses + 1, pointer, extra, free_extra};
    number = e->uses << PLACE_BITS | place;
  }
  pthread_mutex_unlock(&lock);
  if (number == 0) raise_error(call, "MemoryError", "%s: no memory for a handle", call->name);
  return number;
}

weft_status handle_destroy(ffi_call *call, weft_status (*destroy)(void *)) {
  void *pointer = NULL, *extra = NULL;
  void (*free_extra)(void *) = NULL;
  pthread_mutex_lock(&lock);
  entry *e = call->handles_held == 1 ? find(call->handles[0]) : NULL;
  if (e != NULL && e->users > 1) {
    raise_error(call, "RuntimeError", "%s: %s is in use by a call of another thread", call->name,
                kind_names[e->kind]);
  } else if (e != NULL) {
    e->closing = true;
    pointer = e->pointer;
  }
  pthread_mutex_unlock(&lock);
  if (pointer == NULL) return WEFT_OK; /* None, or an exception */
  const weft_status status = destroy(pointer);
  pthread_mutex_lock(&lock);
  e = &table[call->handles[0] & (((int64_t)1 << PLACE_BITS) - 1)];
  e->closing = false;
  if (status == WEFT_OK) {
    extra = e->extra;
    free_extra = e->free_extra;
    e->pointer = e->extra = NULL;
    call->handles_held = 0;
  }
  pthread_mutex_unlock(&lock);
  if (free_extra != NULL) free_extra(extra);
  return status;
}
