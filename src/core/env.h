/* Environment variables and the machine's core count. */
#ifndef WEFT_CORE_ENV_H
#define WEFT_CORE_ENV_H

#include <stdint.h>

/* The whole number that `name` is set to, when it is from 1 to `most`, else `fallback` (a value
 * that is none is logged). */
int64_t weft__env_int(const char *name, int64_t most, int64_t fallback);

/* Cores that this process may run on, at least 1. */
int64_t weft__cores(void);

#endif
