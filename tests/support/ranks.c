/* The rank runner: one thread a rank, started together. */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Holds all threads back until every one of them exists: a rank alone would wait for its timeout.
 */
typedef struct gate {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool open, cancelled;
} gate;

typedef struct job {
  gate *gate;
  int64_t rank;
  weft_comm *comm;
  ranks_fn fn;
  void *user;
  ranks_result *result;
  pthread_t thread;
} job;

static void *run(void *argument) {
  job *const mine = (job *)argument;
  pthread_mutex_lock(&mine->gate->lock);
  while (!mine->gate->open)
    pthread_cond_wait(&mine->gate->wake, &mine->gate->lock);
  const bool cancelled = mine->gate->cancelled;
  pthread_mutex_unlock(&mine->gate->lock);
  if (cancelled) return NULL;
  mine->result->status = mine->fn(mine->rank, mine->comm, mine->user);
  snprintf(mine->result->error, sizeof mine->result->error, "%s", weft_last_error());
  return NULL;
}

static weft_status run_threads(int64_t ranks, weft_comm *const *comms, ranks_fn fn, void *user,
                               ranks_result *results) {
  gate start = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
  weft_status status = WEFT_OK;
  job *const jobs = (job *)calloc((size_t)ranks, sizeof *jobs);
  if (jobs == NULL) return WEFT_ERR_MEMORY;
  memset(results, 0, (size_t)ranks * sizeof *results);
  int64_t started = 0;
  for (; started < ranks; started++) {
    job *const one = &jobs[started];
    *one = (job){.gate = &start,
                 .rank = started,
                 .comm = comms != NULL ? comms[started] : NULL,
                 .fn = fn,
                 .user = user,
                 .result = &results[started]};
    if (pthread_create(&one->thread, NULL, run, one) != 0) {
      status = WEFT_ERR_SYSTEM;
      break;
    }
  }
  pthread_mutex_lock(&start.lock);
  start.open = true;
  start.cancelled = status != WEFT_OK;
  pthread_cond_broadcast(&start.wake);
  pthread_mutex_unlock(&start.lock);
  for (int64_t i = 0; i < started; i++)
    pthread_join(jobs[i].thread, NULL);
  pthread_cond_destroy(&start.wake);
  pthread_mutex_destroy(&start.lock);
  free(jobs);
  return status;
}

weft_status ranks_run(const weft_world_config *config, ranks_fn fn, void *user,
                      ranks_result *results) {
  weft_comm **const comms = (weft_comm **)calloc((size_t)config->ranks, sizeof *comms);
  if (comms == NULL) return WEFT_ERR_MEMORY;
  weft_status status = weft_comm_create_inproc(config, comms);
  if (status == WEFT_OK) {
    status = run_threads(config->ranks, comms, fn, user, results);
    for (int64_t i = 0; i < config->ranks; i++) {
      const weft_status ended = weft_comm_destroy(comms[i]);
      if (status == WEFT_OK) status = ended;
    }
  }
  free(comms);
  return status;
}

weft_status ranks_run_simple(int64_t ranks, int64_t hosts, int64_t timeout_ms, ranks_fn fn,
                             void *user, ranks_result *results) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  config.ranks = ranks;
  config.hosts = hosts;
  config.timeout_ms = timeout_ms;
  config.device = WEFT_DEVICE_CPU;
  return ranks_run(&config, fn, user, results);
}

weft_status ranks_run_bare(int64_t ranks, ranks_fn fn, void *user, ranks_result *results) {
  return run_threads(ranks, NULL, fn, user, results);
}

int64_t ranks_first_not(const ranks_result *results, int64_t ranks, weft_status expected) {
  for (int64_t i = 0; i < ranks; i++) {
    if (results[i].status == expected) continue;
    fprintf(stderr, "rank %lld: status %s, expected %s: %s\n", (long long)i,
            weft_status_string(results[i].status), weft_status_string(expected), results[i].error);
    return i;
  }
  return -1;
}

void ranks_sleep_ms(int64_t ms) {
  struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR)
    continue;
}
