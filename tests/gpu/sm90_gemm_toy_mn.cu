/* A GEMM that the library does not ship; see gemm_variants.h. */
#include "gemm_variants.h"

#define GEMM_NAME  sm90_gemm_toy_mn
#define GEMM_SHAPE SM90_GEMM_TOY_MN
#include "device/gemm/sm90_gemm.h"
