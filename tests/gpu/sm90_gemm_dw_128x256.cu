/* A GEMM that the library does not ship; see gemm_variants.h. */
#include "gemm_variants.h"

#define GEMM_NAME  sm90_gemm_dw_128x256
#define GEMM_SHAPE SM90_GEMM_DW_128X256
#include "device/gemm/sm90_gemm.h"
