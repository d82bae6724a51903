/* Plans and launches the backward kernel; see backward.h. */
#include "cuda/backward.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

static int64_t tiles_of(int64_t count, int64_t tile) {
  return (count + tile - 1) / tile;
}

weft_status weft__ce_backward_layout(int64_t tokens, int64_t hidden, int64_t rows, int64_t dz_bytes,
                                     struct ce_backward_layout *l) {
  const int64_t least = weft__ce_backward_cut(tokens, hidden, rows, dz_bytes, l);
  if (least != 0)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "backward has %lld bytes for the gradients of the logits, expected at least "
                      "%lld",
                      (long long)dz_bytes, (long long)least);
  return WEFT_OK;
}

weft_status weft__ce_backward_fit(int64_t tokens, int64_t hidden, int64_t rows, int64_t bytes,
                                  struct ce_backward_layout *l, int64_t *least) {
  const int64_t col_bytes = tokens * BACKWARD_TILE_COLS * 2;
  const int64_t cols = tiles_of(rows, BACKWARD_TILE_COLS);
  WEFT__TRY(weft__ce_backward_layout(tokens, hidden, rows, col_bytes, l));
  *least = l->bytes;
  WEFT__TRY(weft__ce_backward_layout(tokens, hidden, rows, cols * col_bytes, l));
  if (l->bytes < *least) *least = l->bytes; /* one wave needs no sums */
  if (bytes < *least)
    return weft__fail(WEFT_ERR_WORKSPACE, "backward has %lld bytes, expected at least %lld",
                      (long long)bytes, (long long)*least);
  for (int64_t waves = 2; l->bytes > bytes; waves++)
    WEFT__TRY(weft__ce_backward_layout(tokens, hidden, rows, tiles_of(cols, waves) * col_bytes, l));
  return WEFT_OK;
}

weft_status weft__ce_backward_plan(const struct ce_backward_problem *p,
                                   const struct ce_backward_layout *l, cuda_address workspace,
                                   struct cuda_tensor tensors[CE_BACKWARD_MAPS],
                                   struct backward_args *args) {
  const int64_t limit = (INT64_C(1) << 31) - (1 << 16); /* coordinates are int32, tiles overhang */
  if (p->tokens < 1 || p->rows < 1 || p->hidden < 1 || p->tokens > limit || p->rows > limit ||
      p->hidden > limit)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "backward of %lld tokens, %lld hidden, %lld rows of W, expected each from 1 "
                      "to 2^31 - 2^16",
                      (long long)p->tokens, (long long)p->hidden, (long long)p->rows);
  if (p->keeps && (!l->keeps || p->softcap > 0 || p->g_entropy != 0))
    return weft__fail(WEFT_ERR_UNSUPPORTED, "a step keeps exponentials in a layout of its own, "
                                            "without a soft cap and an entropy gradient");
  weft__ce_backward_fill(p, l, workspace, tensors, args);
  const struct backward_schedule s = args->schedule;
  const double tiles = (double)s.row_tiles * (s.col_tiles + (double)s.h_tiles * l->waves) +
                       (double)s.col_tiles * s.h_tiles + s.row_tiles + s.left;
  if (tiles > (double)INT32_MAX)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "backward of more than 2^31 tiles");
  return WEFT_OK;
}

const char *weft__ce_backward_name(int f16) {
  return f16 ? "sm90_ce_backward_f16" : "sm90_ce_backward_bf16";
}

const char *weft__ce_step_name(int f16) {
  return f16 ? "sm90_ce_step_f16" : "sm90_ce_step_bf16";
}

weft_status weft__ce_backward_load(struct device_images *images, const char *name, int device,
                                   struct ce_backward_kernel *out) {
  const struct cuda_launch launch = {.ctas = 1024 * BACKWARD_CLUSTER, /* more than fit anywhere */
                                     .threads = BACKWARD_THREADS,
                                     .cluster = BACKWARD_CLUSTER,
                                     .shared_bytes = STEP_SHARED_BYTES};
  char begin[96];
  snprintf(begin, sizeof begin, "%s_begin", name);
  WEFT__TRY(weft__cuda_kernel_load(images, name, name, device, STEP_SHARED_BYTES, &out->kernel));
  WEFT__TRY(weft__cuda_kernel_load(images, name, begin, device, BACKWARD_BEGIN_SHARED_BYTES,
                                   &out->begin));
  int clusters = 0;
  WEFT__TRY(weft__cuda_max_clusters(&out->kernel, &launch, &clusters));
  if (clusters < 1)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "%s: no cluster of it fits on this device", name);
  out->clusters_max = (uint32_t)clusters;
  return WEFT_OK;
}

weft_status weft__ce_backward_prepare(const struct ce_backward_kernel *kernel,
                                      const struct ce_backward_problem *problem,
                                      const struct ce_backward_layout *layout,
                                      cuda_address workspace, struct ce_backward_launch *out) {
  struct cuda_tensor tensors[CE_BACKWARD_MAPS];
  WEFT__TRY(weft__ce_backward_plan(problem, layout, workspace, tensors, &out->args));
  for (int i = 0; i < CE_BACKWARD_MAPS; i++)
    if (tensors[i].rank != 0)
      WEFT__TRY(weft__cuda_tensor_map_encode(&tensors[i], weft__ce_backward_map(&out->args, i)));
  out->launch = (struct cuda_launch){.ctas = kernel->clusters_max * BACKWARD_CLUSTER,
                                     .threads = BACKWARD_THREADS,
                                     .cluster = BACKWARD_CLUSTER,
                                     .shared_bytes =
                                         layout->keeps ? STEP_SHARED_BYTES : BACKWARD_SHARED_BYTES,
                                     .cooperative = 1};
  return WEFT_OK;
}

/* Sets the counters to zero, and finds rows of X that must not be multiplied by zero. */
static weft_status begin(const struct ce_backward_kernel *kernel,
                         struct ce_backward_launch *launch) {
  const struct cuda_launch grid = {.ctas = launch->args.schedule.row_tiles *
                                           (BACKWARD_TILE / BACKWARD_DEPTH_STEP),
                                   .threads = BACKWARD_BEGIN_THREADS,
                                   .cluster = 1,
                                   .shared_bytes = BACKWARD_BEGIN_SHARED_BYTES,
                                   .stream = launch->launch.stream};
  return weft__cuda_launch(&kernel->begin, &grid, &launch->args);
}

weft_status weft__ce_backward_run(const struct ce_backward_kernel *kernel,
                                  struct ce_backward_launch *launch, cuda_stream stream) {
  launch->launch.stream = stream;
  WEFT__TRY(begin(kernel, launch));
  return weft__cuda_launch(&kernel->kernel, &launch->launch, &launch->args);
}

weft_status weft__ce_backward_run_apart(const struct ce_backward_kernel *kernel,
                                        struct ce_backward_launch *launch, cuda_stream stream) {
  struct backward_args args = launch->args;
  const struct backward_schedule *s = &args.schedule;
  launch->launch.stream = stream;
  WEFT__TRY(begin(kernel, launch));
  args.first = 0;
  args.end = s->row_tiles;
  for (uint32_t wave = 0, phase = 0;;) {
    if (args.end > args.first) {
      WEFT__TRY(weft__cuda_check(
          weft__cuda_driver()->cuMemsetD8Async(args.counters.a + BACKWARD_NEXT * 4, 0, 4, stream),
          "cuMemsetD8Async"));
      WEFT__TRY(weft__cuda_launch(&kernel->kernel, &launch->launch, &args));
    }
    if (wave == backward_waves(s)) return WEFT_OK;
    const uint32_t cols = backward_wave_cols(s, wave);
    args.first = args.end;
    args.end += phase == 0   ? s->row_tiles * cols
                : phase == 1 ? s->dx * s->row_tiles * s->h_tiles
                             : s->dw * cols * s->h_tiles;
    phase = (phase + 1) % 3;
    wave += phase == 0;
  }
}
