/* The thread's last error message. Every failing path goes through weft__fail, so that a status
 * never comes back without words: the argument, its value, what was expected. */
#ifndef WEFT_CORE_ERROR_H
#define WEFT_CORE_ERROR_H

#include <weft/weft.h>

/* Sets the thread's message (printf format) and returns `status`. */
weft_status weft__fail(weft_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns from the calling function when `expr` is not WEFT_OK. */
#define WEFT__TRY(expr)                                                                            \
  do {                                                                                             \
    const weft_status weft__try_status = (expr);                                                   \
    if (weft__try_status != WEFT_OK) return weft__try_status;                                      \
  } while (0)

/* The same in functions that hold resources: sets `status` and goes to `cleanup`. */
#define WEFT__TRY_CLEANUP(expr)                                                                    \
  do {                                                                                             \
    status = (expr);                                                                               \
    if (status != WEFT_OK) goto cleanup;                                                           \
  } while (0)

#endif
