/* dX: dZ * W. */
#include "device/gemm/gemm.h"

#define GEMM_NAME  sm90_gemm_dx
#define GEMM_SHAPE SM90_GEMM_DX
#include "device/gemm/sm90_gemm.h"
