/* Forward with the second consumer one step behind; for the benchmark. */
#define FORWARD_NAME  sm90_forward_lag1
#define FORWARD_WGMMA wgmma_m64n192k16_bf16
#define FORWARD_LAG   1
#include "device/ce/sm90_forward.h"
