/* Forward whose blocks go apart for one step; for the benchmark. */
#define FORWARD_NAME  sm90_forward_lead1
#define FORWARD_WGMMA wgmma_m64n192k16_bf16
#define FORWARD_LEAD  1
#include "device/ce/sm90_forward.h"
