/* The GEMM kernels that tests and the benchmark run: those of the library, and tiles that were
 * tried beside them. Each variant has an instance file of its name, here or there. Shapes:
 * device/gemm/gemm.h. */
#ifndef WEFT_TESTS_GPU_GEMM_VARIANTS_H
#define WEFT_TESTS_GPU_GEMM_VARIANTS_H

#include "device/gemm/gemm.h"

#define SM90_GEMM_LOGITS_128X256 1, 256, 4, 0, 0, 0, 0
#define SM90_GEMM_LOGITS_256X128 2, 128, 4, 0, 0, 1, 0
#define SM90_GEMM_DX_256X128     2, 128, 4, 0, 1, 1, 0
#define SM90_GEMM_DX_256X192     2, 192, 3, 0, 1, 1, 0
#define SM90_GEMM_DW_128X256     1, 256, 4, 1, 1, 0, 0

/* X(name, shape, product): product is logits, dx or dw where the benchmark times it, else none. */
#define GEMM_VARIANTS(X)                                                                           \
  X(sm90_gemm_logits, SM90_GEMM_LOGITS, LOGITS)                                                    \
  X(sm90_gemm_dx, SM90_GEMM_DX, DX)                                                                \
  X(sm90_gemm_dw, SM90_GEMM_DW, DW)                                                                \
  X(sm90_gemm_logits_128x256, SM90_GEMM_LOGITS_128X256, LOGITS)                                    \
  X(sm90_gemm_logits_256x128, SM90_GEMM_LOGITS_256X128, LOGITS)                                    \
  X(sm90_gemm_dx_256x128, SM90_GEMM_DX_256X128, DX)                                                \
  X(sm90_gemm_dx_256x192, SM90_GEMM_DX_256X192, DX)                                                \
  X(sm90_gemm_dw_128x256, SM90_GEMM_DW_128X256, DW)                                                \
  X(sm90_gemm_toy, SM90_GEMM_TOY, NONE)                                                            \
  X(sm90_gemm_toy_mn, SM90_GEMM_TOY_MN, NONE)

#endif
