/* From hidden states to logits, their statistics, and the statistics of a rank. */
#include <string.h>

#include "cpu/blas.h"
#include "cpu/ce.h"

/* ---- The chunk's hidden states and targets ---- */

static void load_rows(void *job, int64_t item, int thread) {
  (void)thread;
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  const weft_ce_config *c = &call->plan->config;
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t first = item * 32, padded = weft__cpu_padded(l, call->tokens);
  const int64_t bytes = weft__dtype_bytes(c->dtype), h = c->hidden;
  const int64_t stride = weft__stride(call->args->x_stride, h);
  for (int64_t row = first; row < first + 32 && row < padded; row++) {
    float *out = call->state->x + row * l->padded_hidden;
    if (row < call->tokens) {
      const unsigned char *in =
          (const unsigned char *)call->args->x + (call->first_token + row) * stride * bytes;
      call->state->rows->to_f32(out, in, h, c->dtype);
      memset(out + h, 0, (size_t)(l->padded_hidden - h) * sizeof(float));
    } else {
      memset(out, 0, (size_t)l->padded_hidden * sizeof(float));
    }
  }
}

/* Global ids of the chunk's rows, or why a row does not count. */
void weft__cpu_load_targets(weft__cpu_call *call) {
  const weft_ce_config *c = &call->plan->config;
  for (int64_t i = 0; i < call->tokens; i++) {
    const int64_t row = call->first_token + i;
    const int64_t id = c->target_dtype == WEFT_I32 ? ((const int32_t *)call->args->target)[row]
                                                   : ((const int64_t *)call->args->target)[row];
    int64_t *out = &call->state->target[i];
    if (id == c->ignore_index)
      *out = WEFT__IGNORED;
    else
      *out = id >= 0 && id < c->vocab ? id : WEFT__BAD_TARGET;
    if (*out == WEFT__BAD_TARGET && call->bad_targets++ == 0) call->first_bad = row;
  }
}

void weft__cpu_load_chunk(weft__cpu_call *call) {
  call->block_rows = WEFT__BLOCK_ROWS;
  call->blocks = (call->tokens + WEFT__BLOCK_ROWS - 1) / WEFT__BLOCK_ROWS;
  const int64_t padded = weft__cpu_padded(&call->state->layout, call->tokens);
  weft__pool_run(call->state->pool, load_rows, call, (padded + 31) / 32);
  weft__cpu_load_targets(call);
}

/* Hidden states of rows that do not count become 0, so that dW cannot get a NaN from 0 · ∞. Their
 * statistics must have been taken. */
void weft__cpu_drop_rows(weft__cpu_call *call) {
  const int64_t ld = call->state->layout.padded_hidden;
  for (int64_t i = 0; i < call->tokens; i++)
    if (call->state->target[i] < 0) memset(call->state->x + i * ld, 0, (size_t)ld * sizeof(float));
}

/* ---- Logits of one block of tokens and one tile of the vocabulary ---- */

/* The tile's rows of W as f32 with an inner size of Hp: in place where they are that already. */
static const float *tile_weights(const weft__cpu_call *call, int64_t tile, float *scratch,
                                 int64_t *ld) {
  const weft_ce_config *c = &call->plan->config;
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t h = c->hidden, stride = weft__stride(call->args->w_stride, h);
  const int64_t rows = weft__cpu_tile_rows(call, tile);
  const unsigned char *w = (const unsigned char *)call->args->w +
                           tile * l->tile_rows * stride * weft__dtype_bytes(c->dtype);
  if (c->dtype == WEFT_F32 && h == l->padded_hidden && rows == l->tile_rows) {
    *ld = stride;
    return (const float *)w;
  }
  for (int64_t row = 0; row < rows; row++) {
    float *out = scratch + row * l->padded_hidden;
    call->state->rows->to_f32(out, w + row * stride * weft__dtype_bytes(c->dtype), h, c->dtype);
    memset(out + h, 0, (size_t)(l->padded_hidden - h) * sizeof(float));
  }
  memset(scratch + rows * l->padded_hidden, 0,
         (size_t)((l->tile_rows - rows) * l->padded_hidden) * sizeof(float));
  *ld = l->padded_hidden;
  return scratch;
}

/* Statistics of a block's products a. They stay as they are where `z` is another row's room: the
 * gradient of a capped logit needs them. With z NULL each row turns into its logits. */
static void statistics_rows(const weft__cpu_call *call, int64_t tile, int64_t first_row,
                            int64_t rows, float *a, float *z) {
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t columns = weft__cpu_tile_rows(call, tile);
  const int64_t first_id = call->plan->config.vocab_start + tile * l->tile_rows;
  for (int64_t i = 0; i < rows; i++) {
    float *products = a + i * l->tile_ld, *row = z != NULL ? z : products;
    weft__stats *out = &call->state->tile_stats[tile * call->tokens + first_row + i];
    call->state->rows->statistics(products, row, columns, &call->scale, out);
    const int64_t local = call->state->target[first_row + i] - first_id;
    if (local >= 0 && local < columns) out->z_target = row[local];
  }
}

static void logits_item(void *job, int64_t item, int thread) {
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t in_wave = item / call->blocks, block = item % call->blocks;
  const int64_t tile = call->first_tile + in_wave;
  const int64_t first_row = block * WEFT__BLOCK_ROWS;
  int64_t rows = call->tokens - first_row, ld = 0;
  if (rows > WEFT__BLOCK_ROWS) rows = WEFT__BLOCK_ROWS;
  float *scratch = weft__cpu_scratch(call, thread);
  const float *w = tile_weights(call, tile, scratch, &ld);
  /* Forward looks at a block's products once, so they stay in the thread's scratch. */
  float *room = scratch + l->tile_rows * l->padded_hidden;
  float *a = call->row_stats == NULL && !call->keep_logits
                 ? room
                 : weft__cpu_tile(call, in_wave) + first_row * l->tile_ld;
  const float *x = call->state->x + first_row * l->padded_hidden;
  if (call->state->blas_logits) {
    weft__sgemm(false, true, weft__cpu_padded(l, rows), l->tile_rows, l->padded_hidden, x,
                l->padded_hidden, w, ld, 0.0f, a, l->tile_ld);
  } else {
    float *panel = scratch + (l->scratch_bytes / 4 - 16 * l->padded_hidden);
    call->state->rows->product(a, l->tile_ld, x, l->padded_hidden, rows, w, ld, l->tile_rows,
                               l->padded_hidden, panel);
  }
  if (call->scale.cap > 0.0f)
    for (int64_t i = 0; i < rows; i++)
      call->state->rows->refine(a + i * l->tile_ld, weft__cpu_tile_rows(call, tile),
                                x + i * l->padded_hidden, w, ld, l->padded_hidden, call->scale.cap);
  if (call->row_stats == NULL)
    statistics_rows(call, tile, first_row, rows, a, call->keep_logits ? room : NULL);
  else
    weft__cpu_gradient_rows(call, tile, first_row, rows, a);
}

void weft__cpu_logits_phase(weft__cpu_call *call) {
  weft__pool_run(call->state->pool, logits_item, call, call->tiles * call->blocks);
}

/* ---- Statistics of the rank: its tiles', merged in order ---- */

static void merge_rows(void *job, int64_t item, int thread) {
  (void)thread;
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  for (int64_t row = item * 64; row < (item + 1) * 64 && row < call->tokens; row++) {
    weft__stats sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int64_t tile = 0; tile < call->state->layout.tiles; tile++)
      sum = weft__stats_merge(sum, call->state->tile_stats[tile * call->tokens + row]);
    call->state->stats[call->first_token + row] = sum;
  }
}

void weft__cpu_merge_tiles(weft__cpu_call *call) {
  weft__pool_run(call->state->pool, merge_rows, call, (call->tokens + 63) / 64);
}
