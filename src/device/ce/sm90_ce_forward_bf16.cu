/* Forward of ce for X and W in bf16. */
#define FORWARD_NAME  sm90_ce_forward_bf16
#define FORWARD_WGMMA wgmma_m64n192k16_bf16
#include "device/ce/sm90_forward.h"
