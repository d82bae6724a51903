/* Plans and launches the backward kernel: from a call's arguments to workspace, tensor maps,
 * schedule and grid. It knows device/ce/backward.h and the driver, and nothing of plans or teams.
 */
#ifndef WEFT_CUDA_BACKWARD_H
#define WEFT_CUDA_BACKWARD_H

#include "cuda/cuda.h"
#include "device/ce/backward.h"

enum { CE_BACKWARD_MAPS = 10 };

/* One call, of at least one token and one row. Addresses of 0 are absent; strides in elements. */
struct ce_backward_problem {
  int64_t tokens, hidden, rows; /* rows of W that count */
  int64_t vocab, vocab_start, ignore_index;
  cuda_address x, w, target, stats, g_nll, g_entropy, g_lse, temperature_ptr, dx, dw;
  int64_t x_stride, w_stride, dx_stride, dw_stride;
  float temperature, softcap;
  int f16, target_i64, dx_f32, dw_f32, dw_accumulate;
  cuda_address errors, host_errors; /* as in struct backward_args; host_errors may be 0 */
  int count_targets;
  /* A step: the loss as well, for statistics and entropy gradients that are not there, and no soft
   * cap. */
  int keeps, wants_entropy;
  cuda_address nll, lse, entropy; /* each 0 where it is not wanted */
  int dx_in_turn;                 /* the kernel's warpgroups take dX in turn */
  uint64_t timeout_ns;
  uint32_t group; /* row tiles that walk the vocabulary together, 0: a good number */
  cuda_address trace;
  uint32_t trace_tiles;
};

/* The workspace: sizes and offsets in bytes, of a call of at most so many tokens. */
struct ce_backward_layout {
  uint32_t waves, wave_cols; /* wave_cols in tiles of 384 rows of W */
  int64_t dz, sums, constants, target_weight, residual, unscale, counters, bytes;
  int64_t counters_bytes;
  uint32_t sums_stride;
  int keeps; /* a step's, with these as well: */
  int64_t sums_of_tiles, target_logits;
};

/* As few waves as `dz_bytes` of dZ allow, and all of one size. Errors: WORKSPACE, where not even
 * one tile of the vocabulary fits. */
weft_status weft__ce_backward_layout(int64_t tokens, int64_t hidden, int64_t rows, int64_t dz_bytes,
                                     struct ce_backward_layout *layout);

/* The same for all of the workspace: as few waves as `bytes` allow. *least gets the fewest bytes
 * with which there is a layout; where bytes are less, the error is WORKSPACE. */
weft_status weft__ce_backward_fit(int64_t tokens, int64_t hidden, int64_t rows, int64_t bytes,
                                  struct ce_backward_layout *layout, int64_t *least);

/* The layout of a step. */
void weft__ce_step_layout(int64_t tokens, int64_t hidden, int64_t rows,
                          struct ce_backward_layout *layout);
/* backward_args.c, which needs neither messages nor a driver: the same as the layout, whose answer
 * is 0, or the fewest bytes of dZ; and the same as the plan of a problem that is in range. */
int64_t weft__ce_backward_cut(int64_t tokens, int64_t hidden, int64_t rows, int64_t dz_bytes,
                              struct ce_backward_layout *layout);
void weft__ce_backward_fill(const struct ce_backward_problem *problem,
                            const struct ce_backward_layout *layout, cuda_address workspace,
                            struct cuda_tensor tensors[CE_BACKWARD_MAPS],
                            struct backward_args *args);

/* All of `args` but its maps, which are made of `tensors` (weft__ce_backward_maps). Needs no
 * device. */
weft_status weft__ce_backward_plan(const struct ce_backward_problem *problem,
                                   const struct ce_backward_layout *layout, cuda_address workspace,
                                   struct cuda_tensor tensors[CE_BACKWARD_MAPS],
                                   struct backward_args *args);
/* The i-th map of `args`, of tensors[i]. A tensor of rank 0 is not used. */
struct tensor_map *weft__ce_backward_map(struct backward_args *args, int i);

struct ce_backward_kernel {
  struct cuda_kernel kernel, begin; /* begin goes before it */
  uint32_t clusters_max;
};
weft_status weft__ce_backward_load(struct device_images *images, const char *name, int device,
                                   struct ce_backward_kernel *out);
/* The library's kernel of a dtype, of backward or of a step. */
const char *weft__ce_backward_name(int f16);
const char *weft__ce_step_name(int f16);

struct ce_backward_launch {
  struct backward_args args;
  struct cuda_launch launch;
};
weft_status weft__ce_backward_prepare(const struct ce_backward_kernel *kernel,
                                      const struct ce_backward_problem *problem,
                                      const struct ce_backward_layout *layout,
                                      cuda_address workspace, struct ce_backward_launch *out);
/* Launches the small kernel that begins, and the kernel. */
weft_status weft__ce_backward_run(const struct ce_backward_kernel *kernel,
                                  struct ce_backward_launch *launch, cuda_stream stream);
/* The same in a launch a phase and wave; the yardstick of the one launch. */
weft_status weft__ce_backward_run_apart(const struct ce_backward_kernel *kernel,
                                        struct ce_backward_launch *launch, cuda_stream stream);

#endif
