/* What stands between dispatch and combine in loom's protocols: a kernel that plays the experts, so
 * that ordinary loads and stores of received rows and of combine's input take part. Knows the order
 * of rows by the counts that dispatch gave. */
#ifndef WEFT_DEVICE_EP_TOY_H
#define WEFT_DEVICE_EP_TOY_H

#include "device/host_device.h"
#include "device/ptx/address.h"

enum { EP_TOY_THREADS = 64 };

struct ep_toy_args {
  struct gmem recv_x, recv_weights, counts, offsets; /* as dispatch left them */
  struct gmem y, row_gradient;
  uint32_t fp8, hidden, experts_local, first_expert;
};

/* What expert `expert` makes of a channel: of a bf16, or of a code. */
HOST_DEVICE uint32_t ep_toy_of_bf16(uint32_t x, uint32_t expert) {
  return x ^ (expert & 1) << 15;
}
HOST_DEVICE uint32_t ep_toy_of_code(uint32_t code, uint32_t expert) {
  return (0x3f80u + (code & 0x7f)) ^ ((code >> 7 ^ expert) & 1) << 15;
}
/* And the value beside the row. */
HOST_DEVICE float ep_toy_gradient(float weight, uint32_t expert) {
  return 2 * weight + (float)expert;
}

#endif
