/* A rank's worker threads. One job at a time: every item runs once, on any thread. Results must not
 * depend on which thread runs an item. */
#ifndef WEFT_CPU_POOL_H
#define WEFT_CPU_POOL_H

#include <stdint.h>
#include <weft/weft.h>

typedef struct weft__pool weft__pool;

/* `thread` is 0 … threads − 1 and belongs to one running item at a time: it picks scratch memory.
 */
typedef void (*weft__item_fn)(void *job, int64_t item, int thread);

weft_status weft__pool_create(weft__pool **pool, int threads);
void weft__pool_destroy(weft__pool *pool);

/* Runs items 0 … count − 1 and returns when all have ended. The caller is thread 0. */
void weft__pool_run(weft__pool *pool, weft__item_fn fn, void *job, int64_t count);

#endif
