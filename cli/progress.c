/* The line appears after a second, and changes at most ten times a second. */
#include "progress.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const char *what;
  int64_t done, total;
  double began, shown;
  bool on, visible;
} line;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(const char *what, int64_t total) {
  pthread_mutex_lock(&lock);
  line.what = what;
  line.done = 0;
  line.total = total < 1 ? 1 : total;
  line.began = line.shown = seconds();
  line.on = isatty(STDERR_FILENO) != 0;
  line.visible = false;
  pthread_mutex_unlock(&lock);
}

void progress_add(int64_t units) {
  pthread_mutex_lock(&lock);
  line.done += units;
  const double now = seconds();
  if (line.on && now - line.began > 1 && now - line.shown > 0.1) {
    fprintf(stderr, "\r\033[K%s: %.0f%%, %.0f s", line.what,
            100.0 * (double)line.done / (double)line.total, now - line.began);
    fflush(stderr);
    line.shown = now;
    line.visible = true;
  }
  pthread_mutex_unlock(&lock);
}

void progress_end(void) {
  pthread_mutex_lock(&lock);
  if (line.visible) fprintf(stderr, "\r\033[K");
  line.on = line.visible = false;
  pthread_mutex_unlock(&lock);
}
