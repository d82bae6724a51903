/* Arguments of the kernels that make the loss head's data and compare its results, for host and
 * device. */
#ifndef WEFT_TESTS_GPU_CE_DATA_KERNELS_H
#define WEFT_TESTS_GPU_CE_DATA_KERNELS_H

#include "device/ptx/address.h"

enum { CE_DATA_THREADS = 256, CE_DATA_SHARED_BYTES = 3 * CE_DATA_THREADS * 4 };

/* One CTA a row of f32 logits: f32 m, sum e^(z-m), z[target], sum e^(z-m) (z-m). */
struct ce_stats_args {
  struct gmem logits, target, stats; /* target: i64 */
  uint32_t cols;
};

/* One CTA a row: bf16 g * (softmax - onehot(target)) of f32 logits. */
struct ce_gradient_args {
  struct gmem logits, target, stats, g, dz;
  uint32_t cols;
};

/* Adds sum (left - right)^2 and sum right^2 over bf16 pairs into two f32. */
struct ce_distance_args {
  struct gmem left, right, sums;
  uint64_t count;
};

#endif
