/* Tries the address space by mapping and unmapping it, which every kind of limit has a say in. */
#define _GNU_SOURCE
#include "cpu/room.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/error.h"

/* The kernel grants no more than it can back: vm.overcommit_memory = 2. */
static bool strict_overcommit(void) {
  FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
  if (file == NULL) return false;
  const int mode = fgetc(file);
  fclose(file);
  return mode == '2';
}

static bool finite(int resource, int64_t *kib) {
  struct rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  *kib = (int64_t)(limit.rlim_cur >> 10);
  return true;
}

bool weft__room_limited(void) {
  int64_t kib = 0;
  return finite(RLIMIT_AS, &kib) || finite(RLIMIT_DATA, &kib) || strict_overcommit();
}

static void name_limit(char *out, size_t bytes) {
  int64_t kib = 0;
  int length = 0;
  if (finite(RLIMIT_AS, &kib)) length = snprintf(out, bytes, "ulimit -v is %" PRId64 " KiB", kib);
  if (finite(RLIMIT_DATA, &kib))
    length += snprintf(out + length, bytes - (size_t)length, "%sulimit -d is %" PRId64 " KiB",
                       length > 0 ? ", " : "", kib);
  if (length == 0)
    snprintf(out, bytes, "%s",
             strict_overcommit() ? "vm.overcommit_memory is 2" : "no memory can be mapped");
}

weft_status weft__room_try(int64_t bytes, const char *what, const char *advice) {
  if (bytes <= 0) return WEFT_OK;
  void *room = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, (size_t)bytes);
    return WEFT_OK;
  }
  char limit[128];
  name_limit(limit, sizeof limit);
  return weft__fail(
      WEFT_ERR_MEMORY, "%s: no room for %" PRId64 " MiB of address space (%s): raise the limit%s%s",
      what, (bytes + (1 << 20) - 1) >> 20, limit, *advice != '\0' ? ", or " : "", advice);
}

int64_t weft__room_of_thread(void) {
  pthread_attr_t defaults;
  size_t stack = 8 << 20;
  if (pthread_attr_init(&defaults) == 0) {
    pthread_attr_getstacksize(&defaults, &stack);
    pthread_attr_destroy(&defaults);
  }
  return (int64_t)stack;
}
