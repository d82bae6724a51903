/* Arguments of the probe kernel, for host and device. */
#ifndef WEFT_DEVICE_PROBE_PROBE_H
#define WEFT_DEVICE_PROBE_PROBE_H

#include "device/ptx/address.h"

enum { PROBE_CLUSTER = 2, PROBE_THREADS = 32, PROBE_SHARED_BYTES = 16 };

struct probe_args {
  struct gmem heard; /* u32 a CTA: seed + the index of the other CTA of its cluster */
  uint32_t seed;
};

#endif
