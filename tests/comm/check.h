/* What the tests of teams share. Includes cmocka with all it wants. */
#ifndef WEFT_TESTS_COMM_CHECK_H
#define WEFT_TESTS_COMM_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <weft/weft.h>

/* The message names what it must; a failure prints it. */
static inline void assert_says(const char *message, const char *part) {
  if (strstr(message, part) == NULL) fail_msg("\"%s\" does not say \"%s\"", message, part);
}

/* In a rank's function: leave with a status that no library path gives by itself. */
#define RANK_CHECK(condition)                                                                      \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: rank %lld: %s is false; last error: %s\n", __FILE__, __LINE__,       \
              (long long)rank, #condition, weft_last_error());                                     \
      return RANK_WRONG;                                                                           \
    }                                                                                              \
  } while (0)
#define RANK_TRY(expr)                                                                             \
  do {                                                                                             \
    const weft_status rank_try = (expr);                                                           \
    if (rank_try != WEFT_OK) return rank_try;                                                      \
  } while (0)
#define RANK_WRONG ((weft_status)99)

#endif
