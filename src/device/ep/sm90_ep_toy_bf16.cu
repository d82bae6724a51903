/* Dispatch in bf16, with few threads, for loom. */
#define EP_THREADS 64
#define EP_BATCH   6
#include "device/ep/sm90_ep_store.h"

WEFT_KERNEL(sm90_ep_toy_bf16, EP_THREADS, struct ep_dispatch_args, args) {
  ep_dispatch_bf16(&args);
}
