/* Reads what the environment says; a value that is no number is logged and ignored. */
#define _GNU_SOURCE
#include "core/env.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"

int64_t weft__env_int(const char *name, int64_t most, int64_t fallback) {
  const char *text = getenv(name);
  if (text == NULL || *text == '\0') return fallback;
  char *end = NULL;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || value < 1 || value > most) {
    char range[32] = "of at least 1";
    if (most < INT64_MAX) snprintf(range, sizeof range, "from 1 to %lld", (long long)most);
    weft__log(WEFT_LOG_WARNING, "%s=\"%.80s\" is ignored: expected a whole number %s", name, text,
              range);
    return fallback;
  }
  return value;
}

int64_t weft__cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? online : 1;
}
