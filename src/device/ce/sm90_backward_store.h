/* The storers of the backward kernel: a warp for each consumer stores its results, waits for the
 * readers of what it overwrites, and signals finished tiles. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_STORE_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_STORE_H

#include "device/ce/sm90_backward_base.h"
#include "device/ce/sm90_staging.h"

/* Blocks that a consumer hands to its storer in a tile, and whether they are stored from there:
 * where not, the consumer has written its results, and one empty block says that it is done. */
struct hand_over {
  uint32_t blocks, stored;
};

DEV struct hand_over hand_over(const struct backward_args *args, const struct backward_tile *t) {
  struct hand_over h = {1, 0};
  if (t->kind == BACKWARD_DZ) {
    h.blocks = 6;
    h.stored = 1;
  } else if (t->kind == BACKWARD_DX) {
    const uint32_t last = is_last_wave(args, t->wave);
    h.stored = !last || args->dx_mapped;
    if (h.stored) h.blocks = last && !args->dx_f32 ? 4 : 8;
  } else if (t->kind == BACKWARD_DW) {
    h.stored = args->dw_mapped;
    if (h.stored) h.blocks = args->dw_f32 ? 12 : 6;
  }
  return h;
}

/* Stores block `n` of a tile. */
DEV void store_block(const struct backward_args *args, const struct backward_tile *t, uint32_t n,
                     struct smem block, uint32_t consumer, uint32_t rank) {
  if (t->kind == BACKWARD_DZ) {
    tensor_store_2d(&args->dz_out, block, t->col * BACKWARD_TILE_COLS + consumer * 192 + n % 3 * 64,
                    t->row * BACKWARD_TILE + rank * 128 + n / 3 * 64);
  } else if (t->kind == BACKWARD_DX) {
    const uint32_t last = is_last_wave(args, t->wave);
    const uint32_t width = last && !args->dx_f32 ? 64 : 32, across = DX_COLS / width;
    const uint32_t row =
        t->row * BACKWARD_TILE + rank * 128 + (DX_IN_TURN ? n / across * 64 : consumer * 64);
    const uint32_t h =
        t->h * BACKWARD_TILE + (DX_IN_TURN ? consumer * DX_COLS : 0) + n % across * width;
    if (last)
      tensor_store_2d(&args->dx_out, block, h, row);
    else if (t->wave == 0)
      tensor_store_2d(&args->dx_sum, block, h, row);
    else
      tensor_reduce_add_2d(&args->dx_sum, block, h, row);
  } else {
    const uint32_t h = t->h * BACKWARD_TILE + consumer * 128;
    const uint32_t v =
        (t->wave * args->schedule.wave_cols + t->col) * BACKWARD_TILE_COLS + rank * 192;
    if (!args->dw_f32) {
      tensor_store_2d(&args->dw_out, block, h + n / 3 * 64, v + n % 3 * 64);
    } else {
      const struct smem below = smem_add(block, BACKWARD_BLOCK_BYTES / 2);
      const uint32_t left = h + n / 6 * 64, top = v + n % 6 * 32;
      if (args->dw_accumulate) {
        tensor_reduce_add_2d(&args->dw_out, block, left, top);
        tensor_reduce_add_2d(&args->dw_out, below, left + 32, top);
      } else {
        tensor_store_2d(&args->dw_out, block, left, top);
        tensor_store_2d(&args->dw_out, below, left + 32, top);
      }
    }
  }
}

/* One thread: dX and dW of the wave before have read what this tile overwrites. */
DEV void wait_for_readers(const struct backward_args *args, const struct backward_tile *t) {
  for (uint32_t which = 0; which < 2; which++) {
    const struct backward_need need = backward_store_need(&args->schedule, t, which);
    if (need.value != 0)
      wait_u32_ge(gpu, counter(args, need.counter), need.value, limit(args),
                  BACKWARD_STORE_TIMEOUT);
  }
  /* Their tensor loads of dZ, in other CTAs, before this CTA's tensor stores over it: causality in
   * the async proxy ends at a thread block (PTX 8.9.5). */
  fence_proxy_async_global(backward_stores);
}

/* A warp. */
DEV void store_results(const struct backward_args *args, struct shared s, uint32_t consumer,
                       uint32_t rank) {
  const uint32_t issuer = elect_one();
  struct inbox in = {0, 0};
  struct staging staging;
  staging.base = smem_add(s.staging, consumer * 2 * BACKWARD_BLOCK_BYTES);
  staging.consumer = consumer;
  staging.turn = 0;
  uint32_t stamps = 0;
  for (;;) {
    /* The consumer frees the mailbox, after it has met all of this warp over its first block. */
    const uint32_t index = inbox_read(s, in);
    in = inbox_next(in);
    if (index & BACKWARD_TEAM_TILE) { /* the consumer has done all there is to do */
      staging_take(&staging, issuer);
      staging.turn ^= 1;
      continue;
    }
    if (index >= args->end) break;
    const struct backward_tile t = backward_tile(&args->schedule, index);
    const struct hand_over h = hand_over(args, &t);
    struct backward_stamp stamp = {index, 0, 0, 0};
    for (uint32_t n = 0; n < h.blocks; n++) {
      const struct smem block = staging_take(&staging, issuer);
      staging.turn ^= 1;
      if (issuer) {
        if (args->trace.a) {
          stamp.last = (uint32_t)globaltimer();
          if (n == 0) stamp.first = stamp.last;
        }
        if (h.stored) {
#ifndef BACKWARD_KEEPS /* where each place is stored once */
          if (n == 0 && t.kind == BACKWARD_DZ) wait_for_readers(args, &t);
#endif
          store_block(args, &t, n, block, consumer, rank);
          bulk_commit();
        }
      }
    }
    if (issuer) {
      bulk_wait_group(0);
      for (uint32_t which = 0; which < 2; which++) {
        const uint32_t to = backward_signal(&args->schedule, &t, which);
        if (to != 0) red_add_u32(release, gpu, counter(args, to), 1);
      }
      if (args->trace.a && consumer == 0 && rank == 0 && stamps < args->trace_tiles) {
        stamp.stored = (uint32_t)globaltimer();
        struct u32x4 v;
        v.x = stamp.index;
        v.y = stamp.first;
        v.z = stamp.last;
        v.w = stamp.stored;
        const uint64_t at = (uint64_t)(cta_index() / BACKWARD_CLUSTER) * args->trace_tiles + stamps;
        st_global_u32x4(gmem_add(args->trace, at * 16), v);
        stamps++;
      }
    }
  }
}

#endif
