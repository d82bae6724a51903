/* Dispatch as E4M3, with few threads, for loom. */
#define EP_THREADS 64
#define EP_BATCH   6
#include "device/ep/sm90_ep_cast.h"

WEFT_KERNEL(sm90_ep_toy_fp8, EP_THREADS, struct ep_dispatch_args, args) {
  ep_dispatch_fp8(&args);
}
