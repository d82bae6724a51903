/* From logits to their gradients, and the two products with them: dW and dX. */
#include <math.h>
#include <string.h>

#include "cpu/blas.h"
#include "cpu/ce.h"

static float upstream(const float *gradient, int64_t token) {
  return gradient != NULL ? gradient[token] : 0.0f;
}

/* dz/da of a logit: c'/T, where c' = 1 / cosh² as in rows_body.h. */
static float slope_at(float a, const weft__logit_scale *scale) {
  if (!(scale->cap > 0.0f)) return scale->inverse_temperature;
  const float e = expf(-2.0f * fabsf(a / scale->cap));
  return 4.0f * e / ((1.0f + e) * (1.0f + e)) * scale->inverse_temperature;
}

void weft__cpu_gradient_rows(const weft__cpu_call *call, int64_t tile, int64_t first_row,
                             int64_t rows, float *z) {
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t columns = weft__cpu_tile_rows(call, tile);
  const int64_t first_id = call->plan->config.vocab_start + tile * l->tile_rows;
  for (int64_t i = 0; i < rows; i++) {
    float *row = z + i * l->tile_ld;
    const int64_t target = call->state->target[first_row + i];
    if (target < 0) { /* not multiplied by 0: the upstream gradient may be NaN */
      memset(row, 0, (size_t)columns * sizeof(float));
      continue;
    }
    const int64_t token = call->first_token + first_row + i;
    const weft__stats s = call->row_stats[first_row + i];
    const float g_nll = upstream(call->args->g_nll, token);
    const float g_entropy = upstream(call->args->g_entropy, token);
    const float g_lse = upstream(call->args->g_lse, token);
    const weft__row_gradient g = {s.m, 1.0f / s.s, s.t / s.s, g_nll + g_lse, g_entropy};
    const int64_t local = target - first_id;
    const bool here = local >= 0 && local < columns;
    const float slope = here ? slope_at(row[local], &call->scale) : 0.0f;
    call->state->rows->gradient(row, columns, &call->scale, &g);
    if (here) row[local] -= g_nll * slope;
  }
}

static void gradient_item(void *job, int64_t item, int thread) {
  (void)thread;
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  const int64_t in_wave = item / call->blocks, first_row = item % call->blocks * WEFT__BLOCK_ROWS;
  int64_t rows = call->tokens - first_row;
  if (rows > WEFT__BLOCK_ROWS) rows = WEFT__BLOCK_ROWS;
  weft__cpu_gradient_rows(call, call->first_tile + in_wave, first_row, rows,
                          weft__cpu_tile(call, in_wave) + first_row * call->state->layout.tile_ld);
}

/* The gradients of step's kept products, where no weights phase can do it on the way: a tile of it
 * must be one item's, which finds the tile in cache afterwards. */
static void gradient_phase(weft__cpu_call *call) {
  if (call->pending_gradient)
    weft__pool_run(call->state->pool, gradient_item, call, call->tiles * call->blocks);
  call->pending_gradient = false;
}

/* ---- Columns of H are split so that every thread has work ---- */

static void split_columns(weft__cpu_call *call, int64_t other_items) {
  const int64_t h = call->plan->config.hidden, threads = call->state->layout.threads;
  if (other_items < 1) other_items = 1;
  int64_t blocks = (threads + other_items - 1) / other_items;
  const int64_t most = (h + 63) / 64; /* thinner products are slow */
  if (blocks > most) blocks = most;
  call->columns = ((h + blocks - 1) / blocks + 15) / 16 * 16;
  call->column_blocks = (h + call->columns - 1) / call->columns;
}

/* ---- dW ---- */

/* Rounds a product once into dW of the input dtype, after adding what dW holds if asked. */
static void store_dw(const weft__cpu_call *call, float *product, int64_t ld, float *old,
                     unsigned char *dw, int64_t stride, int64_t rows, int64_t columns) {
  const int dtype = call->plan->config.dw_dtype;
  const int64_t bytes = weft__dtype_bytes(dtype);
  for (int64_t row = 0; row < rows; row++) {
    unsigned char *out = dw + row * stride * bytes;
    if (call->add_to_dw) {
      call->state->rows->to_f32(old, out, columns, dtype);
      call->state->rows->add(product + row * ld, old, columns);
    }
    call->state->rows->from_f32(out, product + row * ld, columns, dtype);
  }
}

static void weights_item(void *job, int64_t item, int thread) {
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  const weft_ce_config *c = &call->plan->config;
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t in_wave = item / call->column_blocks, tile = call->first_tile + in_wave;
  const int64_t first_column = item % call->column_blocks * call->columns;
  const int64_t stride = weft__stride(call->args->dw_stride, c->hidden);
  const int64_t rows = weft__cpu_tile_rows(call, tile);
  int64_t columns = c->hidden - first_column;
  if (columns > call->columns) columns = call->columns;
  unsigned char *dw =
      (unsigned char *)call->args->dw +
      (tile * l->tile_rows * stride + first_column) * weft__dtype_bytes(c->dw_dtype);
  const float *z = weft__cpu_tile(call, in_wave), *x = call->state->x + first_column;
  if (call->pending_gradient)
    for (int64_t block = 0; block < call->blocks; block++)
      gradient_item(job, in_wave * call->blocks + block, thread);
  if (c->dw_dtype == WEFT_F32) {
    weft__sgemm(true, false, rows, columns, call->tokens, z, l->tile_ld, x, l->padded_hidden,
                call->add_to_dw ? 1.0f : 0.0f, (float *)dw, stride);
    return;
  }
  float *product = weft__cpu_scratch(call, thread);
  float *old = product + l->tile_rows * l->padded_hidden; /* at most H floats of the z scratch */
  weft__sgemm(true, false, rows, columns, call->tokens, z, l->tile_ld, x, l->padded_hidden, 0.0f,
              product, columns);
  store_dw(call, product, columns, old, dw, stride, rows, columns);
}

void weft__cpu_weights_phase(weft__cpu_call *call) {
  split_columns(call, call->tiles);
  if (call->column_blocks > 1) gradient_phase(call);
  weft__pool_run(call->state->pool, weights_item, call, call->tiles * call->column_blocks);
  call->pending_gradient = false;
}

/* Rows of padding get a gradient of 0. */
void weft__cpu_zero_padding(weft__cpu_call *call) {
  const weft_ce_config *c = &call->plan->config;
  const int64_t bytes = weft__dtype_bytes(c->dw_dtype);
  const int64_t stride = weft__stride(call->args->dw_stride, c->hidden);
  const int64_t first = call->args->tokens > 0 ? call->plan->rows : 0;
  if (call->args->dw_accumulate) return;
  for (int64_t row = first; row < c->vocab_local; row++)
    memset((unsigned char *)call->args->dw + row * stride * bytes, 0, (size_t)(c->hidden * bytes));
}

/* ---- dX ---- */

static void inputs_item(void *job, int64_t item, int thread) {
  const weft__cpu_call *call = (const weft__cpu_call *)job;
  const weft_ce_config *c = &call->plan->config;
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t block = item / call->column_blocks, first_row = block * call->block_rows;
  const int64_t first_column = item % call->column_blocks * call->columns;
  const int64_t w_stride = weft__stride(call->args->w_stride, c->hidden);
  const int64_t dx_stride =
      l->dx_buffer ? c->hidden : weft__stride(call->args->dx_stride, c->hidden);
  float *dx = (l->dx_buffer ? call->state->dx_sum : (float *)call->args->dx) +
              (call->first_token + first_row) * dx_stride + first_column;
  const unsigned char *w_start =
      (const unsigned char *)call->args->w + first_column * weft__dtype_bytes(c->dtype);
  int64_t rows = call->tokens - first_row, columns = c->hidden - first_column;
  if (rows > call->block_rows) rows = call->block_rows;
  if (columns > call->columns) columns = call->columns;
  for (int64_t t = 0; t < call->tiles; t++) {
    const int64_t tile = call->first_tile + t, inner = weft__cpu_tile_rows(call, tile);
    const unsigned char *w_tile =
        w_start + tile * l->tile_rows * w_stride * weft__dtype_bytes(c->dtype);
    const float *w = (const float *)w_tile;
    int64_t ld = w_stride;
    if (c->dtype != WEFT_F32) {
      float *converted = weft__cpu_scratch(call, thread);
      for (int64_t row = 0; row < inner; row++)
        call->state->rows->to_f32(converted + row * columns,
                                  w_tile + row * w_stride * weft__dtype_bytes(c->dtype), columns,
                                  c->dtype);
      w = converted;
      ld = columns;
    }
    weft__sgemm(false, false, rows, columns, inner,
                weft__cpu_tile(call, t) + first_row * l->tile_ld, l->tile_ld, w, ld,
                call->first_wave && t == 0 ? 0.0f : 1.0f, dx, dx_stride);
  }
}

void weft__cpu_inputs_phase(weft__cpu_call *call) {
  gradient_phase(call);
  split_columns(call, call->blocks);
  weft__pool_run(call->state->pool, inputs_item, call, call->blocks * call->column_blocks);
}
