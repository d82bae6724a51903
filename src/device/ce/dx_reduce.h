/* What the host and the device agree on for the reduction of dX over a team: each rank has its f32
 * part of dX in its arena. Knows no instructions.
 *
 * Rank r sums token rows [r·s, r·s + s), s = ⌈tokens / ranks⌉, over all ranks in rank order, and
 * rounds them once. In all_reduce it leaves them in its arena, from where every rank copies them:
 * so dX has the same bits on all ranks. No part may be written over until all ranks have summed; a
 * launch ends when they have. */
#ifndef WEFT_DEVICE_CE_DX_REDUCE_H
#define WEFT_DEVICE_CE_DX_REDUCE_H

#include "device/comm/peers.h"

enum { DX_REDUCE_THREADS = 256, DX_REDUCE_SHARED_BYTES = 16 };

enum dx_format { DX_F32, DX_BF16, DX_F16 };

struct dx_reduce_args {
  struct peer_view view;
  /* offsets in every rank's arena: words u64 [ranks], set by one rank each: the epoch above 2^32,
   * and the call's tokens */
  uint64_t ready;                     /* the rank's part is there */
  uint64_t summed;                    /* its rows of the sum are */
  uint64_t part;                      /* f32 [tokens, part_stride] */
  uint64_t shard;                     /* [s, shard_stride] of the output's format */
  uint32_t part_stride, shard_stride; /* elements, multiples of 4 */
  uint32_t tokens, hidden;
  uint32_t format;     /* enum dx_format */
  uint32_t scatter;    /* reduce_scatter: dx is [s, H] of this rank, else [tokens, H] */
  uint32_t dx_aligned; /* four elements of dx can be stored at once */
  struct gmem dx;
  int64_t dx_stride;
  struct gmem epoch;   /* two u32, see device/comm/team.h */
  struct gmem counter; /* u32, zero between launches: CTAs that have summed */
};

HOST_DEVICE uint32_t dx_shard_rows(uint32_t tokens, uint32_t ranks) {
  return tokens / ranks + (tokens % ranks != 0);
}

#endif
