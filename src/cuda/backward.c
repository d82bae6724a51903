/* Plans and launches the backward kernel; see backward.h. */
#include "cuda/backward.h"

#include <string.h>

#include "core/error.h"
#include "device/ce/step_schedule.h"

static int64_t tiles_of(int64_t count, int64_t tile) {
  return (count + tile - 1) / tile;
}

static int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

static int64_t carve(int64_t *end, int64_t bytes) {
  const int64_t start = *end;
  *end += aligned(bytes);
  return start;
}

/* What a number of waves asks for; l->waves and l->wave_cols are set. */
static void lay_out(int64_t tokens, int64_t hidden, struct ce_backward_layout *l) {
  const int64_t row_tiles = tiles_of(tokens, BACKWARD_TILE), rows = row_tiles * BACKWARD_TILE;
  const struct backward_schedule s = {
      .row_tiles = (uint32_t)row_tiles, .wave_cols = l->wave_cols, .keeps = l->keeps != 0};
  l->sums_stride = (uint32_t)(tiles_of(hidden, 4) * 4);
  l->counters_bytes = (int64_t)backward_counters(&s) * 4;
  l->dz = carve(&l->bytes, l->wave_cols * tokens * BACKWARD_TILE_COLS * 2);
  l->sums = carve(&l->bytes, l->waves > 1 ? tokens * l->sums_stride * 4 : 0);
  l->constants = carve(&l->bytes, rows * 16);
  l->target_weight = carve(&l->bytes, rows * 4);
  l->residual = carve(&l->bytes, rows * 4);
  l->unscale = carve(&l->bytes, row_tiles * 4);
  l->sums_of_tiles = carve(&l->bytes, l->keeps ? 2 * l->wave_cols * STEP_SUMS * rows * 4 : 0);
  l->target_logits = carve(&l->bytes, l->keeps ? rows * 4 : 0);
  l->counters = carve(&l->bytes, l->counters_bytes);
}

weft_status weft__ce_backward_layout(int64_t tokens, int64_t hidden, int64_t rows, int64_t dz_bytes,
                                     struct ce_backward_layout *l) {
  const int64_t col_bytes = tokens * BACKWARD_TILE_COLS * 2;
  const int64_t col_tiles = tiles_of(rows, BACKWARD_TILE_COLS);
  const int64_t most = dz_bytes / col_bytes;
  memset(l, 0, sizeof *l);
  if (most < 1)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "backward has %lld bytes for the gradients of the logits, expected at least "
                      "%lld",
                      (long long)dz_bytes, (long long)col_bytes);
  l->waves = (uint32_t)tiles_of(col_tiles, most);
  l->wave_cols = (uint32_t)tiles_of(col_tiles, l->waves);
  l->waves = (uint32_t)tiles_of(col_tiles, l->wave_cols);
  lay_out(tokens, hidden, l);
  return WEFT_OK;
}

void weft__ce_step_layout(int64_t tokens, int64_t hidden, int64_t rows,
                          struct ce_backward_layout *l) {
  memset(l, 0, sizeof *l);
  l->waves = 1;
  l->wave_cols = (uint32_t)tiles_of(rows, BACKWARD_TILE_COLS);
  l->keeps = 1;
  lay_out(tokens, hidden, l);
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

static weft_status check_rows(const char *name, cuda_address address, int64_t stride,
                              int64_t hidden) {
  if (stride < hidden || stride % 8 != 0 || address % 16 != 0)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "%s at %#llx with a row stride of %lld elements, expected rows of at least "
                      "%lld that start at multiples of 16 bytes",
                      name, (unsigned long long)address, (long long)stride, (long long)hidden);
  return WEFT_OK;
}

/* [rows, cols], `stride` elements apart, in boxes of 128 bytes by `box_rows`. */
static struct cuda_tensor matrix(cuda_address address, enum cuda_element element, int64_t rows,
                                 int64_t cols, int64_t stride, uint32_t box_rows) {
  const uint32_t bytes = element == CUDA_F32 ? 4 : 2;
  return (struct cuda_tensor){.address = address,
                              .element = element,
                              .swizzle = CUDA_SWIZZLE_128,
                              .rank = 2,
                              .dims = {(uint64_t)cols, (uint64_t)rows},
                              .strides = {(uint64_t)stride * bytes},
                              .box = {128 / bytes, box_rows}};
}

/* The same read along its rows, 64 of depth by `box_cols` columns: in planes of 64 columns where
 * those divide the columns, else in boxes of 64. */
static struct cuda_tensor mn_major(cuda_address address, enum cuda_element element, int64_t rows,
                                   int64_t cols, int64_t stride, uint32_t box_cols) {
  if (cols % 64 != 0) return matrix(address, element, rows, cols, stride, 64);
  return (struct cuda_tensor){.address = address,
                              .element = element,
                              .swizzle = CUDA_SWIZZLE_128,
                              .rank = 3,
                              .dims = {64, (uint64_t)rows, (uint64_t)cols / 64},
                              .strides = {(uint64_t)stride * 2, 128},
                              .box = {64, BACKWARD_DEPTH_STEP, box_cols / 64}};
}

static int mapped(cuda_address address, int64_t stride, int64_t hidden, int f32) {
  const int64_t bytes = f32 ? 4 : 2;
  return address % 16 == 0 && stride * bytes % 16 == 0 && hidden * bytes % 16 == 0;
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
  WEFT__TRY(check_rows("x", p->x, p->x_stride, p->hidden));
  WEFT__TRY(check_rows("w", p->w, p->w_stride, p->hidden));
  if (p->keeps && (!l->keeps || p->softcap > 0 || p->g_entropy != 0))
    return weft__fail(WEFT_ERR_UNSUPPORTED, "a step keeps exponentials in a layout of its own, "
                                            "without a soft cap and an entropy gradient");
  struct backward_schedule s = {.row_tiles = (uint32_t)tiles_of(p->tokens, BACKWARD_TILE),
                                .col_tiles = (uint32_t)tiles_of(p->rows, BACKWARD_TILE_COLS),
                                .h_tiles = (uint32_t)tiles_of(p->hidden, BACKWARD_TILE),
                                .wave_cols = l->wave_cols,
                                .dx = p->dx != 0,
                                .dw = p->dw != 0,
                                .keeps = l->keeps != 0};
  /* Few rows keep the operands in L2, many read W less often: measured. Two groups at least, so
   * that dX of the first need not wait for dZ of the last. */
  const uint32_t good = s.row_tiles > 32 ? 8 : 4;
  s.group = p->group ? p->group : s.row_tiles > good ? good : (s.row_tiles + 1) / 2;
  if (s.group > s.row_tiles) s.group = s.row_tiles;
  if (s.keeps) s.left = step_left(&s);
  const double tiles = (double)s.row_tiles * (s.col_tiles + (double)s.h_tiles * l->waves) +
                       (double)s.col_tiles * s.h_tiles + s.row_tiles + s.left;
  if (tiles > (double)INT32_MAX)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "backward of more than 2^31 tiles");

  memset(args, 0, sizeof *args);
  args->schedule = s;
  args->tokens = (uint32_t)p->tokens;
  args->hidden = (uint32_t)p->hidden;
  args->rows = (uint32_t)p->rows;
  args->h_wide = p->hidden % 64 == 0;
  args->end = backward_count(&s);
  args->counters.a = workspace + (uint64_t)l->counters;
  args->constants.a = workspace + (uint64_t)l->constants;
  args->target_weight.a = workspace + (uint64_t)l->target_weight;
  args->residual.a = workspace + (uint64_t)l->residual;
  args->unscale.a = workspace + (uint64_t)l->unscale;
  args->sums.a = workspace + (uint64_t)l->sums;
  args->sums_stride = l->sums_stride;
  args->target.a = p->target;
  args->stats.a = p->keeps ? 0 : p->stats;
  args->g_nll.a = p->g_nll;
  args->g_entropy.a = p->g_entropy;
  args->g_lse.a = p->g_lse;
  args->temperature.a = p->temperature_ptr;
  args->temperature_value = p->temperature;
  args->softcap = p->softcap;
  args->ignore_index = p->ignore_index;
  args->vocab = p->vocab;
  args->vocab_start = p->vocab_start;
  args->target_i64 = p->target_i64 != 0;
  args->dx_f32 = p->dx_f32 != 0;
  args->dw_f32 = p->dw_f32 != 0;
  args->dw_accumulate = p->dw_accumulate != 0;
  args->dx_mapped = p->dx != 0 && mapped(p->dx, p->dx_stride, p->hidden, p->dx_f32);
  args->dw_mapped = p->dw != 0 && mapped(p->dw, p->dw_stride, p->hidden, p->dw_f32);
  args->dx.a = p->dx;
  args->dw.a = p->dw;
  args->w_rows.a = p->w;
  args->dx_stride = p->dx_stride;
  args->dw_stride = p->dw_stride;
  args->w_stride = p->w_stride;
  args->errors.a = p->errors;
  args->host_errors.a = p->host_errors;
  args->count_targets = p->count_targets != 0;
  args->timeout_ns = p->timeout_ns;
  args->kept.a = workspace + (uint64_t)l->dz;
  args->kept_stride = (uint64_t)l->wave_cols * BACKWARD_TILE_COLS;
  args->sums_of_tiles.a = workspace + (uint64_t)l->sums_of_tiles;
  args->target_logits.a = workspace + (uint64_t)l->target_logits;
  args->nll.a = p->nll;
  args->lse.a = p->lse;
  args->entropy.a = p->entropy;
  args->wants_entropy = p->wants_entropy != 0;
  args->trace.a = p->trace;
  args->trace_tiles = p->trace_tiles;

  const enum cuda_element half = p->f16 ? CUDA_F16 : CUDA_BF16;
  const int64_t wave = (int64_t)l->wave_cols * BACKWARD_TILE_COLS;
  const cuda_address dz = workspace + (uint64_t)l->dz;
  memset(tensors, 0, CE_BACKWARD_MAPS * sizeof *tensors);
  tensors[0] = matrix(p->x, half, p->tokens, p->hidden, p->x_stride, 128);
  tensors[1] = matrix(p->w, half, p->rows, p->hidden, p->w_stride, 96);
  tensors[2] = mn_major(p->x, half, p->tokens, p->hidden, p->x_stride, 128);
  tensors[3] = mn_major(p->w, half, p->rows, p->hidden, p->w_stride, p->dx_in_turn ? 64 : 128);
  tensors[4] = matrix(dz, half, p->tokens, wave, wave, 128);
  tensors[5] = mn_major(dz, half, p->tokens, wave, wave, 192);
  tensors[6] = matrix(dz, half, p->tokens, wave, wave, 64);
  if (l->waves > 1)
    tensors[7] = matrix(args->sums.a, CUDA_F32, p->tokens, l->sums_stride, l->sums_stride, 64);
  if (args->dx_mapped)
    tensors[8] = matrix(p->dx, p->dx_f32 ? CUDA_F32 : half, p->tokens, p->hidden, p->dx_stride, 64);
  if (args->dw_mapped)
    tensors[9] = matrix(p->dw, p->dw_f32 ? CUDA_F32 : half, p->rows, p->hidden, p->dw_stride,
                        p->dw_f32 ? 32 : 64);
  return WEFT_OK;
}

struct tensor_map *weft__ce_backward_map(struct backward_args *args, int i) {
  struct tensor_map *maps[CE_BACKWARD_MAPS] = {
      &args->x,     &args->w,      &args->x_mn,   &args->w_mn,   &args->dz,
      &args->dz_mn, &args->dz_out, &args->dx_sum, &args->dx_out, &args->dw_out};
  return maps[i];
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
  WEFT__TRY(weft__cuda_kernel_load(images, name, name, device, STEP_SHARED_BYTES, &out->kernel));
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
  out->counters_bytes = layout->counters_bytes;
  out->launch = (struct cuda_launch){.ctas = kernel->clusters_max * BACKWARD_CLUSTER,
                                     .threads = BACKWARD_THREADS,
                                     .cluster = BACKWARD_CLUSTER,
                                     .shared_bytes =
                                         layout->keeps ? STEP_SHARED_BYTES : BACKWARD_SHARED_BYTES,
                                     .cooperative = 1};
  return WEFT_OK;
}

static weft_status zero(cuda_address at, int64_t bytes, cuda_stream stream) {
  return weft__cuda_check(weft__cuda_driver()->cuMemsetD8Async(at, 0, (size_t)bytes, stream),
                          "cuMemsetD8Async");
}

weft_status weft__ce_backward_run(const struct ce_backward_kernel *kernel,
                                  struct ce_backward_launch *launch, cuda_stream stream) {
  launch->launch.stream = stream;
  WEFT__TRY(zero(launch->args.counters.a, launch->counters_bytes, stream));
  return weft__cuda_launch(&kernel->kernel, &launch->launch, &launch->args);
}

weft_status weft__ce_backward_run_apart(const struct ce_backward_kernel *kernel,
                                        struct ce_backward_launch *launch, cuda_stream stream) {
  struct backward_args args = launch->args;
  const struct backward_schedule *s = &args.schedule;
  launch->launch.stream = stream;
  WEFT__TRY(zero(args.counters.a, launch->counters_bytes, stream));
  args.first = 0;
  args.end = s->row_tiles;
  for (uint32_t wave = 0, phase = 0;;) {
    if (args.end > args.first) {
      WEFT__TRY(zero(args.counters.a + BACKWARD_NEXT * 4, 4, stream));
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
