/* dW: dZ^T * X, computed as its transpose. */
#include "device/gemm/gemm.h"

#define GEMM_NAME  sm90_gemm_dw
#define GEMM_SHAPE SM90_GEMM_DW
#include "device/gemm/sm90_gemm.h"
