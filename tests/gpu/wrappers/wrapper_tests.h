/* The list of wrapper tests: which kernel, launched how, on which bytes. The GPU's runner and
 * loom's take the same list and the same inputs, and must leave the same bytes in the output. Runs
 * nothing. */
#ifndef WEFT_TESTS_GPU_WRAPPERS_WRAPPER_TESTS_H
#define WEFT_TESTS_GPU_WRAPPERS_WRAPPER_TESTS_H

#include <stddef.h>
#include <stdio.h>

#include "cuda/cuda.h"
#include "wrapper_args.h"

/* X(kernel, image) */
#define WRAPPER_KERNELS(X)                                                                         \
  X(wrapper_memory, sm90_wrappers_memory)                                                          \
  X(wrapper_atomics, sm90_wrappers_memory)                                                         \
  X(wrapper_dsmem, sm90_wrappers_memory)                                                           \
  X(wrapper_sync, sm90_wrappers_warp)                                                              \
  X(wrapper_matrix, sm90_wrappers_warp)                                                            \
  X(wrapper_convert, sm90_wrappers_warp)                                                           \
  X(wrapper_mbarrier, sm90_wrappers_async)                                                         \
  X(wrapper_bulk, sm90_wrappers_async)                                                             \
  X(wrapper_bulk_cluster, sm90_wrappers_async)                                                     \
  X(wrapper_tensor_load_2d, sm90_wrappers_async)                                                   \
  X(wrapper_tensor_load_3d, sm90_wrappers_async)                                                   \
  X(wrapper_tensor_multicast, sm90_wrappers_async)                                                 \
  X(wrapper_tensor_store_2d, sm90_wrappers_async)                                                  \
  X(wrapper_tensor_store_3d, sm90_wrappers_async)                                                  \
  X(wrapper_wgmma_64_bf16, sm90_wrappers_wgmma_64)                                                 \
  X(wrapper_wgmma_128_bf16, sm90_wrappers_wgmma_128)                                               \
  X(wrapper_wgmma_192_bf16, sm90_wrappers_wgmma_192)                                               \
  X(wrapper_wgmma_256_bf16, sm90_wrappers_wgmma_256)                                               \
  X(wrapper_wgmma_64_f16, sm90_wrappers_wgmma_64)                                                  \
  X(wrapper_wgmma_128_f16, sm90_wrappers_wgmma_128)                                                \
  X(wrapper_wgmma_192_f16, sm90_wrappers_wgmma_192)                                                \
  X(wrapper_wgmma_256_f16, sm90_wrappers_wgmma_256)

/* What fills the input. Whole numbers are small, so that all sums are exact. */
enum wrapper_fill { FILL_BYTES, FILL_FLOATS, FILL_WHOLE_F32, FILL_WHOLE_BF16, FILL_WHOLE_F16 };
enum wrapper_map { MAP_NONE, MAP_IN, MAP_OUT };

enum {
  WRAPPER_OUT_BYTE = 0xcd, /* fills the output beforehand */
  WRAPPER_TESTS_MAX = 320,
  WRAPPER_OUT_MAX = 65536,
};

struct wrapper_test {
  char name[64];
  const char *kernel, *image;
  uint32_t threads, cluster, shared_bytes; /* one cluster is launched */
  enum wrapper_fill fill;
  uint32_t in_bytes, out_bytes, parameter;
  int illegal; /* breaks its context on a GPU (CUDA_ERROR_ILLEGAL_INSTRUCTION); loom must say why */
  enum wrapper_map map;
  struct cuda_tensor tensor; /* its address is filled in by the runner */
};

/* Fills `tests` and says how many there are. */
size_t wrapper_tests_make(struct wrapper_test tests[WRAPPER_TESTS_MAX]);
/* Input of the i-th test. */
void wrapper_input(const struct wrapper_test *test, size_t i, unsigned char *in);
/* One line: name, bytes and a 64-bit hash of the output. */
void wrapper_write_line(FILE *file, const struct wrapper_test *test, const unsigned char *out);
/* The hash that a file of such lines has for a test: 0 when found, -1 when not. */
int wrapper_find_hash(const char *path, const char *name, uint64_t *hash);
uint64_t wrapper_hash(const unsigned char *bytes, size_t count);

#endif
