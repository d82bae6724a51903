/* With DeepEP pull request 642's fence: .shared::cta, before the arrival on "empty". */
#define COMBINE_NAME       sm90_combine_pr642
#define COMBINE_FENCE_READ 1
#include "device/ep_study/combine_kernel.h"
