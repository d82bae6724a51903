/* The multiplication of one tile by a consumer warpgroup, and the loading of its stages, for one
 * shape. Included once for each shape, with these defined, and undefined again at its end:
 *
 *   SHAPE(name)      the name of a function of this shape
 *   BLOCKS, COLS     blocks of 64 rows a warpgroup, columns of a CTA's tile
 *   STAGES           of the ring
 *   A_MN, B_MN       1 where the operand's depth is not its contiguous dimension
 *   SHARE_A          1 where the cluster's CTAs share A, else they share B
 *   IN_TURN          1 where the CTA's warpgroups take tiles of their own in turn, so that one
 *                    multiplies while the other works on its results; 0 where they share a tile,
 *                    one above the other
 *   WGMMA            the instruction
 *
 * It knows the ring of sm90_ring.h and nothing of what the matrices mean. */
enum {
  SHAPE(ROWS) = (IN_TURN ? 64 : 128) * BLOCKS,
  SHAPE(A_BYTES) = SHAPE(ROWS) * 128,
  SHAPE(B_BYTES) = COLS / 64 * BACKWARD_BLOCK_BYTES,
  SHAPE(A_LOADED) = SHARE_A ? SHAPE(ROWS) / 2 : SHAPE(ROWS),
  SHAPE(B_LOADED) = SHARE_A ? COLS : COLS / 2,
};

/* One thread. Loads one stage: 64 of depth from the two depths, rows of A from `row` and columns of
 * B from `col`, which are those of this CTA's tile. */
DEV struct ring SHAPE(load)(struct smem stages, struct ring_barriers barriers, struct ring ring,
                            uint32_t rank, const struct operand *a, const struct operand *b,
                            uint32_t row, uint32_t col) {
  const uint32_t a_first = SHARE_A ? rank * SHAPE(A_LOADED) : 0;
  const uint32_t b_first = SHARE_A ? 0 : rank * SHAPE(B_LOADED);
  const struct smem full = smem_add(barriers.full, ring.stage * 8);
  const struct smem stage =
      smem_add(stages, ring.stage * (uint32_t)(SHAPE(A_BYTES) + SHAPE(B_BYTES)));
  /* Both CTAs' warpgroups have read the stage, which the multicast is about to overwrite in both.
   * A fresh barrier counts as one whose odd phase has completed. */
  mbarrier_wait(smem_add(barriers.empty, ring.stage * 8), ring.parity ^ 1);
  mbarrier_arrive_expect_tx(full, SHAPE(A_BYTES) + SHAPE(B_BYTES));
  load_operand(a, smem_add(stage, a_first * 128), full, row + a_first, SHAPE(A_LOADED), A_MN,
               SHARE_A);
  load_operand(b, smem_add(stage, SHAPE(A_BYTES) + b_first * 128), full, col + b_first,
               SHAPE(B_LOADED), B_MN, !SHARE_A);
  return ring_next(ring, STAGES);
}

/* Before another shape's stages overlay this one's: all of them have been read, in both CTAs. */
DEV void SHAPE(drain)(struct ring_barriers barriers, struct ring ring) {
  for (uint32_t i = 0; i < STAGES; i++) {
    mbarrier_wait(smem_add(barriers.empty, ring.stage * 8), ring.parity ^ 1);
    ring = ring_next(ring, STAGES);
  }
}

/* Issues the products of all steps into `sums`, COLS / 2 for each block of rows. Stages are
 * released one step late, so that the tensor cores always have the next step queued; the last one
 * is left running, for SHAPE(finish). */
DEV struct ring SHAPE(multiply)(struct smem stages, struct ring_barriers barriers, struct ring ring,
                                uint32_t steps, uint32_t consumer, uint32_t thread, float *sums) {
  /* Next 64 of rows or columns 8192 bytes on (MN-major), next 8 1024; 16 of depth are 32 bytes
   * (K-major) or 16 lines of 128 (MN-major). Descriptors count in units of 16 bytes. */
  const uint64_t a0 =
      wgmma_desc(smem_add(stages, IN_TURN ? 0 : consumer * BLOCKS * BACKWARD_BLOCK_BYTES),
                 BACKWARD_BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B);
  const uint64_t b0 =
      wgmma_desc(smem_add(stages, SHAPE(A_BYTES)), BACKWARD_BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B);
  /* Written by the program, not by a first product that ignores what is there: the compiler would
   * take that for a use, and keep the sums of the tile before, of every shape, all the time. */
  UNROLL for (uint32_t i = 0; i < BLOCKS * (COLS / 2); i++) sums[i] = 0.0f;
  wgmma_pin(sums, BLOCKS * (COLS / 2));
  for (uint32_t step = 0; step < steps; step++) {
    mbarrier_wait(smem_add(barriers.full, ring.stage * 8), ring.parity);
    const uint32_t at = ring.stage * ((uint32_t)(SHAPE(A_BYTES) + SHAPE(B_BYTES)) / 16);
    const uint64_t a = a0 + at, b = b0 + at;
    wgmma_fence();
    UNROLL for (uint32_t k = 0; k < BACKWARD_DEPTH_STEP / 16; k++) {
      UNROLL for (uint32_t i = 0; i < BLOCKS; i++) {
        WGMMA(sums + i * (COLS / 2), a + i * (BACKWARD_BLOCK_BYTES / 16) + k * (A_MN ? 128 : 2),
              b + k * (B_MN ? 128 : 2), 1, A_MN, B_MN);
      }
    }
    wgmma_commit();
    if (step != 0) {
      wgmma_wait(1);
      ring_release(barriers, (ring.stage == 0 ? STAGES : ring.stage) - 1, thread);
    }
    ring = ring_next(ring, STAGES);
  }
  return ring;
}

/* Waits for the last products, which are in `sums` then. `ring` is what SHAPE(multiply) answered.
 */
DEV void SHAPE(finish)(struct ring_barriers barriers, struct ring ring, uint32_t thread,
                       float *sums) {
  wgmma_wait(0);
  ring_release(barriers, (ring.stage == 0 ? STAGES : ring.stage) - 1, thread);
  wgmma_pin(sums, BLOCKS * (COLS / 2));
}

#undef SHAPE
#undef BLOCKS
#undef COLS
#undef STAGES
#undef A_MN
#undef B_MN
#undef SHARE_A
#undef IN_TURN
#undef WGMMA
