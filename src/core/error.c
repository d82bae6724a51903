/* Status names, the thread's last message, and the version. Knows nothing but the public header. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_message[512];

weft_status weft__fail(weft_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_message, sizeof last_message, format, arguments);
  va_end(arguments);
  return status;
}

const char *weft_last_error(void) {
  return last_message;
}

int weft_version(void) {
  return WEFT_VERSION_NUMBER;
}

const char *weft_status_string(weft_status status) {
  switch (status) {
  case WEFT_OK:
    return "ok";
  case WEFT_ERR_ARGUMENT:
    return "argument";
  case WEFT_ERR_UNSUPPORTED:
    return "unsupported";
  case WEFT_ERR_MEMORY:
    return "memory";
  case WEFT_ERR_WORKSPACE:
    return "workspace";
  case WEFT_ERR_MISMATCH:
    return "mismatch";
  case WEFT_ERR_TARGET:
    return "target";
  case WEFT_ERR_TIMEOUT:
    return "timeout";
  case WEFT_ERR_ABORTED:
    return "aborted";
  case WEFT_ERR_PEER:
    return "peer";
  case WEFT_ERR_BUSY:
    return "busy";
  case WEFT_ERR_SYSTEM:
    return "system";
  }
  return "unknown";
}
