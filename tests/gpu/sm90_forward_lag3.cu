/* Forward with the second consumer 3 steps behind; for the benchmark. */
#define FORWARD_NAME  sm90_forward_lag3
#define FORWARD_WGMMA wgmma_m64n192k16_bf16
#define FORWARD_LAG   3
#include "device/ce/sm90_forward.h"
