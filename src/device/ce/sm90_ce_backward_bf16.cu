/* The backward pass of ce, bf16. */
#define BACKWARD_NAME sm90_ce_backward_bf16
#include "device/ce/sm90_backward.h"
