/* A GEMM that the library does not ship; see gemm_variants.h. */
#include "gemm_variants.h"

#define GEMM_NAME  sm90_gemm_dx_256x128
#define GEMM_SHAPE SM90_GEMM_DX_256X128
#include "device/gemm/sm90_gemm.h"
