/* A small GEMM for loom: MN-major operands, A shared, C transposed. The library does not ship it.
 */
#include "device/gemm/gemm.h"

#define GEMM_NAME  sm90_gemm_toy_mn
#define GEMM_SHAPE SM90_GEMM_TOY_MN
#include "device/gemm/sm90_gemm.h"
