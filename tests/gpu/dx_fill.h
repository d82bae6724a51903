/* Stands for backward in tests of the reduction of dX: a rank's part, made up. */
#ifndef WEFT_TESTS_GPU_DX_FILL_H
#define WEFT_TESTS_GPU_DX_FILL_H

#include "device/host_device.h"
#include "device/ptx/address.h"

enum { DX_FILL_THREADS = 64 };

struct dx_fill_args {
  struct gmem part;                      /* f32 [tokens, stride] */
  uint32_t tokens, stride, rank, launch; /* columns up to the stride are written */
};

/* Numbers whose sum depends on the order of the ranks. */
HOST_DEVICE float dx_fill_value(uint32_t rank, uint32_t launch, uint32_t row, uint32_t column) {
  uint32_t x = rank * 2654435761u ^ launch * 40503u ^ row * 2246822519u ^ column * 3266489917u;
  x ^= x >> 15;
  x *= 0x7feb352du;
  x ^= x >> 13;
  return ((float)(int32_t)(x >> 8) - 8388608.0f) * (rank % 2 ? 1e-3f : 1.0f);
}

#endif
