/* Forward with the two consumers in step; for the benchmark. */
#define FORWARD_NAME  sm90_forward_lag0
#define FORWARD_WGMMA wgmma_m64n192k16_bf16
#define FORWARD_LAG   0
#include "device/ce/sm90_forward.h"
