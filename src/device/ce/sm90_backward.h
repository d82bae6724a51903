/* The backward pass on Hopper: one persistent kernel of clusters of two that makes dZ, dX and dW,
 * whose tiles chain by counters (backward_schedule.h). It knows the shapes and arguments of
 * backward.h. An instance defines BACKWARD_NAME, and BACKWARD_F16 for f16 instead of bf16, and
 * includes this file.
 *
 * Roles of a CTA's warps:
 *   warp 0       producer: loads operands, ahead of the consumers
 *   warps 1, 2   storers of consumer 0 and 1: store results, wait for what they overwrite, and
 *                signal finished tiles
 *   warp 3       dealer: fetches the cluster's next tile
 *   warps 4-11   consumers 0 and 1: multiply, and turn logits into gradients */
#include <assert.h>

#include "device/ce/backward.h"
#include "device/ce/sm90_gradient.h"
#include "device/ce/sm90_ring.h"
#include "device/ce/sm90_staging.h"

/* Which products' tiles the warpgroups take in turn. */
#ifndef DX_IN_TURN
#define DX_IN_TURN 0
#endif
#define DX_BLOCKS (DX_IN_TURN ? 2 : 1)
#if DX_IN_TURN
#define DX_COLS            128
#define BACKWARD_STAGES_DX 6
#define BACKWARD_WGMMA_DX  BACKWARD_WGMMA_128
#else
#define DX_COLS            256
#define BACKWARD_STAGES_DX 4
#define BACKWARD_WGMMA_DX  BACKWARD_WGMMA_256
#endif
#define BACKWARD_STAGES_DW 3

#ifdef BACKWARD_F16
#define BACKWARD_WGMMA_128 wgmma_m64n128k16_f16
#define BACKWARD_WGMMA_192 wgmma_m64n192k16_f16
#define BACKWARD_WGMMA_256 wgmma_m64n256k16_f16
#else
#define BACKWARD_WGMMA_128 wgmma_m64n128k16_bf16
#define BACKWARD_WGMMA_192 wgmma_m64n192k16_bf16
#define BACKWARD_WGMMA_256 wgmma_m64n256k16_bf16
#endif

#define SHAPE(name) dz_##name
#define BLOCKS      2
#define COLS        192
#define STAGES      BACKWARD_STAGES_DZ
#define A_MN        0
#define B_MN        0
#define SHARE_A     0
#define IN_TURN     1
#define WGMMA       BACKWARD_WGMMA_192
#include "device/ce/sm90_multiply.h"

#define SHAPE(name) dx_##name
#define BLOCKS      DX_BLOCKS
#define COLS        DX_COLS
#define STAGES      BACKWARD_STAGES_DX
#define A_MN        0
#define B_MN        1
#define SHARE_A     0
#define IN_TURN     DX_IN_TURN
#define WGMMA       BACKWARD_WGMMA_DX
#include "device/ce/sm90_multiply.h"

#define SHAPE(name) dw_##name
#define BLOCKS      2
#define COLS        192
#define STAGES      BACKWARD_STAGES_DW
#define A_MN        1
#define B_MN        1
#define SHARE_A     1
#define IN_TURN     0
#define WGMMA       BACKWARD_WGMMA_192
#include "device/ce/sm90_multiply.h"

/* Registers a thread: 168 at launch; the first warpgroup gives away what the sums need. */
#define BACKWARD_REGISTERS       232
#define BACKWARD_OTHER_REGISTERS 40

struct shared {
  struct smem stages;
  struct ring_barriers dz, dx, dw;   /* of three rings over the same stages */
  struct smem staging;               /* two blocks a consumer */
  struct smem tile_full, tile_empty; /* [2] */
  struct smem want, handed, credit;  /* between producer and dealers; see deal() */
  struct smem tile, handed_tile;     /* u32 [2], u32 */
};

enum { TILE_READERS = 1 + 2 }; /* producer, and a thread of each consumer */

DEV struct shared shared_layout(void) {
  struct shared s;
  s.stages = smem_base();
  s.staging = smem_add(s.stages, BACKWARD_RING_BYTES);
  s.dz.full = smem_add(s.staging, BACKWARD_STAGING_BLOCKS * BACKWARD_BLOCK_BYTES);
  s.dz.empty = smem_add(s.dz.full, BACKWARD_STAGES_DZ * 8);
  s.dx.full = smem_add(s.dz.empty, BACKWARD_STAGES_DZ * 8);
  s.dx.empty = smem_add(s.dx.full, BACKWARD_STAGES_DX * 8);
  s.dw.full = smem_add(s.dx.empty, BACKWARD_STAGES_DX * 8);
  s.dw.empty = smem_add(s.dw.full, BACKWARD_STAGES_DW * 8);
  s.tile_full = smem_add(s.dw.empty, BACKWARD_STAGES_DW * 8);
  s.tile_empty = smem_add(s.tile_full, 2 * 8);
  s.want = smem_add(s.tile_empty, 2 * 8);
  s.handed = smem_add(s.want, 8);
  s.credit = smem_add(s.handed, 8);
  s.tile = smem_add(s.credit, 8);
  s.handed_tile = smem_add(s.tile, 8);
  return s;
}

DEV void init_barriers(struct shared s) {
  ring_init(s.dz, BACKWARD_STAGES_DZ, 1);
  ring_init(s.dx, BACKWARD_STAGES_DX, DX_IN_TURN ? 1 : 2);
  ring_init(s.dw, BACKWARD_STAGES_DW, 2);
  for (uint32_t i = 0; i < 2; i++) {
    mbarrier_init(smem_add(s.tile_full, i * 8), 1);
    mbarrier_init(smem_add(s.tile_empty, i * 8), TILE_READERS);
  }
  mbarrier_init(s.want, 1);
  mbarrier_init(s.handed, 1);
  mbarrier_init(s.credit, 1);
}

DEV struct gmem counter(const struct backward_args *args, uint32_t index) {
  return gmem_add(args->counters, (uint64_t)index * 4);
}

DEV struct wait_limit limit(const struct backward_args *args) {
  struct wait_limit l;
  l.error = args->errors;
  l.timeout_ns = args->timeout_ns;
  return l;
}

/* ---- Tiles ---- */

/* The tile that a role is at: slot and parity of the mailbox. */
struct inbox {
  uint32_t slot, parity;
};

/* The index of the tile. It stays there until the producer and the consumers are done with it. */
DEV uint32_t inbox_read(struct shared s, struct inbox in) {
  mbarrier_wait(smem_add(s.tile_full, in.slot * 8), in.parity);
  return ld_shared_u32(smem_add(s.tile, in.slot * 4));
}

DEV struct inbox inbox_next(struct inbox in) {
  in.parity ^= in.slot;
  in.slot ^= 1;
  return in;
}

/* The tile, read once more: nothing of it has to stay in registers during the multiplication. */
DEV struct backward_tile inbox_tile(const struct backward_args *args, struct shared s,
                                    struct inbox in) {
  return backward_tile(&args->schedule, ld_shared_u32(smem_add(s.tile, in.slot * 4)));
}

/* One thread has read the tile for its role. */
DEV void inbox_done(struct shared s, struct inbox in) {
  mbarrier_arrive(smem_add(s.tile_empty, in.slot * 8));
}

/* Waits until the producer asks for a tile. For speed alone: a tile that is dealt later may go to
 * the cluster that is ready for it first. */
DEV void pace(struct shared s, uint32_t parity) {
  mbarrier_wait(s.want, parity);
}

/* Dealer, one thread in each CTA. The first CTA's takes the next index when its producer is about
 * to be done with the tile before, hands it to the other's, and both put it into their mailboxes.
 * The last index dealt is the first beyond the end. */
DEV void deal(const struct backward_args *args, struct shared s, uint32_t rank) {
  for (uint32_t n = 0;; n++) {
    uint32_t index;
    if (rank == 0) {
      if (n != 0) pace(s, (n - 1) & 1);
      index = args->first + atom_add_u32(relaxed, gpu, counter(args, BACKWARD_NEXT), 1);
      if (n != 0) mbarrier_wait_cluster(s.credit, (n - 1) & 1);
      st_dsmem_u32(cluster_map(s.handed_tile, 1), index);
      mbarrier_arrive_remote_cluster(cluster_map(s.handed, 1));
    } else {
      mbarrier_wait_cluster(s.handed, n & 1);
      index = ld_shared_u32(s.handed_tile);
      mbarrier_arrive_remote_cluster(cluster_map(s.credit, 0));
    }
    const uint32_t slot = n & 1;
    if (n > 1) mbarrier_wait(smem_add(s.tile_empty, slot * 8), (n / 2 - 1) & 1);
    st_shared_u32(smem_add(s.tile, slot * 4), index);
    mbarrier_arrive(smem_add(s.tile_full, slot * 8));
    if (index >= args->end) return;
  }
}

/* Steps of depth of a wave's dX. */
DEV uint32_t wave_steps(const struct backward_args *args, uint32_t wave) {
  const uint32_t full = args->schedule.wave_cols * BACKWARD_TILE_COLS;
  const uint32_t left = args->rows - wave * full;
  return ((left < full ? left : full) - 1) / BACKWARD_DEPTH_STEP + 1;
}

/* ---- Producer ---- */

/* So many steps before the last the next tile is asked for: time for it to come, without taking it
 * from a cluster that is ready earlier. */
#define WANT_AHEAD 6

DEV uint32_t steps_of(uint32_t depth) {
  return (depth - 1) / BACKWARD_DEPTH_STEP + 1;
}

/* The producer's place in the three rings. */
struct rings {
  struct ring dz, dx, dw;
};

/* Before the loads of step `step` of `steps`. */
DEV void ask_ahead(struct shared s, uint32_t rank, uint32_t step, uint32_t steps) {
  if (rank == 0 && step == (steps < WANT_AHEAD ? 0 : steps - WANT_AHEAD)) mbarrier_arrive(s.want);
}

DEV struct ring load_dz(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, uint32_t wave_start, struct ring ring) {
  const uint32_t steps = steps_of(args->hidden);
  const uint32_t row = t->row * BACKWARD_TILE + rank * 128;
  uint32_t col = wave_start + t->col * BACKWARD_TILE_COLS;
  struct operand a = {&args->x, 0, 0}, b = {&args->w, 0, 0};
  /* The first consumer's tile, then the second's. */
  for (uint32_t step = 0; step < 2 * steps; step++) {
    if (step == steps) {
      a.depth = b.depth = 0;
      col += 192;
    }
    ask_ahead(s, rank, step, 2 * steps);
    ring = dz_load(s.stages, s.dz, ring, rank, &a, &b, row, col);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

DEV struct ring load_dx(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, uint32_t wave_start, struct ring ring) {
  const uint32_t steps = wave_steps(args, t->wave);
  struct operand a = {&args->dz, 0, 0}, b = {&args->w_mn, wave_start, args->h_wide};
  const uint32_t turns = DX_IN_TURN ? 2 : 1;
  uint32_t h = t->h * BACKWARD_TILE;
  for (uint32_t step = 0; step < turns * steps; step++) {
    if (DX_IN_TURN && step == steps) {
      a.depth = 0;
      b.depth = wave_start;
      h += DX_COLS;
    }
    ask_ahead(s, rank, step, turns * steps);
    ring = dx_load(s.stages, s.dx, ring, rank, &a, &b, t->row * BACKWARD_TILE + rank * 128, h);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

DEV struct ring load_dw(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, struct ring ring) {
  const uint32_t steps = steps_of(args->tokens);
  struct operand a = {&args->x_mn, 0, args->h_wide}, b = {&args->dz_mn, 0, 1};
  for (uint32_t step = 0; step < steps; step++) {
    ask_ahead(s, rank, step, steps);
    ring = dw_load(s.stages, s.dw, ring, rank, &a, &b, t->h * BACKWARD_TILE,
                   t->col * BACKWARD_TILE_COLS + rank * 192);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

/* One thread. */
DEV void produce(const struct backward_args *args, struct shared s, uint32_t rank) {
  struct inbox in = {0, 0};
  struct rings at = {{0, 0}, {0, 0}, {0, 0}};
  uint32_t last_kind = BACKWARD_PREPARE;
  for (;;) {
    const uint32_t index = inbox_read(s, in);
    inbox_done(s, in);
    in = inbox_next(in);
    if (index >= args->end) return;
    const struct backward_tile t = backward_tile(&args->schedule, index);
    if (t.kind == BACKWARD_PREPARE) {
      if (rank == 0) mbarrier_arrive(s.want);
      continue;
    }
    if (t.kind != last_kind) {
      if (last_kind == BACKWARD_DZ) dz_drain(s.dz, at.dz);
      if (last_kind == BACKWARD_DX) dx_drain(s.dx, at.dx);
      if (last_kind == BACKWARD_DW) dw_drain(s.dw, at.dw);
      last_kind = t.kind;
    }
    const struct backward_need need = backward_load_need(&args->schedule, &t);
    wait_u32_ge(gpu, counter(args, need.counter), need.value, limit(args), BACKWARD_LOAD_TIMEOUT);
    /* What other CTAs have written, dZ and the sums of dX, before this CTA's tensor copies of it.
     */
    fence_proxy_async_global(backward_loads);
    const uint32_t wave_start = t.wave * args->schedule.wave_cols * BACKWARD_TILE_COLS;
    if (t.kind == BACKWARD_DZ)
      at.dz = load_dz(args, s, rank, &t, wave_start, at.dz);
    else if (t.kind == BACKWARD_DX)
      at.dx = load_dx(args, s, rank, &t, wave_start, at.dx);
    else
      at.dw = load_dw(args, s, rank, &t, at.dw);
  }
}

/* ---- Results ---- */

/* 1 where dX of this tile is final, else its sums are added up in the workspace. */
DEV uint32_t is_last_wave(const struct backward_args *args, uint32_t wave) {
  return (wave + 1) * args->schedule.wave_cols >= args->schedule.col_tiles;
}

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
  /* Their tensor loads of dZ, before this CTA's tensor stores over it. */
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
          if (n == 0 && t.kind == BACKWARD_DZ) wait_for_readers(args, &t);
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

/* ---- Consumers ---- */

struct consumer {
  uint32_t index, thread, rank; /* 0 or 1; of the warpgroup; the CTA's in the cluster */
  struct staging staging;
};

/* Warpgroups that take turns: the second multiplies after the first, and the first's next turn
 * comes after the second. A consumer must not look at a stage's barrier before the other has seen
 * the phases in between, since it could not tell a phase from the one before the last. */
enum { TURN_OF_FIRST = 11, TURN_OF_SECOND = 12 }; /* barriers */

DEV void turn_begin(const struct consumer *c) {
  if (c->index == 1) bar_sync(TURN_OF_SECOND, 256);
}

/* All products are issued. */
DEV void turn_pass(const struct consumer *c) {
  bar_arrive(c->index == 0 ? TURN_OF_SECOND : TURN_OF_FIRST, 256);
}

/* The results are out. */
DEV void turn_end(const struct consumer *c) {
  if (c->index == 0) bar_sync(TURN_OF_FIRST, 256);
}

/* Rows of this thread in a block of 64: this one, and 8 below. */
DEV uint32_t fragment_row(uint32_t thread) {
  return thread / 32 * 16 + thread % 32 / 4;
}

/* 64 tokens' constants; every warpgroup that multiplies takes its own. */
DEV void prepare(const struct backward_args *args, struct consumer *c,
                 const struct backward_tile *t) {
  float power = 1.0f;
#ifdef BACKWARD_F16
  const struct smem scratch = staging_open(&c->staging);
  const float most = largest_gradient(args, c->thread);
  if (c->thread % 32 == 0) st_shared_f32(smem_add(scratch, c->thread / 32 * 4), most);
  bar_sync(STAGING_OWN + c->index, 128);
  float all = 0.0f;
  UNROLL for (uint32_t w = 0; w < 4; w++) all =
      max_f32(all, ld_shared_f32(smem_add(scratch, w * 4)));
  power = gradient_power(all, temperature_inverse(args));
  if (c->thread == 0 && c->index == 0 && c->rank == 0)
    st_global_f32(gmem_add(args->unscale, (uint64_t)t->row * 4), 1.0f / power);
#else
  staging_open(&c->staging);
#endif
  if (c->thread < 64)
    prepare_row(args, t->row * BACKWARD_TILE + c->rank * 128 + c->index * 64 + c->thread, power);
  staging_close(&c->staging);
}

DEV struct ring make_dz(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float sums[192];
  const uint32_t steps = steps_of(args->hidden);
  /* The stages of the other consumer's tile lie before or after. */
  if (c->index == 1) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  turn_begin(c);
  ring = dz_multiply(s.stages, s.dz, ring, steps, c->index, c->thread, sums);
  turn_pass(c);
  /* Loaded behind the last products. */
  const struct backward_tile t = inbox_tile(args, s, in);
  const uint32_t row = t.row * BACKWARD_TILE + c->rank * 128 + fragment_row(c->thread);
  const struct gradient_scale scale = gradient_scale(args);
  struct f32x4 upper = row_constants(args, row), lower = row_constants(args, row + 8);
  dz_finish(s.dz, ring, c->thread, sums);
  if (c->index == 0) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  const uint32_t col =
      (t.wave * args->schedule.wave_cols + t.col) * BACKWARD_TILE_COLS + c->index * 192;
  UNROLL for (uint32_t i = 0; i < 2; i++) {
    if (i != 0) {
      upper = row_constants(args, row + i * 64);
      lower = row_constants(args, row + i * 64 + 8);
    }
    UNROLL for (uint32_t n = 0; n < 3; n++) {
      gradient(args, sums + i * 96 + n * 32, scale, upper, lower, row + i * 64, col + n * 64);
      stage_half(staging_open(&c->staging), c->thread, sums + i * 96 + n * 32, 0);
      staging_close(&c->staging);
    }
  }
  turn_end(c);
  return ring;
}

/* A pair of results, at (row, h), to an output that tensor stores can't write. */
DEV void put_pair(struct gmem to, int64_t stride, uint32_t row, uint32_t h, uint32_t rows,
                  uint32_t hidden, uint32_t f32, float first, float second) {
  if (row >= rows) return;
  const uint64_t at = (uint64_t)row * (uint64_t)stride + h;
  const uint32_t pair = pack_half2(first, second);
  if (h < hidden) {
    if (f32)
      st_global_f32(gmem_add(to, at * 4), first);
    else
      st_global_u16(gmem_add(to, at * 2), (uint16_t)pair);
  }
  if (h + 1 < hidden) {
    if (f32)
      st_global_f32(gmem_add(to, at * 4 + 4), second);
    else
      st_global_u16(gmem_add(to, at * 2 + 2), (uint16_t)(pair >> 16));
  }
}

DEV struct ring make_dx(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float d[128];
  const uint32_t steps = wave_steps(args, inbox_tile(args, s, in).wave);
  if (DX_IN_TURN) {
    if (c->index == 1) ring = ring_skip(ring, steps, BACKWARD_STAGES_DX);
    turn_begin(c);
  }
  ring = dx_multiply(s.stages, s.dx, ring, steps, c->index, c->thread, d);
  if (DX_IN_TURN) turn_pass(c);
  dx_finish(s.dx, ring, c->thread, d);
  if (DX_IN_TURN && c->index == 0) ring = ring_skip(ring, steps, BACKWARD_STAGES_DX);
  const struct backward_tile t = inbox_tile(args, s, in);
#ifdef BACKWARD_F16
  const float unscale = ld_global_f32(gmem_add(args->unscale, (uint64_t)t.row * 4));
  UNROLL for (uint32_t i = 0; i < 128; i++) d[i] *= unscale;
#endif
  const uint32_t row = t.row * BACKWARD_TILE + c->rank * 128 + (DX_IN_TURN ? 0 : c->index * 64) +
                       fragment_row(c->thread);
  const uint32_t h =
      t.h * BACKWARD_TILE + (DX_IN_TURN ? c->index * DX_COLS : 0) + c->thread % 4 * 2;
  const uint32_t last = is_last_wave(args, t.wave);
  if (last && t.wave != 0) {
    /* What the waves before have summed up. Rows and columns beyond the end have no sums. */
    UNROLL for (uint32_t part = 0; part < DX_BLOCKS * 2; part++) { /* rows of this thread */
      const uint32_t at = row + part * 8 + part / 2 * 48;
      if (at >= args->tokens) continue;
      const struct gmem from = gmem_add(args->sums, ((uint64_t)at * args->sums_stride + h) * 4);
      float *sum = d + part / 2 * (DX_COLS / 2) + part % 2 * 2;
      UNROLL for (uint32_t j = 0; j < DX_COLS / 8; j++) {
        if (h + j * 8 < args->hidden) {
          const struct f32x2 pair = ld_global_f32x2(gmem_add(from, j * 32));
          sum[j * 4] += pair.x;
          sum[j * 4 + 1] += pair.y;
        }
      }
    }
  }
  if (last && !args->dx_mapped) {
    staging_open(&c->staging);
    UNROLL for (uint32_t i = 0; i < 64; i++) {
      const uint32_t block = i / (DX_COLS / 4), e = i % (DX_COLS / 4);
      put_pair(args->dx, args->dx_stride, row + block * 64 + e % 2 * 8, h + e / 2 * 8, args->tokens,
               args->hidden, args->dx_f32, d[i * 2], d[i * 2 + 1]);
    }
    staging_close(&c->staging);
  } else if (last && !args->dx_f32) {
    UNROLL for (uint32_t n = 0; n < 4; n++) {
      stage_half(staging_open(&c->staging), c->thread, d + n * 32, 0);
      staging_close(&c->staging);
    }
  } else {
    UNROLL for (uint32_t n = 0; n < 8; n++) {
      stage_f32(staging_open(&c->staging), c->thread, d + n * 16, 0);
      staging_close(&c->staging);
    }
  }
  if (DX_IN_TURN) turn_end(c);
  return ring;
}

/* Adds what dW holds, 64 rows of W from `v` by 64 hidden columns from `h`, through the staging
 * block in which its sums are going to be. */
DEV void add_old_half(const struct backward_args *args, struct consumer *c, struct smem block,
                      uint32_t v, uint32_t h, float *d) {
  UNROLL for (uint32_t i = 0; i < 4; i++) {
    const uint32_t line = i * 16 + c->thread / 8, piece = c->thread % 8;
    struct u32x4 old = {0, 0, 0, 0};
    if (v + line < args->rows && h + piece * 8 < args->hidden)
      old = ld_global_u32x4(gmem_add(
          args->dw, ((uint64_t)(v + line) * (uint64_t)args->dw_stride + h + piece * 8) * 2));
    st_shared_u32x4(staged(block, line, piece), old);
  }
  bar_sync(STAGING_OWN + c->index, 128);
  const uint32_t warp = c->thread / 32, lane = c->thread % 32;
  const uint32_t below = (lane / 8) % 2, right = lane / 16, i = lane % 8;
  UNROLL for (uint32_t q = 0; q < 4; q++) {
    const struct u32x4 old =
        ldmatrix_x4_trans(staged(block, q * 16 + right * 8 + i, warp * 2 + below));
    const uint32_t pairs[4] = {old.x, old.y, old.z, old.w};
    UNROLL for (uint32_t e = 0; e < 4; e++) {
#ifdef BACKWARD_F16
      d[q * 8 + e * 2] += f16_f32(pairs[e]);
      d[q * 8 + e * 2 + 1] += f16_f32(pairs[e] >> 16);
#else
      d[q * 8 + e * 2] += bf16x2_lo(pairs[e]);
      d[q * 8 + e * 2 + 1] += bf16x2_hi(pairs[e]);
#endif
    }
  }
  bar_sync(STAGING_OWN + c->index, 128);
}

/* One result to a dW that tensor stores can't write. */
DEV void put_dw(const struct backward_args *args, uint32_t v, uint32_t h, float value) {
  if (v >= args->rows || h >= args->hidden) return;
  const uint64_t at = (uint64_t)v * (uint64_t)args->dw_stride + h;
  if (args->dw_f32) {
    const struct gmem to = gmem_add(args->dw, at * 4);
    st_global_f32(to, args->dw_accumulate ? value + ld_global_f32(to) : value);
  } else {
    const struct gmem to = gmem_add(args->dw, at * 2);
    if (args->dw_accumulate) {
#ifdef BACKWARD_F16
      value += f16_f32(ld_global_u16(to));
#else
      value += bits_f32((uint32_t)ld_global_u16(to) << 16);
#endif
    }
    st_global_u16(to, (uint16_t)pack_half2(value, 0.0f));
  }
}

DEV struct ring make_dw(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float sums[192];
  const uint32_t steps = steps_of(args->tokens);
  ring = dw_multiply(s.stages, s.dw, ring, steps, c->index, c->thread, sums);
  dw_finish(s.dw, ring, c->thread, sums);
  const struct backward_tile t = inbox_tile(args, s, in);
#ifdef BACKWARD_F16
  const float unscale = ld_global_f32(args->unscale);
  UNROLL for (uint32_t i = 0; i < 192; i++) sums[i] *= unscale;
#endif
  const uint32_t h = t.h * BACKWARD_TILE + c->index * 128;
  const uint32_t v =
      (t.wave * args->schedule.wave_cols + t.col) * BACKWARD_TILE_COLS + c->rank * 192;
  if (!args->dw_mapped) {
    staging_open(&c->staging);
    UNROLL for (uint32_t i = 0; i < 2; i++) {
      UNROLL for (uint32_t e = 0; e < 96; e++)
          put_dw(args, v + e / 4 * 8 + c->thread % 4 * 2 + e % 2,
                 h + i * 64 + fragment_row(c->thread) + e / 2 % 2 * 8, sums[i * 96 + e]);
    }
    staging_close(&c->staging);
    return ring;
  }
  UNROLL for (uint32_t i = 0; i < 2; i++) {
    if (args->dw_f32) {
      UNROLL for (uint32_t n = 0; n < 6; n++) {
        stage_f32(staging_open(&c->staging), c->thread, sums + i * 96 + n * 16, 1);
        staging_close(&c->staging);
      }
    } else {
      UNROLL for (uint32_t n = 0; n < 3; n++) {
        const struct smem block = staging_open(&c->staging);
        if (args->dw_accumulate)
          add_old_half(args, c, block, v + n * 64, h + i * 64, sums + i * 96 + n * 32);
        stage_half(block, c->thread, sums + i * 96 + n * 32, 1);
        staging_close(&c->staging);
      }
    }
  }
  return ring;
}

/* A warpgroup. */
DEV void consume(const struct backward_args *args, struct shared s, uint32_t index, uint32_t rank) {
  struct consumer c;
  c.index = index;
  c.thread = thread_index() % 128;
  c.rank = rank;
  c.staging.base = smem_add(s.staging, index * 2 * BACKWARD_BLOCK_BYTES);
  c.staging.consumer = index;
  c.staging.turn = 0;
  struct inbox in = {0, 0};
  struct rings at = {{0, 0}, {0, 0}, {0, 0}};
  for (;;) {
    const uint32_t next = inbox_read(s, in);
    if (next >= args->end) return;
    const struct backward_tile t = backward_tile(&args->schedule, next);
    if (t.kind == BACKWARD_PREPARE)
      prepare(args, &c, &t);
    else if (t.kind == BACKWARD_DZ)
      at.dz = make_dz(args, s, &c, in, at.dz);
    else if (t.kind == BACKWARD_DX)
      at.dx = make_dx(args, s, &c, in, at.dx);
    else
      at.dw = make_dw(args, s, &c, in, at.dw);
    /* All of its threads, and the storer, have met at a block since they read the mailbox. */
    if (c.thread == 0) inbox_done(s, in);
    in = inbox_next(in);
  }
}

/* One thread, when its CTA is done: shows the host what went wrong. All targets have been looked at
 * by then, since dX and dW waited for it. */
DEV void report(const struct backward_args *args) {
  if (args->host_errors.a == 0) return;
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t word = ld_u32(relaxed, gpu, gmem_add(args->errors, i * 4));
    if (word != 0) st_u32(relaxed, sys, gmem_add(args->host_errors, i * 4), word);
  }
}

/* The whole kernel: a cooperative grid of clusters of two. */
DEV void backward_kernel(const struct backward_args *args) {
  const struct shared s = shared_layout();
  const uint32_t warp = warp_index(), rank = cluster_rank();
  if (thread_index() == 0) {
    init_barriers(s);
    /* The barriers' initial state, before the other CTA's arrivals and multicasts. */
    fence_mbarrier_init(backward_barriers);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (warp < 4) {
    setmaxnreg_dec(BACKWARD_OTHER_REGISTERS);
    if (warp == 0) {
      if (elect_one()) produce(args, s, rank);
    } else if (warp == 3) {
      if (elect_one()) deal(args, s, rank);
    } else {
      store_results(args, s, warp - 1, rank);
    }
  } else {
    setmaxnreg_inc(BACKWARD_REGISTERS);
    consume(args, s, warp / 4 - 1, rank);
  }
  /* Neither CTA leaves while the other may still write its memory or arrive on its barriers; what
   * the storers have stored is complete. */
  cluster_sync();
  if (thread_index() == 0) report(args);
}

#ifdef BACKWARD_NAME
WEFT_KERNEL_CLUSTER(BACKWARD_NAME, BACKWARD_THREADS, BACKWARD_CLUSTER, struct backward_args, args) {
  backward_kernel(&args);
}
#endif
