/* Workers sleep on a condition between jobs, since ranks may outnumber cores; items are handed out
 * by an atomic counter. */
#include "cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/error.h"
#include "core/memory.h"

typedef struct worker {
  weft__pool *pool;
  pthread_t thread;
  int index;
} worker;

struct weft__pool {
  pthread_mutex_t lock;
  pthread_cond_t work, idle;
  uint64_t job_number; /* a worker takes part in each job once */
  int busy, workers, stop;
  weft__item_fn fn;
  void *job;
  int64_t count;
  _Atomic int64_t next;
  worker *threads;
};

static void run_items(weft__pool *pool, weft__item_fn fn, void *job, int64_t count, int thread) {
  for (;;) {
    const int64_t item = atomic_fetch_add(&pool->next, 1);
    if (item >= count) return;
    fn(job, item, thread);
  }
}

static void *worker_main(void *argument) {
  worker *self = (worker *)argument;
  weft__pool *pool = self->pool;
  uint64_t seen = 0;
  pthread_mutex_lock(&pool->lock);
  for (;;) {
    while (pool->job_number == seen && !pool->stop)
      pthread_cond_wait(&pool->work, &pool->lock);
    if (pool->stop) break;
    seen = pool->job_number;
    const weft__item_fn fn = pool->fn;
    void *const job = pool->job;
    const int64_t count = pool->count;
    pthread_mutex_unlock(&pool->lock);
    run_items(pool, fn, job, count, self->index);
    pthread_mutex_lock(&pool->lock);
    if (--pool->busy == 0) pthread_cond_signal(&pool->idle);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

weft_status weft__pool_create(weft__pool **out, int threads) {
  weft__pool *pool = NULL;
  weft_status status = WEFT_OK;
  *out = NULL;
  WEFT__TRY(weft__alloc((void **)&pool, sizeof *pool, "thread pool"));
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->work, NULL);
  pthread_cond_init(&pool->idle, NULL);
  const int wanted = threads - 1;
  WEFT__TRY_CLEANUP(
      weft__alloc((void **)&pool->threads, (size_t)wanted * sizeof(worker), "thread pool"));
  for (int i = 0; i < wanted; i++) {
    worker *w = &pool->threads[i];
    w->pool = pool;
    w->index = i + 1;
    const int error = pthread_create(&w->thread, NULL, worker_main, w);
    if (error != 0) {
      status =
          weft__fail(WEFT_ERR_SYSTEM, "thread pool: thread %d of %d could not start (error %d)",
                     i + 1, wanted, error);
      goto cleanup;
    }
    pool->workers++;
  }
  *out = pool;
  return WEFT_OK;
cleanup:
  weft__pool_destroy(pool);
  return status;
}

void weft__pool_destroy(weft__pool *pool) {
  if (pool == NULL) return;
  pthread_mutex_lock(&pool->lock);
  pool->stop = 1;
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->workers; i++)
    pthread_join(pool->threads[i].thread, NULL);
  pthread_cond_destroy(&pool->idle);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->lock);
  weft__free(pool->threads);
  weft__free(pool);
}

void weft__pool_run(weft__pool *pool, weft__item_fn fn, void *job, int64_t count) {
  atomic_store(&pool->next, 0);
  const int helped = pool->workers > 0 && count > 1;
  if (helped) {
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->job = job;
    pool->count = count;
    pool->busy = pool->workers;
    pool->job_number++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
  }
  run_items(pool, fn, job, count, 0);
  if (!helped) return;
  pthread_mutex_lock(&pool->lock);
  while (pool->busy > 0)
    pthread_cond_wait(&pool->idle, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
}
