/* Logits: X * W^T. */
#include "device/gemm/gemm.h"

#define GEMM_NAME  sm90_gemm_logits
#define GEMM_SHAPE SM90_GEMM_LOGITS
#include "device/gemm/sm90_gemm.h"
