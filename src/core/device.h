/* What lower layers may ask of the GPU side, which stands above them. */
#ifndef WEFT_CORE_DEVICE_H
#define WEFT_CORE_DEVICE_H

#include <weft/weft.h>

/* Whether operations run on that GPU: WEFT_OK, or UNSUPPORTED with the reason. In src/cuda. */
weft_status weft__gpu_check(int gpu);

#endif
