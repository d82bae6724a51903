/* The Hopper GEMM: a persistent, warp-specialised kernel of clusters of two. One warpgroup's
 * elected thread keeps a ring of stages filled by tensor copies, multicasting its half of the
 * shared operand; two warpgroups multiply with wgmma and write their results through shared memory.
 * It knows shapes, the schedule and the wrappers of ptx/, and nothing of what the matrices mean. An
 * instance defines GEMM_SHAPE (gemm.h) and GEMM_NAME, and includes this file once; without a name
 * it gets gemm_kernel() alone, for a kernel of its own. */
#include <assert.h>

#include "device/gemm/gemm.h"
#include "device/ptx/ptx.h"

#define GEMM_FIELD_(i, ...)                           GEMM_FIELD_##i(__VA_ARGS__)
#define GEMM_FIELD(i, ...)                            GEMM_FIELD_(i, __VA_ARGS__)
#define GEMM_FIELD_0(blocks, cols, st, am, bm, sa, t) blocks
#define GEMM_FIELD_1(blocks, cols, st, am, bm, sa, t) cols
#define GEMM_FIELD_2(blocks, cols, st, am, bm, sa, t) st
#define GEMM_FIELD_3(blocks, cols, st, am, bm, sa, t) am
#define GEMM_FIELD_4(blocks, cols, st, am, bm, sa, t) bm
#define GEMM_FIELD_5(blocks, cols, st, am, bm, sa, t) sa
#define GEMM_FIELD_6(blocks, cols, st, am, bm, sa, t) t
#define BLOCKS                                        GEMM_FIELD(0, GEMM_SHAPE)
#define COLS                                          GEMM_FIELD(1, GEMM_SHAPE)
#define STAGES                                        GEMM_FIELD(2, GEMM_SHAPE)
#define A_MN                                          GEMM_FIELD(3, GEMM_SHAPE)
#define B_MN                                          GEMM_FIELD(4, GEMM_SHAPE)
#define SHARE_A                                       GEMM_FIELD(5, GEMM_SHAPE)
#define TRANSPOSED                                    GEMM_FIELD(6, GEMM_SHAPE)

enum {
  ROWS = 128 * BLOCKS, /* of a CTA's tile */
  A_BYTES = ROWS / 64 * GEMM_BLOCK_BYTES,
  B_BYTES = COLS / 64 * GEMM_BLOCK_BYTES,
  /* What one CTA loads: half of the shared operand, all of its own. */
  A_LOADED = SHARE_A ? ROWS / 2 : ROWS,
  B_LOADED = SHARE_A ? COLS : COLS / 2,
  ALL_CTAS = (1 << GEMM_CLUSTER) - 1,
  ACCUMULATORS = COLS / 2, /* a thread and block of 64 rows */
};
static_assert(COLS % 64 == 0 && (!B_MN || B_LOADED % 64 == 0), "operand blocks are 64 wide");

/* Registers a thread: 168 at launch; the producer gives away what the sums need. */
#if BLOCKS * COLS > 256
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240
#else
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#endif

#if COLS == 256
#define GEMM_WGMMA wgmma_m64n256k16_bf16
#elif COLS == 192
#define GEMM_WGMMA wgmma_m64n192k16_bf16
#elif COLS == 128
#define GEMM_WGMMA wgmma_m64n128k16_bf16
#elif COLS == 64
#define GEMM_WGMMA wgmma_m64n64k16_bf16
#endif

struct gemm_shared {
  struct smem a, b, full, empty; /* arrays over the stages */
  struct smem staging;           /* two blocks a consumer */
};

DEV struct gemm_shared gemm_shared_layout(void) {
  struct gemm_shared s;
  s.a = smem_base();
  s.b = smem_add(s.a, STAGES * A_BYTES);
  s.staging = smem_add(s.b, STAGES * B_BYTES);
  s.full = smem_add(s.staging, GEMM_STAGING_BLOCKS * GEMM_BLOCK_BYTES);
  s.empty = smem_add(s.full, STAGES * 8);
  return s;
}

/* A position in the ring. The parity is that of the phase that is waited for next on `full`. */
struct gemm_ring {
  uint32_t stage, parity;
};

DEV struct gemm_ring ring_next(struct gemm_ring r) {
  r.stage++;
  if (r.stage == STAGES) {
    r.stage = 0;
    r.parity ^= 1;
  }
  return r;
}

/* Top left corner of this CTA's tile, in elements of C as computed. */
struct gemm_corner {
  uint32_t row, col;
};

DEV struct gemm_corner gemm_corner(const struct gemm_schedule *schedule, uint32_t index,
                                   uint32_t rank) {
  const struct gemm_tile tile = gemm_schedule_tile(schedule, index);
  struct gemm_corner c;
  c.row = (SHARE_A ? tile.row : tile.row * GEMM_CLUSTER + rank) * ROWS;
  c.col = (SHARE_A ? tile.col * GEMM_CLUSTER + rank : tile.col) * COLS;
  return c;
}

/* Loads `count` rows of an operand (columns of B) from `first`, 64 of depth from `depth`. */
DEV void load_operand(const struct tensor_map *map, struct smem to, struct smem full,
                      uint32_t depth, uint32_t first, uint32_t count, int mn_major, uint32_t wide,
                      int multicast) {
  if (!mn_major) {
    if (multicast)
      tensor_load_2d_multicast(to, map, full, ALL_CTAS, depth, first);
    else
      tensor_load_2d(to, map, full, depth, first);
  } else if (wide) {
    if (multicast)
      tensor_load_3d_multicast(to, map, full, ALL_CTAS, 0, depth, first / 64);
    else
      tensor_load_3d(to, map, full, 0, depth, first / 64);
  } else {
    UNROLL for (uint32_t i = 0; i < count / 64; i++) {
      const struct smem block = smem_add(to, i * GEMM_BLOCK_BYTES);
      if (multicast)
        tensor_load_2d_multicast(block, map, full, ALL_CTAS, first + i * 64, depth);
      else
        tensor_load_2d(block, map, full, first + i * 64, depth);
    }
  }
}

/* One thread. Fills stages as they become free, tile after tile. */
DEV void produce(const struct gemm_args *args, struct gemm_shared shared, uint32_t rank,
                 uint32_t cluster, uint32_t clusters) {
  const uint32_t count = gemm_schedule_count(&args->schedule);
  const uint32_t a_first = SHARE_A ? rank * A_LOADED : 0, b_first = SHARE_A ? 0 : rank * B_LOADED;
  struct gemm_ring ring = {0, 0};
  for (uint32_t index = cluster; index < count; index += clusters) {
    const struct gemm_corner corner = gemm_corner(&args->schedule, index, rank);
    for (uint32_t step = 0; step < args->depth_steps; step++) {
      const struct smem full = smem_add(shared.full, ring.stage * 8);
      /* Both CTAs' warpgroups have read the stage, which the multicast is about to overwrite in
       * both. A fresh barrier counts as one whose odd phase has completed. */
      mbarrier_wait(smem_add(shared.empty, ring.stage * 8), ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, A_BYTES + B_BYTES);
      load_operand(&args->a, smem_add(shared.a, ring.stage * A_BYTES + a_first * 128), full,
                   step * GEMM_DEPTH_STEP, corner.row + a_first, A_LOADED, A_MN, args->a_wide,
                   SHARE_A);
      load_operand(&args->b, smem_add(shared.b, ring.stage * B_BYTES + b_first * 128), full,
                   step * GEMM_DEPTH_STEP, corner.col + b_first, B_LOADED, B_MN, args->b_wide,
                   !SHARE_A);
      ring = ring_next(ring);
    }
  }
}

/* Tells the producers of both CTAs that this warpgroup has read a stage. One arrival of the
 * warpgroup for each, by its first two threads: wgmma is an operation of the whole warpgroup, and
 * each of its threads has waited for it. Arrives with the default semantics (release, CTA scope):
 * what has been done with the stage are reads by wgmma, which its wait has completed; no write of
 * this thread has to be seen over there, and a wider release costs a MEMBAR a stage. */
DEV void release_stage(struct gemm_shared shared, uint32_t stage, uint32_t thread) {
  if (thread < GEMM_CLUSTER)
    mbarrier_arrive_remote(cluster_map(smem_add(shared.empty, stage * 8), thread));
}

/* Multiplies all of depth into `sums`. Stages are released one step late, so that the tensor cores
 * always have the next step queued. */
DEV struct gemm_ring multiply(const struct gemm_args *args, struct gemm_shared shared,
                              uint32_t consumer, uint32_t thread, struct gemm_ring ring,
                              float sums[BLOCKS][ACCUMULATORS]) {
  /* Next 64 of rows or columns 8192 bytes on (MN-major), next 8 1024; 16 of depth are 32 bytes
   * (K-major) or 16 lines of 128 (MN-major). Descriptors count in units of 16 bytes. */
  const uint64_t a0 = wgmma_desc(smem_add(shared.a, consumer * BLOCKS * GEMM_BLOCK_BYTES),
                                 GEMM_BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B);
  const uint64_t b0 = wgmma_desc(shared.b, GEMM_BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B);
  uint32_t previous = 0;
  for (uint32_t step = 0; step < args->depth_steps; step++) {
    mbarrier_wait(smem_add(shared.full, ring.stage * 8), ring.parity);
    const uint64_t a = a0 + ring.stage * (A_BYTES / 16), b = b0 + ring.stage * (B_BYTES / 16);
    wgmma_fence();
    UNROLL for (uint32_t k = 0; k < GEMM_DEPTH_STEP / 16; k++) {
      UNROLL for (uint32_t i = 0; i < BLOCKS; i++) {
        GEMM_WGMMA(sums[i], a + i * (GEMM_BLOCK_BYTES / 16) + k * (A_MN ? 128 : 2),
                   b + k * (B_MN ? 128 : 2), step != 0 || k != 0, A_MN, B_MN);
      }
    }
    wgmma_commit();
    if (step != 0) {
      wgmma_wait(1);
      release_stage(shared, previous, thread);
    }
    previous = ring.stage;
    ring = ring_next(ring);
  }
  wgmma_wait(0);
  release_stage(shared, previous, thread);
  UNROLL for (uint32_t i = 0; i < BLOCKS; i++) wgmma_pin(sums[i], ACCUMULATORS);
  return ring;
}

/* wgmma's results (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): thread t of the
 * warpgroup holds, for each 8 columns j, elements 4j and 4j + 1 of row t / 32 * 16 + t % 32 / 4 in
 * columns 8j + t % 4 * 2 and the next, and 4j + 2, 4j + 3 of the row 8 below.
 *
 * Staged blocks have lines of 128 bytes whose 16-byte pieces are permuted by the line's number, as
 * the tensor store's swizzle undoes it: no bank conflicts on the way in. */
DEV struct smem staged(struct smem block, uint32_t line, uint32_t piece) {
  return smem_add(block, line * 128 + ((piece ^ (line & 7)) << 4));
}

/* 64 rows by 64 columns as bf16: lines are rows, or columns where C is transposed. */
DEV void stage_bf16(struct smem block, uint32_t thread, const float *sums) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  UNROLL for (uint32_t q = 0; q < 4; q++) {
    const float *d = sums + q * 8;
    struct u32x4 v;
    v.x = pack_bf16x2(d[0], d[1]);
    v.y = pack_bf16x2(d[2], d[3]);
    v.z = pack_bf16x2(d[4], d[5]);
    v.w = pack_bf16x2(d[6], d[7]);
    /* Lane l gives the address of row l % 8 of 8x8 matrix l / 8; matrices 1 and 3 are 8 rows
     * below 0 and 2, matrices 2 and 3 are 8 columns to the right. */
    const uint32_t below = (lane / 8) % 2, right = lane / 16, i = lane % 8;
    if (TRANSPOSED)
      stmatrix_x4_trans(staged(block, q * 16 + right * 8 + i, warp * 2 + below), v);
    else
      stmatrix_x4(staged(block, warp * 16 + below * 8 + i, q * 2 + right), v);
  }
}

/* 64 rows by 32 columns as f32. Transposed: two blocks of 32 lines, for rows 0-31 and 32-63. */
DEV void stage_f32(struct smem block, uint32_t thread, const float *sums) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  UNROLL for (uint32_t j = 0; j < 4; j++) {
    UNROLL for (uint32_t below = 0; below < 2; below++) {
      const float *d = sums + j * 4 + below * 2;
      if (TRANSPOSED) {
        const struct smem half = smem_add(block, warp / 2 * (GEMM_BLOCK_BYTES / 2));
        const uint32_t row = warp % 2 * 16 + below * 8 + lane / 4;
        UNROLL for (uint32_t e = 0; e < 2; e++) {
          const uint32_t line = j * 8 + lane % 4 * 2 + e;
          st_shared_f32(smem_add(staged(half, line, row / 4), row % 4 * 4), d[e]);
        }
      } else {
        struct f32x2 pair;
        pair.x = d[0];
        pair.y = d[1];
        const struct smem piece =
            staged(block, warp * 16 + below * 8 + lane / 4, j * 2 + lane % 4 / 2);
        st_shared_f32x2(smem_add(piece, lane % 2 * 8), pair);
      }
    }
  }
}

/* What a consumer warpgroup needs to write its results. Two staging blocks take turns. */
struct gemm_writer {
  struct smem staging;
  uint32_t consumer, thread;
  uint32_t issuer; /* 1 in the thread that issues the tensor stores, always the same one */
  uint32_t turn;
};

/* Opens the block whose turn it is: the tensor store before the latest has read it. */
DEV struct smem staging_open(const struct gemm_writer *w) {
  if (w->issuer) bulk_wait_group_read(1);
  bar_sync(1 + w->consumer, 128);
  return smem_add(w->staging, w->turn * GEMM_BLOCK_BYTES);
}

/* Hands the written block to the issuer. */
DEV void staging_close(struct gemm_writer *w) {
  /* Orders this thread's stores to the block before the tensor store that reads it. */
  fence_proxy_async_shared_cta(gemm_staging);
  bar_sync(1 + w->consumer, 128);
  w->turn ^= 1;
}

/* The elements of C's lines behind the last whole 16 bytes, where a written block of `lines` lines
 * of 128 bytes, from element x of line y, holds them. Reads what staging_close() has published. */
DEV void write_tail(const struct gemm_result *result, uint32_t f32_out, struct smem block,
                    uint32_t x, uint32_t y, uint32_t lines, uint32_t thread) {
  const uint32_t size = f32_out ? 4 : 2, first = result->whole - x;
  if (result->whole == result->end || result->whole < x || first * size >= 128) return;
  if (thread >= lines || y + thread >= result->lines) return;
  const struct smem from = staged(block, thread, first * size / 16);
  const struct gmem to = gmem_add(result->address, (y + thread) * result->stride_bytes +
                                                       (uint64_t)result->whole * size);
  for (uint32_t at = 0; at < (result->end - result->whole) * size; at += size) {
    if (f32_out)
      st_global_u32(gmem_add(to, at), ld_shared_u32(smem_add(from, at)));
    else
      st_global_u16(gmem_add(to, at), ld_shared_u16(smem_add(from, at)));
  }
}

/* Sends a written block to C, from element x of line y. */
DEV void write_block(const struct gemm_args *args, const struct gemm_writer *w, struct smem block,
                     uint32_t x, uint32_t y, uint32_t lines) {
  if (w->issuer && x < args->result.whole) tensor_store_2d(&args->c, block, (int32_t)x, (int32_t)y);
  write_tail(&args->result, args->f32_out, block, x, y, lines, w->thread);
}

/* Writes 64 rows of the tile, from their corner. */
DEV void write_rows(const struct gemm_args *args, struct gemm_writer *w, struct gemm_corner at,
                    const float *sums) {
  if (args->f32_out) {
    UNROLL for (uint32_t n = 0; n < COLS / 32; n++) {
      const struct smem block = staging_open(w);
      stage_f32(block, w->thread, sums + n * 16);
      staging_close(w);
      const uint32_t col = at.col + n * 32;
      if (TRANSPOSED) {
        write_block(args, w, block, at.row, col, 32);
        write_block(args, w, smem_add(block, GEMM_BLOCK_BYTES / 2), at.row + 32, col, 32);
      } else {
        write_block(args, w, block, col, at.row, 64);
      }
      if (w->issuer) bulk_commit();
    }
  } else {
    UNROLL for (uint32_t n = 0; n < COLS / 64; n++) {
      const struct smem block = staging_open(w);
      stage_bf16(block, w->thread, sums + n * 32);
      staging_close(w);
      const uint32_t col = at.col + n * 64;
      if (TRANSPOSED)
        write_block(args, w, block, at.row, col, 64);
      else
        write_block(args, w, block, col, at.row, 64);
      if (w->issuer) bulk_commit();
    }
  }
}

/* One of the two warpgroups that multiply. It has 64 * BLOCKS rows of the CTA's tile. */
DEV void consume(const struct gemm_args *args, struct gemm_shared shared, uint32_t consumer,
                 uint32_t rank, uint32_t cluster, uint32_t clusters) {
  const uint32_t count = gemm_schedule_count(&args->schedule);
  struct gemm_writer writer;
  writer.staging = smem_add(shared.staging, consumer * 2 * GEMM_BLOCK_BYTES);
  writer.consumer = consumer;
  writer.thread = thread_index() % 128;
  writer.issuer = elect_one() != 0 && writer.thread < 32;
  writer.turn = 0;
  struct gemm_ring ring = {0, 0};
  float sums[BLOCKS][ACCUMULATORS];
  for (uint32_t index = cluster; index < count; index += clusters) {
    ring = multiply(args, shared, consumer, writer.thread, ring, sums);
    struct gemm_corner corner = gemm_corner(&args->schedule, index, rank);
    corner.row += consumer * BLOCKS * 64;
    UNROLL for (uint32_t i = 0; i < BLOCKS; i++) {
      write_rows(args, &writer, corner, sums[i]);
      corner.row += 64;
    }
  }
  /* Shared memory outlives the stores' reads; the end of the kernel orders their writes. */
  if (writer.issuer) bulk_wait_group_read(0);
}

/* The whole kernel: a grid of clusters of two, 384 threads a CTA. */
DEV void gemm_kernel(const struct gemm_args *args) {
  const struct gemm_shared shared = gemm_shared_layout();
  const uint32_t warpgroup = warp_index() / 4, rank = cluster_rank();
  const uint32_t cluster = cta_index() / GEMM_CLUSTER, clusters = cta_count() / GEMM_CLUSTER;
  if (thread_index() == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      mbarrier_init(smem_add(shared.full, s * 8), 1);                 /* the producer */
      mbarrier_init(smem_add(shared.empty, s * 8), 2 * GEMM_CLUSTER); /* all consumers */
    }
    /* The barriers' initial state, before the arrivals and multicasts of both CTAs: it is all that
     * the relaxed barrier has to hand over. */
    fence_mbarrier_init(gemm_barriers);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (warpgroup == 0) {
    setmaxnreg_dec(PRODUCER_REGISTERS);
    if (warp_index() == 0 && elect_one()) produce(args, shared, rank, cluster, clusters);
  } else {
    setmaxnreg_inc(CONSUMER_REGISTERS);
    consume(args, shared, warpgroup - 1, rank, cluster, clusters);
  }
  /* Neither CTA leaves while the other may still write its memory or arrive on its barriers. */
  cluster_sync();
}

#ifdef GEMM_NAME
WEFT_KERNEL_CLUSTER(GEMM_NAME, GEMM_THREADS, GEMM_CLUSTER, struct gemm_args, args) {
  gemm_kernel(&args);
}
#endif
