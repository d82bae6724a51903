/* The kernel of dispatch in bf16. */
#include "device/ep/sm90_ep_store.h"

WEFT_KERNEL(sm90_ep_dispatch_bf16, EP_THREADS, struct ep_dispatch_args, args) {
  ep_dispatch_bf16(&args);
}
