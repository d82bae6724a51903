/* What the host and the device agree on for the GEMM kernels: their shapes and their arguments.
 * Knows no instructions.
 *
 * A GEMM computes C = A * B, C [rows, cols], summed over `depth`, bf16 operands, f32 sums. An
 * operand is K-major where depth is its contiguous dimension, MN-major where its rows (A) or
 * columns (B) are. A CTA computes 128 * blocks rows by `cols` columns; two CTAs form a cluster and
 * share one operand, of which each loads half and multicasts it to both: A, and they sit side by
 * side, or B, and they sit one above the other. */
#ifndef WEFT_DEVICE_GEMM_GEMM_H
#define WEFT_DEVICE_GEMM_GEMM_H

#include "device/gemm/schedule.h"
#include "device/ptx/address.h"

/* A shape: blocks of 64 rows a consumer warpgroup (1 or 2), columns of a CTA's tile, stages of the
 * ring, A MN-major, B MN-major, A shared (else B), C written transposed: element (row, col) goes to
 * C[col][row]. */
/*                          blocks cols stages A_mn B_mn share_A transposed */
#define SM90_GEMM_LOGITS 2, 192, 3, 0, 0, 1, 0 /* X * W^T: [tokens, H] by [V, H] */
#define SM90_GEMM_DX     1, 256, 4, 0, 1, 0, 0 /* dZ * W: [tokens, V] by [V, H] */
#define SM90_GEMM_DW                                                                               \
  2, 192, 3, 1, 1, 1, 1 /* (X^T * dZ)^T: [tokens, H] and [tokens, V] to [V, H]                     \
                         */

/* Small enough for loom: between them every kind of load, store and descriptor, with few
 * multiplications. Not part of the library. */
#define SM90_GEMM_TOY    1, 128, 2, 0, 0, 0, 0
#define SM90_GEMM_TOY_MN 2, 64, 2, 1, 1, 1, 1

enum {
  GEMM_CLUSTER = 2,
  GEMM_THREADS = 384,      /* a producer warpgroup and two that multiply */
  GEMM_DEPTH_STEP = 64,    /* one stage: 64 bf16 are the 128 bytes of the swizzle */
  GEMM_BLOCK_BYTES = 8192, /* 64 rows (or columns) of a stage */
  GEMM_STAGING_BLOCKS = 4, /* two a consumer warpgroup, for results on their way out */
};

/* Dynamic shared memory of a CTA: stages, staging, two barriers a stage. */
#define GEMM_SHARED_BYTES(blocks, cols, stages)                                                    \
  (((stages) * (2 * (blocks) + (cols) / 64) + GEMM_STAGING_BLOCKS) * GEMM_BLOCK_BYTES + (stages)*16)

/* C as it is stored: lines of elements that are contiguous. A tensor store writes whole pieces of
 * 16 bytes, also where the tensor ends inside one (seen on an H200; PTX says nothing), so the map
 * of C ends at the last whole piece of a line, and what is left goes by ordinary stores. */
struct gemm_result {
  struct gmem address;
  uint64_t stride_bytes;
  uint32_t lines;
  uint32_t whole, end; /* elements of a line: in whole pieces, in all */
};

struct gemm_args {
  /* K-major operands: 2-D [rows, depth], boxes of 64 of depth by the rows that one CTA loads.
   * MN-major ones: 2-D [depth, rows] with boxes of 64 by 64, or, where `wide`, 3-D
   * [rows / 64, depth, 64], which takes one load instead of one every 64 rows and needs
   * rows % 64 == 0. C: boxes of 128 bytes by 64 (32 where it is transposed and f32). */
  struct tensor_map a, b, c;
  struct gemm_schedule schedule; /* in tiles of a cluster */
  struct gemm_result result;
  uint32_t depth_steps;
  uint32_t a_wide, b_wide;
  uint32_t f32_out; /* C is f32, else bf16 */
};

#endif
