/* With DeepEP pull request 632's fence: unqualified, before each bulk load, after the empty wait.
 */
#define COMBINE_NAME       sm90_combine_pr632
#define COMBINE_FENCE_LOAD 1
#include "device/ep_study/combine_kernel.h"
