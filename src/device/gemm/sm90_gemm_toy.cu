/* A small GEMM for loom: K-major operands, B shared. The library does not ship it. */
#include "device/gemm/gemm.h"

#define GEMM_NAME  sm90_gemm_toy
#define GEMM_SHAPE SM90_GEMM_TOY
#include "device/gemm/sm90_gemm.h"
