/* Results on their way from a consumer warpgroup's registers to memory: two blocks of shared memory
 * take turns, filled by the warpgroup and emptied by tensor stores of a warp of their own, the
 * storer. Knows wgmma's register layout (ptx/wgmma.h) and the swizzle of the tensor stores.
 *
 * A block is 64 lines of 128 bytes whose 16-byte pieces are permuted by the line's number, as the
 * store's swizzle undoes it: no bank conflicts on the way in. */
#ifndef WEFT_DEVICE_CE_SM90_STAGING_H
#define WEFT_DEVICE_CE_SM90_STAGING_H

#include "device/ptx/ptx.h"

enum {
  STAGING_EMPTY = 1, /* barriers 1-4: consumer * 2 + turn */
  STAGING_FULL = 5,  /* barriers 5-8 */
  STAGING_OWN = 9,   /* barriers 9-10: the consumer's own */
  STAGING_THREADS = 128 + 32,
  STAGING_BLOCK = 8192
};

/* Either side's view. */
struct staging {
  struct smem base; /* of this consumer's two blocks */
  uint32_t consumer, turn;
};

DEV struct smem staging_block(const struct staging *s) {
  return smem_add(s->base, s->turn * STAGING_BLOCK);
}

/* Consumer: opens the block whose turn it is: its last tensor store has read it. */
DEV struct smem staging_open(const struct staging *s) {
  bar_sync(STAGING_EMPTY + s->consumer * 2 + s->turn, STAGING_THREADS);
  return staging_block(s);
}

/* Consumer: hands the block over. */
DEV void staging_close(struct staging *s) {
  /* Orders this thread's stores to the block before the tensor store that reads it. */
  fence_proxy_async_shared_cta(backward_staging);
  bar_arrive(STAGING_FULL + s->consumer * 2 + s->turn, STAGING_THREADS);
  s->turn ^= 1;
}

/* Storer, all lanes: gives the block whose turn it is and takes it back filled. The lane that
 * issues the stores has committed one group a block. */
DEV struct smem staging_take(const struct staging *s, uint32_t issuer) {
  if (issuer) bulk_wait_group_read(1);
  bar_arrive(STAGING_EMPTY + s->consumer * 2 + s->turn, STAGING_THREADS);
  bar_sync(STAGING_FULL + s->consumer * 2 + s->turn, STAGING_THREADS);
  return staging_block(s);
}

DEV struct smem staged(struct smem block, uint32_t line, uint32_t piece) {
  return smem_add(block, line * 128 + ((piece ^ (line & 7)) << 4));
}

#ifdef BACKWARD_F16
#define pack_half2 pack_f16x2
#else
#define pack_half2 pack_bf16x2
#endif

/* 64 rows by 64 columns in 16 bits, 16 pairs of columns a thread: lines are rows, or columns where
 * transposed. */
DEV void stage_pairs(struct smem block, uint32_t thread, const uint32_t *pairs, int transposed) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  UNROLL for (uint32_t q = 0; q < 4; q++) {
    struct u32x4 v;
    v.x = pairs[q * 4];
    v.y = pairs[q * 4 + 1];
    v.z = pairs[q * 4 + 2];
    v.w = pairs[q * 4 + 3];
    /* Lane l gives the address of row l % 8 of 8x8 matrix l / 8; matrices 1 and 3 are 8 rows
     * below 0 and 2, matrices 2 and 3 are 8 columns to the right. */
    const uint32_t below = (lane / 8) % 2, right = lane / 16, i = lane % 8;
    if (transposed)
      stmatrix_x4_trans(staged(block, q * 16 + right * 8 + i, warp * 2 + below), v);
    else
      stmatrix_x4(staged(block, warp * 16 + below * 8 + i, q * 2 + right), v);
  }
}

/* The same of sums, in the instance's dtype. */
DEV void stage_half(struct smem block, uint32_t thread, const float *sums, int transposed) {
  uint32_t pairs[16];
  UNROLL for (uint32_t i = 0; i < 16; i++) pairs[i] = pack_half2(sums[2 * i], sums[2 * i + 1]);
  stage_pairs(block, thread, pairs, transposed);
}

/* 64 rows by 32 columns in f32. Transposed: two blocks of 32 lines, for rows 0-31 and 32-63. Lines
 * eight apart have the same permutation, and their addresses differ by a constant. */
DEV void stage_f32(struct smem block, uint32_t thread, const float *sums, int transposed) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  if (transposed) {
    const struct smem half = smem_add(block, warp / 2 * (STAGING_BLOCK / 2));
    UNROLL for (uint32_t below = 0; below < 2; below++) {
      const uint32_t row = warp % 2 * 16 + below * 8 + lane / 4;
      UNROLL for (uint32_t e = 0; e < 2; e++) {
        const struct smem at = smem_add(staged(half, lane % 4 * 2 + e, row / 4), row % 4 * 4);
        UNROLL for (uint32_t j = 0; j < 4; j++)
            st_shared_f32(smem_add(at, j * 1024), sums[j * 4 + below * 2 + e]);
      }
    }
    return;
  }
  UNROLL for (uint32_t j = 0; j < 4; j++) {
    const struct smem at =
        smem_add(staged(block, warp * 16 + lane / 4, j * 2 + lane % 4 / 2), lane % 2 * 8);
    UNROLL for (uint32_t below = 0; below < 2; below++) {
      struct f32x2 pair;
      pair.x = sums[j * 4 + below * 2];
      pair.y = sums[j * 4 + below * 2 + 1];
      st_shared_f32x2(smem_add(at, below * 1024), pair);
    }
  }
}

#endif
