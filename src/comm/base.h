/* What every transport shares when it makes and ends a rank's view: the head of its comm struct,
 * world configs, arenas, and the record of an asynchronous error. Knows core and topology. */
#ifndef WEFT_COMM_BASE_H
#define WEFT_COMM_BASE_H

#include <stddef.h>

#include "comm/comm.h"

enum { WEFT__MESSAGE = 256 }; /* bytes that a rank sends at once in weft__comm_agree */

/* Size of the first version of a public struct, whose last field was `last`. */
#define WEFT__FIRST(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* The GPU of a world of one rank; −1 where its device is the CPU. */
int32_t weft__world_gpu(const weft_world_config *world);

/* Reads and checks a world config: defaults and the environment are filled in, device is decided.
 * `call` starts the message. */
weft_status weft__world_read(const weft_world_config *config, int64_t max_ranks, const char *call,
                             weft_world_config *out);

weft_status weft__arena_create(weft__arena **out);
weft__arena *weft__arena_share(weft__arena *arena);
void weft__arena_drop(weft__arena *arena); /* NULL is allowed */

/* A view is described by the world it belongs to and the world ranks of its team. */
typedef struct weft__view {
  const weft__transport *transport;
  const int64_t *members; /* [ranks] */
  int64_t ranks, rank;
  int64_t world_ranks, world_hosts;
  int64_t timeout_ms, arena_bytes, cpu_ranks;
  int32_t device, gpu; /* as in weft_comm_info */
  weft__gpu_rank *gpu_rank;
} weft__view;

/* `bytes` is the size of the transport's own comm struct. The arena is shared from `arena`, or new
 * when that is NULL. */
weft_status weft__comm_new(const weft__view *view, size_t bytes, weft__arena *arena,
                           weft_comm **out);
void weft__comm_free(weft_comm *comm); /* NULL is allowed */

/* Errors after which every call of a team fails until a reset. */
bool weft__is_sticky(weft_status status);

/* Keeps the first error; one that stops the team replaces one that does not; more of the same from
 * the same rank adds to the count. */
void weft__error_keep(weft_async_error *error, weft_status status, int64_t rank, int64_t peer,
                      int64_t count, const char *message);

#endif
