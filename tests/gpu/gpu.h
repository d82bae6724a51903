/* What the GPU programs of the tests share: device 0's context, memory that is checked, and
 * counting. A program that finds no usable GPU exits with 77, which the test driver counts as
 * skipped. */
#ifndef WEFT_TESTS_GPU_GPU_H
#define WEFT_TESTS_GPU_GPU_H

#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"

enum { GPU_SKIPPED = 77, GPU_NON_BLOCKING = 1 /* flag of cuStreamCreate */ };

extern struct device_images test_device_images; /* the instances in this folder */

/* Opens device 0 and makes its primary context current, or exits. */
const struct cuda_driver *gpu_open(struct cuda_device_info *info);

/* These exit with a message when the driver fails: a test has no way on. */
void gpu_require(int result, const char *what); /* a CUresult */
void gpu_require_status(weft_status status, const char *what);
cuda_address gpu_allocate(size_t bytes);
cuda_address gpu_upload(const void *from, size_t bytes);
void gpu_download(void *to, cuda_address from, size_t bytes);
void gpu_free(cuda_address address);

#endif
