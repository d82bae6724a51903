/* The log callback. A mutex keeps function, user pointer and level together. */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static weft_log_fn log_fn;
static void *log_user;
static weft_log_level log_level;

weft_status weft_log_set(weft_log_fn fn, void *user, weft_log_level level) {
  if ((int)level < WEFT_LOG_ERROR || (int)level > WEFT_LOG_DEBUG)
    return weft__fail(WEFT_ERR_ARGUMENT, "log_set: level is %d, expected 1 to 4", (int)level);
  pthread_mutex_lock(&log_lock);
  log_fn = fn;
  log_user = user;
  log_level = level;
  pthread_mutex_unlock(&log_lock);
  return WEFT_OK;
}

void weft__log(weft_log_level level, const char *format, ...) {
  pthread_mutex_lock(&log_lock);
  const weft_log_fn fn = level <= log_level ? log_fn : NULL;
  void *const user = log_user;
  pthread_mutex_unlock(&log_lock);
  if (fn == NULL) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fn(user, level, line);
}
