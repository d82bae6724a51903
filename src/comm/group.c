/* See group.h. A group belongs to the thread that opened it. */
#define _POSIX_C_SOURCE 200809L
#include "comm/group.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"

typedef struct kept {
  struct kept *next;
  weft_comm *comm;
  weft_status (*call)(void *arguments);
  _Alignas(16) unsigned char arguments[];
} kept;

/* One rank's calls, in the order in which they were issued. */
typedef struct lane {
  const kept *calls;
  const weft__gpu_rank *rank;
  pthread_t thread;
  weft_status status;
  char message[256];
} lane;

static _Thread_local int depth;
static _Thread_local kept *first;

bool weft__group_open(const weft_comm *comm) {
  return depth > 0 && comm != NULL && comm->gpu_rank != NULL;
}

weft_status weft__group_keep(weft_comm *comm, weft_status (*call)(void *arguments),
                             const void *arguments, size_t bytes) {
  void *memory = NULL;
  WEFT__TRY(weft__alloc(&memory, sizeof(kept) + bytes, "call of a group"));
  kept *const entry = (kept *)memory;
  entry->next = NULL;
  entry->comm = comm;
  entry->call = call;
  memcpy(entry->arguments, arguments, bytes);
  kept **at = &first;
  while (*at != NULL)
    at = &(*at)->next;
  *at = entry;
  return WEFT_OK;
}

static void *run_lane(void *argument) {
  lane *const l = (lane *)argument;
  for (const kept *k = l->calls; k != NULL && l->status == WEFT_OK; k = k->next) {
    if (k->comm->gpu_rank != l->rank) continue;
    l->status = k->call((void *)(uintptr_t)k->arguments);
    if (l->status != WEFT_OK) snprintf(l->message, sizeof l->message, "%s", weft_last_error());
  }
  return NULL;
}

/* A status that only tells of what another rank did. */
static bool secondary(weft_status status) {
  return status == WEFT_ERR_PEER || status == WEFT_ERR_ABORTED || status == WEFT_ERR_TIMEOUT;
}

static int64_t make_lanes(const kept *calls, lane *lanes) {
  int64_t count = 0;
  for (const kept *k = calls; k != NULL; k = k->next) {
    int64_t i = 0;
    while (i < count && lanes[i].rank != k->comm->gpu_rank)
      i++;
    if (i < count) continue;
    memset(&lanes[count], 0, sizeof lanes[count]);
    lanes[count].calls = calls;
    lanes[count++].rank = k->comm->gpu_rank;
  }
  return count;
}

/* Runs the calls; the status is that of the rank that caused a failure, as far as can be told. */
static weft_status run_all(const kept *calls) {
  int64_t all = 0;
  void *memory = NULL;
  for (const kept *k = calls; k != NULL; k = k->next)
    all++;
  if (all == 0) return WEFT_OK;
  WEFT__TRY(weft__alloc(&memory, (size_t)all * sizeof(lane), "group"));
  lane *const lanes = (lane *)memory;
  const int64_t count = make_lanes(calls, lanes);
  int64_t started = 0;
  while (started < count &&
         pthread_create(&lanes[started].thread, NULL, run_lane, &lanes[started]) == 0)
    started++;
  for (const kept *k = calls; k != NULL; k = k->next) /* nobody waits for those that don't come */
    for (int64_t i = started; i < count; i++)
      if (lanes[i].rank == k->comm->gpu_rank) weft_comm_abort(k->comm);
  const lane *worst = NULL;
  for (int64_t i = 0; i < started; i++)
    pthread_join(lanes[i].thread, NULL);
  for (int64_t i = 0; i < started; i++)
    if (lanes[i].status != WEFT_OK &&
        (worst == NULL || (secondary(worst->status) && !secondary(lanes[i].status))))
      worst = &lanes[i];
  weft_status status = WEFT_OK;
  if (started < count)
    status =
        weft__fail(WEFT_ERR_SYSTEM, "group_end: no thread for one of %lld ranks", (long long)count);
  else if (worst != NULL)
    status = weft__fail(worst->status, "%s", worst->message);
  weft__free(memory);
  return status;
}

weft_status weft_group_start(void) {
  if (weft__gpu_check(0) != WEFT_OK)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "group_start: groups are for in-process GPU ranks, and there is no GPU "
                      "backend here; CPU ranks are threads, each makes its own calls");
  depth++;
  return WEFT_OK;
}

weft_status weft_group_end(void) {
  if (depth == 0) {
    if (weft__gpu_check(0) != WEFT_OK)
      return weft__fail(WEFT_ERR_UNSUPPORTED,
                        "group_end: groups are for in-process GPU ranks, and there is no GPU "
                        "backend here; CPU ranks are threads, each makes its own calls");
    return weft__fail(WEFT_ERR_ARGUMENT, "group_end: this thread has no group open");
  }
  if (--depth > 0) return WEFT_OK;
  kept *const calls = first;
  first = NULL;
  const weft_status status = run_all(calls);
  for (kept *k = calls, *next; k != NULL; k = next) {
    next = k->next;
    weft__free(k);
  }
  return status;
}
