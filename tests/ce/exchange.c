/* An all-gather is two barriers around copies from the senders' own memory. */
#define _POSIX_C_SOURCE 200809L
#include "exchange.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct end {
  exchange *shared;
  int64_t rank;
} end;

struct exchange {
  int64_t ranks;
  pthread_barrier_t barrier;
  const void **senders;
  end *ends;
};

exchange *exchange_new(int64_t ranks) {
  exchange *e = (exchange *)calloc(1, sizeof *e);
  e->ranks = ranks;
  e->senders = (const void **)calloc((size_t)ranks, sizeof *e->senders);
  e->ends = (end *)calloc((size_t)ranks, sizeof *e->ends);
  pthread_barrier_init(&e->barrier, NULL, (unsigned)ranks);
  for (int64_t i = 0; i < ranks; i++)
    e->ends[i] = (end){e, i};
  return e;
}

void exchange_free(exchange *e) {
  if (e == NULL) return;
  pthread_barrier_destroy(&e->barrier);
  free(e->senders);
  free(e->ends);
  free(e);
}

static int barrier(void *user) {
  pthread_barrier_wait(&((end *)user)->shared->barrier);
  return 0;
}

static int allgather(void *user, const void *send, void *recv, size_t bytes) {
  const end *mine = (const end *)user;
  exchange *e = mine->shared;
  e->senders[mine->rank] = send;
  pthread_barrier_wait(&e->barrier);
  for (int64_t i = 0; i < e->ranks; i++)
    if (bytes > 0) memmove((unsigned char *)recv + (size_t)i * bytes, e->senders[i], bytes);
  pthread_barrier_wait(&e->barrier);
  return 0;
}

weft_status exchange_world(exchange *e, int64_t rank, int64_t hosts, weft_comm **comm) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_exchange callbacks = WEFT_EXCHANGE_INIT;
  config.ranks = e->ranks;
  config.hosts = hosts;
  config.device = WEFT_DEVICE_CPU;
  config.timeout_ms = 60000;
  callbacks.rank = rank;
  callbacks.user = &e->ends[rank];
  callbacks.allgather = allgather;
  callbacks.barrier = barrier;
  return weft_comm_create_external(&config, &callbacks, comm);
}
