/* The arguments that all wrapper kernels take, for host and device. */
#ifndef WEFT_TESTS_GPU_WRAPPERS_WRAPPER_ARGS_H
#define WEFT_TESTS_GPU_WRAPPERS_WRAPPER_ARGS_H

#include "device/ptx/address.h"

struct wrapper_args {
  struct tensor_map map; /* of `in` or of `out`, as the test says */
  struct gmem in, out;
  uint32_t parameter; /* a variant of the kernel's own */
};

#endif
