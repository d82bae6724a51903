/* With the narrowest fences that are enough. */
#define COMBINE_NAME           sm90_combine_narrow
#define COMBINE_FENCE_ACQUIRED 1
#define COMBINE_FENCE_READ     1
#include "device/ep_study/combine_kernel.h"
