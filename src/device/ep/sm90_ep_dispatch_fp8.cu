/* The kernel of dispatch as E4M3. */
#include "device/ep/sm90_ep_cast.h"

WEFT_KERNEL(sm90_ep_dispatch_fp8, EP_THREADS, struct ep_dispatch_args, args) {
  ep_dispatch_fp8(&args);
}
