/* Errors' words, checked products, cores. Knows only libc. */
#include "base.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

bool error_set(error *error, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(error->text, sizeof error->text, format, list);
  va_end(list);
  return false;
}

int complain(int code, const char *format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  fflush(stdout);
  fprintf(stderr, "weft: %s\n", text);
  return code;
}

int end_output(const char *command) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_RIGHT;
  return complain(EXIT_FAILED, "%s: cannot write to stdout", command);
}

bool multiply(int64_t a, int64_t b, int64_t *out) {
  return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

int core_count(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}
