/* Addresses that other threads can see, as types that C cannot dereference, and the tensor map as
 * 128 opaque bytes. Plain C11 and C++: host code includes this file to fill kernel arguments. It
 * may know nothing else of the device. */
#ifndef WEFT_DEVICE_PTX_ADDRESS_H
#define WEFT_DEVICE_PTX_ADDRESS_H

#include <stdint.h>

/* Byte address in the shared memory of the executing CTA (PTX .shared::cta). */
struct smem {
  uint32_t a;
};

/* Byte address in the shared memory of some CTA of the cluster (PTX .shared::cluster). */
struct dsmem {
  uint32_t a;
};

/* Byte address in global memory, of this GPU or of a peer. */
struct gmem {
  uint64_t a;
};

/* What cuTensorMapEncodeTiled writes, or loom_tensor_map_encode for loom. A kernel argument. */
struct tensor_map {
  uint64_t opaque[16];
} __attribute__((aligned(64)));

#endif
