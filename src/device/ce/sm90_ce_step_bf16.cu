/* Loss and gradients of ce in one pass, bf16. */
#define BACKWARD_KEEPS
#define BACKWARD_NAME sm90_ce_step_bf16
#include "device/ce/sm90_backward.h"
