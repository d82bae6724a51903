/* Threads are started for each loop: the loops here take milliseconds to minutes. */
#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base.h"

enum { MOST_THREADS = 256 };

typedef struct loop {
  atomic_llong next;
  int64_t count, piece;
  parallel_body body;
  void *context;
} loop;

static void *work(void *argument) {
  loop *loop = argument;
  for (;;) {
    const int64_t begin = atomic_fetch_add(&loop->next, loop->piece);
    if (begin >= loop->count) return NULL;
    const int64_t rest = loop->count - begin;
    loop->body(loop->context, begin, begin + (rest < loop->piece ? rest : loop->piece));
  }
}

void parallel_for(int64_t count, int64_t piece, parallel_body body, void *context) {
  if (count <= 0) return;
  loop loop = {.count = count, .piece = piece < 1 ? 1 : piece, .body = body, .context = context};
  const int64_t pieces = (count - 1) / loop.piece + 1;
  int wanted = core_count();
  if (wanted > MOST_THREADS) wanted = MOST_THREADS;
  if (wanted > pieces) wanted = (int)pieces;
  pthread_t threads[MOST_THREADS];
  int started = 0;
  while (started < wanted - 1 && pthread_create(&threads[started], NULL, work, &loop) == 0)
    started++;
  work(&loop);
  for (int i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
}
