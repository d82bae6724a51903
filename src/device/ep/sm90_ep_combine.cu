/* The kernel of combine. */
#include "device/ep/sm90_ep_combine.h"

WEFT_KERNEL(sm90_ep_combine, EP_COMBINE_THREADS, struct ep_combine_args, args) {
  ep_combine(&args);
}
