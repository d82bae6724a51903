/* Arguments of the kernels that make the benchmark's data, for host and device. */
#ifndef WEFT_TESTS_GPU_BENCH_KERNELS_H
#define WEFT_TESTS_GPU_BENCH_KERNELS_H

#include "device/ptx/address.h"

enum { BENCH_THREADS = 256 };

/* bf16 values, normal with mean 0 and standard deviation `scale`; `count` is a multiple of 8. */
struct fill_args {
  struct gmem to;
  uint64_t count;
  uint32_t seed;
  float scale;
};

/* One CTA a row: replaces bf16 logits by scale * (softmax - onehot(target)), where the target of
 * row r is hash(seed, r) % cols. `cols` is a multiple of 2. */
struct softmax_args {
  struct gmem rows;
  uint32_t cols, seed;
  float scale;
};
enum { SOFTMAX_SHARED_BYTES = 2 * BENCH_THREADS * 4 };

/* Counts into `differ` (u64) the bf16 pairs that are further apart than `relative` times the larger
 * one plus `absolute`, and NaN. `count` is even. */
struct compare_args {
  struct gmem left, right, differ;
  uint64_t count;
  float relative, absolute;
};

#endif
