/* The backward pass of ce, f16. */
#define BACKWARD_F16
#define BACKWARD_NAME sm90_ce_backward_f16
#include "device/ce/sm90_backward.h"
