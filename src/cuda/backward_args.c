/* The arguments of the backward kernel, its workspace and what its tensor maps are made of: plain
 * arithmetic, without messages or a driver, so that loom runs the kernel on the same ones. */
#include <string.h>

#include "cuda/backward.h"
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
  l->counters_bytes = (int64_t)backward_words(&s) * 4;
  /* Exponentials have whole tiles of rows, so that conversions need not look for the end. */
  l->dz = carve(&l->bytes, l->wave_cols * (l->keeps ? rows : tokens) * BACKWARD_TILE_COLS * 2);
  l->sums = carve(&l->bytes, l->waves > 1 ? tokens * l->sums_stride * 4 : 0);
  l->constants = carve(&l->bytes, rows * 16);
  l->target_weight = carve(&l->bytes, rows * 4);
  l->residual = carve(&l->bytes, rows * 4);
  l->unscale = carve(&l->bytes, row_tiles * 4);
  l->sums_of_tiles = carve(&l->bytes, l->keeps ? 2 * l->wave_cols * STEP_SUMS * rows * 4 : 0);
  l->target_logits = carve(&l->bytes, l->keeps ? rows * 4 : 0);
  l->counters = carve(&l->bytes, l->counters_bytes);
}

int64_t weft__ce_backward_cut(int64_t tokens, int64_t hidden, int64_t rows, int64_t dz_bytes,
                              struct ce_backward_layout *l) {
  const int64_t col_bytes = tokens * BACKWARD_TILE_COLS * 2;
  const int64_t col_tiles = tiles_of(rows, BACKWARD_TILE_COLS);
  const int64_t most = dz_bytes / col_bytes;
  memset(l, 0, sizeof *l);
  if (most < 1) return col_bytes;
  l->waves = (uint32_t)tiles_of(col_tiles, most);
  l->wave_cols = (uint32_t)tiles_of(col_tiles, l->waves);
  l->waves = (uint32_t)tiles_of(col_tiles, l->wave_cols);
  lay_out(tokens, hidden, l);
  return 0;
}

void weft__ce_step_layout(int64_t tokens, int64_t hidden, int64_t rows,
                          struct ce_backward_layout *l) {
  memset(l, 0, sizeof *l);
  l->waves = 1;
  l->wave_cols = (uint32_t)tiles_of(rows, BACKWARD_TILE_COLS);
  l->keeps = 1;
  lay_out(tokens, hidden, l);
}

static int is_aligned(cuda_address address, int64_t stride) {
  return address % 16 == 0 && stride % 8 == 0;
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

void weft__ce_backward_fill(const struct ce_backward_problem *p, const struct ce_backward_layout *l,
                            cuda_address workspace, struct cuda_tensor tensors[CE_BACKWARD_MAPS],
                            struct backward_args *args) {
  struct backward_schedule s = {.row_tiles = (uint32_t)tiles_of(p->tokens, BACKWARD_TILE),
                                .col_tiles = (uint32_t)tiles_of(p->rows, BACKWARD_TILE_COLS),
                                .h_tiles = (uint32_t)tiles_of(p->hidden, BACKWARD_TILE),
                                .wave_cols = l->wave_cols,
                                .dx = p->dx != 0,
                                .dw = p->dw != 0,
                                .keeps = l->keeps != 0};
  /* Few rows keep the operands in L2, many read W less often: measured. Two groups at least, so
   * that dX of the first need not wait for dZ of the last. */
  const uint32_t good = s.row_tiles > (s.keeps ? 16u : 32u) ? 8 : 4;
  s.group = p->group ? p->group : s.row_tiles > good ? good : (s.row_tiles + 1) / 2;
  if (s.group > s.row_tiles) s.group = s.row_tiles;
  if (s.keeps) s.left = step_left(&s);
  s.early = step_early(&s);
  memset(args, 0, sizeof *args);
  args->schedule = s;
  args->tokens = (uint32_t)p->tokens;
  args->hidden = (uint32_t)p->hidden;
  args->rows = (uint32_t)p->rows;
  args->h_wide = p->hidden % 64 == 0;
  args->end = backward_count(&s);
  args->x_rows.a = p->x;
  args->w_rows.a = p->w;
  args->x_stride_bytes = (uint64_t)p->x_stride * 2;
  args->w_stride_bytes = (uint64_t)p->w_stride * 2;
  args->by_hand = !is_aligned(p->x, p->x_stride) || !is_aligned(p->w, p->w_stride);
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
  args->dx_stride = p->dx_stride;
  args->dw_stride = p->dw_stride;
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
  if (!args->by_hand) {
    tensors[0] = matrix(p->x, half, p->tokens, p->hidden, p->x_stride, 128);
    tensors[1] = matrix(p->w, half, p->rows, p->hidden, p->w_stride, 96);
    tensors[2] = mn_major(p->x, half, p->tokens, p->hidden, p->x_stride, 128);
    tensors[3] = mn_major(p->w, half, p->rows, p->hidden, p->w_stride, p->dx_in_turn ? 64 : 128);
  }
  tensors[4] = matrix(dz, half, p->tokens, wave, wave, 128);
  tensors[5] = mn_major(dz, half, p->tokens, wave, wave, 192);
  tensors[6] =
      matrix(dz, half, l->keeps ? (int64_t)s.row_tiles * BACKWARD_TILE : p->tokens, wave, wave, 64);
  if (l->waves > 1)
    tensors[7] = matrix(args->sums.a, CUDA_F32, p->tokens, l->sums_stride, l->sums_stride, 64);
  if (args->dx_mapped)
    tensors[8] = matrix(p->dx, p->dx_f32 ? CUDA_F32 : half, p->tokens, p->hidden, p->dx_stride, 64);
  if (args->dw_mapped)
    tensors[9] = matrix(p->dw, p->dw_f32 ? CUDA_F32 : half, p->rows, p->hidden, p->dw_stride,
                        p->dw_f32 ? 32 : 64);
}

struct tensor_map *weft__ce_backward_map(struct backward_args *args, int i) {
  struct tensor_map *maps[CE_BACKWARD_MAPS] = {
      &args->x,     &args->w,      &args->x_mn,   &args->w_mn,   &args->dz,
      &args->dz_mn, &args->dz_out, &args->dx_sum, &args->dx_out, &args->dw_out};
  return maps[i];
}
