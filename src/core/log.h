/* Log lines to the caller's callback; silent without one. */
#ifndef WEFT_CORE_LOG_H
#define WEFT_CORE_LOG_H

#include <weft/weft.h>

void weft__log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
