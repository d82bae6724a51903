/* Loss and gradients of ce in one pass, f16. */
#define BACKWARD_F16
#define BACKWARD_KEEPS
#define BACKWARD_NAME sm90_ce_step_f16
#include "device/ce/sm90_backward.h"
