/* Plans and launches the GEMM kernels: from matrices in memory to tensor maps, schedule and grid.
 * It knows the shapes of device/gemm/gemm.h and the driver, not what the matrices mean. */
#ifndef WEFT_CUDA_GEMM_H
#define WEFT_CUDA_GEMM_H

#include "cuda/cuda.h"
#include "device/gemm/gemm.h"

/* As in device/gemm/gemm.h: `struct gemm_shape s = {SM90_GEMM_LOGITS};` */
struct gemm_shape {
  uint32_t blocks, cols, stages, a_mn, b_mn, share_a, transposed;
};

/* Row-major storage: `stride` elements from one row to the next. 16-byte aligned, as is every row.
 */
struct gemm_matrix {
  uint64_t address;
  int64_t stride;
};

/* C [rows, cols] = A * B, summed over depth. Stored: A [rows, depth], or [depth, rows] where it is
 * MN-major; B [cols, depth], or [depth, cols]; C [rows, cols], or [cols, rows] where the shape is
 * transposed. */
struct gemm_problem {
  int64_t rows, cols, depth; /* each at least 1, below 2^31 - 2^16 */
  struct gemm_matrix a, b, c;
  int f32_out;        /* C is f32, else bf16; the operands are bf16 */
  int64_t group_rows; /* rows of C that are walked together, 0 for all (schedule.h) */
};

/* The three tensors, in the order a, b, c, and all of `args` but their maps. Needs no device. */
weft_status weft__gemm_plan(const struct gemm_shape *shape, const struct gemm_problem *problem,
                            struct cuda_tensor tensors[3], struct gemm_args *args);

/* A kernel of one shape on one device. */
struct gemm_kernel {
  struct gemm_shape shape;
  struct cuda_kernel kernel;
  uint32_t clusters_max; /* that fit on the device at once */
};
weft_status weft__gemm_load(struct device_images *images, const char *name,
                            const struct gemm_shape *shape, int device, struct gemm_kernel *out);

/* A problem made ready for a kernel; it can be launched many times. */
struct gemm_launch {
  struct gemm_args args;
  struct cuda_launch launch;
};
weft_status weft__gemm_prepare(const struct gemm_kernel *kernel, const struct gemm_problem *problem,
                               struct gemm_launch *out);
weft_status weft__gemm_run(const struct gemm_kernel *kernel, struct gemm_launch *launch,
                           cuda_stream stream);

#endif
