/* See log.h. */
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

#include "base.h"

enum { REMEMBERED = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[REMEMBERED][512];
static int count;

static void say(void *user, weft_log_level level, const char *line) {
  (void)user;
  (void)level;
  pthread_mutex_lock(&lock);
  bool new = true;
  for (int i = 0; i < count && i < REMEMBERED; i++)
    if (!strcmp(said[i], line)) new = false;
  if (new) {
    snprintf(said[count++ % REMEMBERED], sizeof said[0], "%s", line);
    complain(EXIT_RIGHT, "%s", line);
  }
  pthread_mutex_unlock(&lock);
}

void log_to_stderr(void) {
  weft_log_set(say, NULL, WEFT_LOG_WARNING);
}
