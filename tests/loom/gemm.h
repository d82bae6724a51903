/* Arguments of the test GEMM, for both sides. */
#ifndef WEFT_TESTS_LOOM_GEMM_H
#define WEFT_TESTS_LOOM_GEMM_H

#include "device/ptx/address.h"

/* C[m][n] = sum over k of A[m][k] * B[n][k]; tiles of 128x128x64, clusters of two along m share B.
 */
struct gemm_args {
  struct tensor_map a, b, c; /* boxes: 64x128 of A, 64x64 of B, 64x64 of C; swizzle 128 B */
  uint32_t tiles_m, tiles_n, steps;
};

#define GEMM_STAGES     3
#define GEMM_SMEM_BYTES (1024 + GEMM_STAGES * 32768 + 32768)

#endif
