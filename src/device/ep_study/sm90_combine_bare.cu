/* The combine study without fences. */
#define COMBINE_NAME sm90_combine_bare
#include "device/ep_study/combine_kernel.h"
