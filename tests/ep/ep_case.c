/* See ep_case.h: data from a hash, laws by loops over all ranks' tokens. */
#include "ep_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep_law.h"

static uint64_t hash(uint64_t a, uint64_t b) {
  uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

ep_case ep_case_of(int64_t ranks, int64_t tokens, int64_t hidden, int64_t experts, int64_t topk) {
  ep_case c = {.ranks = ranks,
               .tokens_max = tokens,
               .hidden = hidden,
               .experts = experts,
               .topk = topk,
               .layout = WEFT_EP_SLAB,
               .alignment = 1,
               .dtype = WEFT_BF16,
               .topk_dtype = WEFT_I64,
               .seed = 1,
               .none = 0.1};
  for (int r = 0; r < EP_RANKS; r++)
    c.tokens[r] = tokens;
  return c;
}

weft_ep_config ep_config(const ep_case *c) {
  weft_ep_config config = WEFT_EP_CONFIG_INIT;
  config.tokens_max = c->tokens_max;
  config.hidden = c->hidden;
  config.experts = c->experts;
  config.topk = c->topk;
  config.dtype = c->dtype;
  config.layout = c->layout;
  config.alignment = c->alignment;
  config.scale_format = c->scale_format;
  config.scale_order = c->scale_order;
  config.topk_dtype = c->topk_dtype;
  config.zero_copy = c->zero_copy;
  return config;
}

/* bf16 of a wide range: any sign, exponents 2⁻⁸ to 2⁷. */
static uint16_t x_value(const ep_case *c, int64_t rank, uint64_t seed, int64_t at) {
  const uint64_t bits = hash(hash(seed, 11 + (uint64_t)rank), (uint64_t)at);
  if (c->ones) return bits & 1 ? 0x3f80 : 0;
  return (uint16_t)((bits & 0x8000) | (119 + (bits >> 20) % 16) << 7 | (bits & 0x7f));
}

static float weight_value(int64_t rank, uint64_t seed, int64_t at) {
  return (float)(hash(hash(seed, 5000 + (uint64_t)rank), (uint64_t)at) >> 40) * 0x1p-24f;
}

static int64_t *make_topk(const ep_case *c, int64_t rank, uint64_t seed) {
  const int64_t n = c->tokens[rank];
  int64_t *topk = (int64_t *)malloc((size_t)(n * c->topk + 1) * sizeof *topk);
  uint64_t draw = hash(seed, 9000 + (uint64_t)rank);
  for (int64_t t = 0; t < n; t++)
    for (int64_t k = 0; k < c->topk; k++) {
      int64_t expert = -1;
      draw = hash(draw, 1);
      const bool none = (double)(draw >> 11) * 0x1p-53 < c->none || k >= c->experts;
      while (!none && expert < 0) {
        draw = hash(draw, 2);
        expert = (int64_t)(draw % (uint64_t)c->experts);
        for (int64_t j = 0; j < k; j++)
          if (topk[t * c->topk + j] == expert) expert = -1;
      }
      topk[t * c->topk + k] = expert;
    }
  return topk;
}

ep_inputs ep_inputs_make(const ep_case *c, int64_t rank, uint64_t seed) {
  const int64_t n = c->tokens[rank], slots = n * c->topk;
  ep_inputs in;
  in.x = (uint16_t *)malloc((size_t)(n * c->hidden + 1) * 2);
  in.topk = make_topk(c, rank, seed);
  in.topk_idx = malloc((size_t)(slots + 1) * 8);
  in.weights = (float *)malloc((size_t)(slots + 1) * 4);
  for (int64_t i = 0; i < n * c->hidden; i++)
    in.x[i] = x_value(c, rank, seed, i);
  for (int64_t i = 0; i < slots; i++) {
    in.weights[i] = weight_value(rank, seed, i);
    if (c->topk_dtype == WEFT_I32)
      ((int32_t *)in.topk_idx)[i] = (int32_t)in.topk[i];
    else
      ((int64_t *)in.topk_idx)[i] = in.topk[i];
  }
  return in;
}

void ep_inputs_free(ep_inputs *in) {
  free(in->x);
  free(in->topk);
  free(in->topk_idx);
  free(in->weights);
}

ep_received ep_received_make(const weft_ep_plan_info *info, const ep_case *c) {
  ep_received got;
  const size_t experts = (size_t)info->experts_local;
  got.x = malloc((size_t)info->recv_bytes + 1);
  got.scales = malloc((size_t)info->scale_bytes + 4);
  got.weights = (float *)malloc((size_t)info->rows_max * 4 + 4);
  got.counts = (int64_t *)calloc(experts, 8);
  got.offsets = (int64_t *)calloc(experts + 1, 8);
  got.source_counts = (int64_t *)calloc(experts * (size_t)c->ranks, 8);
  memset(got.x, 0xee, (size_t)info->recv_bytes + 1);
  return got;
}

void ep_received_free(ep_received *got) {
  free(got->x);
  free(got->scales);
  free(got->weights);
  free(got->counts);
  free(got->offsets);
  free(got->source_counts);
}

weft_ep_dispatch_args ep_dispatch_args(const ep_case *c, int64_t rank, const ep_inputs *in,
                                       const ep_received *got) {
  weft_ep_dispatch_args a = WEFT_EP_DISPATCH_ARGS_INIT;
  a.tokens = c->tokens[rank];
  a.x = in->x;
  a.topk_idx = in->topk_idx;
  a.topk_weights = in->weights;
  a.recv_x = got->x;
  a.recv_scales = got->scales;
  a.recv_weights = got->weights;
  a.counts = got->counts;
  a.offsets = got->offsets;
  a.source_counts = got->source_counts;
  return a;
}

/* ---- The laws ---- */

static int64_t scale_at(const ep_case *c, const weft_ep_plan_info *info, int64_t row, int64_t word,
                        int64_t words) {
  const int64_t slab = c->ranks * c->tokens_max;
  if (c->scale_order == WEFT_EP_ROW_MAJOR) return row * words + word;
  if (c->layout == WEFT_EP_PACKED) return word * info->scale_stride + row;
  return row / slab * words * info->scale_stride + word * info->scale_stride + row % slab;
}

/* One received row against the source's. */
static int check_row(const ep_case *c, const weft_ep_plan_info *info, const ep_received *got,
                     int64_t row, const uint16_t *x, char why[256]) {
  const int64_t h = c->hidden, blocks = (h + 127) / 128;
  const bool packed = c->scale_format == WEFT_EP_SCALE_UE8M0;
  const int64_t words = packed ? (blocks + 3) / 4 : blocks;
  if (c->dtype == WEFT_BF16) {
    if (memcmp((const uint16_t *)got->x + row * h, x, (size_t)h * 2) == 0) return 0;
    snprintf(why, 256, "row %lld differs from its source", (long long)row);
    return 1;
  }
  for (int64_t b = 0; b < words * (packed ? 4 : 1); b++) {
    const uint32_t *scales = (const uint32_t *)got->scales;
    const uint32_t word = scales[scale_at(c, info, row, packed ? b / 4 : b, words)];
    const uint32_t scale = packed ? word >> (8 * (b % 4)) & 0xff : word;
    const int64_t n = b >= blocks ? 0 : b + 1 < blocks ? 128 : h - b * 128;
    char reason[200];
    if (ep_law_block(c->scale_format, x + (b < blocks ? b * 128 : 0), n,
                     (const uint8_t *)got->x + row * h + (b < blocks ? b * 128 : 0), scale,
                     reason)) {
      snprintf(why, 256, "row %lld, block %lld: %s", (long long)row, (long long)b, reason);
      return 1;
    }
  }
  return 0;
}

int ep_check_received(const ep_case *c, const weft_ep_plan_info *info, int64_t rank, uint64_t seed,
                      uint64_t x_seed, const ep_received *got, char why[256]) {
  const int64_t experts = c->experts / c->ranks;
  ep_inputs in[EP_RANKS];
  uint16_t *x[EP_RANKS];
  int wrong = 0;
  for (int64_t r = 0; r < c->ranks; r++) {
    in[r] = ep_inputs_make(c, r, seed);
    ep_inputs other = ep_inputs_make(c, r, x_seed);
    x[r] = other.x;
    other.x = NULL;
    ep_inputs_free(&other);
  }
  int64_t row = 0;
  for (int64_t e = 0; e < experts && !wrong; e++) {
    if (c->layout == WEFT_EP_SLAB) row = e * c->ranks * c->tokens_max;
    while (row % c->alignment != 0)
      row++;
    if (got->offsets[e] != row) {
      snprintf(why, 256, "offsets[%lld] is %lld, expected %lld", (long long)e,
               (long long)got->offsets[e], (long long)row);
      wrong = 1;
    }
    const int64_t first = row;
    for (int64_t r = 0; r < c->ranks; r++) {
      const int64_t before = row;
      for (int64_t i = 0; i < c->tokens[r] * c->topk && !wrong; i++) {
        if (in[r].topk[i] != rank * experts + e) continue;
        wrong = check_row(c, info, got, row, x[r] + i / c->topk * c->hidden, why);
        if (!wrong && got->weights[row] != weight_value(r, x_seed, i)) {
          snprintf(why, 256, "recv_weights[%lld] is %g", (long long)row, got->weights[row]);
          wrong = 1;
        }
        row++;
      }
      if (!wrong && got->source_counts[e * c->ranks + r] != row - before) {
        snprintf(why, 256, "source_counts[%lld][%lld] is wrong", (long long)e, (long long)r);
        wrong = 1;
      }
    }
    if (!wrong && got->counts[e] != row - first) {
      snprintf(why, 256, "counts[%lld] is wrong", (long long)e);
      wrong = 1;
    }
  }
  if (!wrong && row > info->rows_max) {
    snprintf(why, 256, "%lld rows, more than rows_max", (long long)row);
    wrong = 1;
  }
  for (int64_t r = 0; r < c->ranks; r++) {
    ep_inputs_free(&in[r]);
    free(x[r]);
  }
  return wrong;
}

/* What expert `expert` makes of token `token` of rank `source`: any function of the three will do.
 */
static uint16_t y_value(const ep_case *c, int64_t expert, int64_t source, int64_t token,
                        int64_t i) {
  const uint64_t key = hash(hash((uint64_t)expert, (uint64_t)source), (uint64_t)token);
  if (c->ones) return hash(key, (uint64_t)i) & 1 ? 0x3f80 : 0;
  return x_value(c, 77, key, i);
}

static float gradient_value(int64_t expert, int64_t source, int64_t token) {
  return (float)(hash(hash((uint64_t)expert, (uint64_t)source), (uint64_t)token) >> 40) - 0x1p23f;
}

void ep_fill_rows(const ep_case *c, const weft_ep_plan_info *info, int64_t rank,
                  const ep_received *got, uint16_t *y, float *values) {
  const int64_t experts = c->experts / c->ranks;
  memset(y, 0xff, (size_t)(info->rows_max * c->hidden) * 2); /* NaN where no row is */
  for (int64_t e = 0; e < experts; e++) {
    int64_t row = got->offsets[e];
    const int64_t expert = rank * experts + e;
    for (int64_t r = 0; r < c->ranks; r++) {
      int64_t *topk = make_topk(c, r, c->seed);
      for (int64_t s = 0; s < c->tokens[r] * c->topk; s++) {
        if (topk[s] != expert) continue;
        for (int64_t i = 0; i < c->hidden; i++)
          y[row * c->hidden + i] = y_value(c, expert, r, s / c->topk, i);
        values[row++] = gradient_value(expert, r, s / c->topk);
      }
      free(topk);
    }
  }
}

int ep_check_combined(const ep_case *c, int64_t rank, uint64_t seed, bool weighted, int64_t dead,
                      const uint16_t *out, const float *values, char why[256]) {
  const int64_t experts = c->experts / c->ranks;
  int64_t *topk = make_topk(c, rank, seed);
  int wrong = 0;
  for (int64_t t = 0; t < c->tokens[rank] && !wrong; t++) {
    for (int64_t i = 0; i < c->hidden && !wrong; i++) {
      float sum = 0;
      for (int64_t s = t * c->topk; s < (t + 1) * c->topk; s++)
        if (topk[s] >= 0 && topk[s] / experts != dead)
          sum = fmaf(weighted ? weight_value(rank, seed, s) : 1.0f,
                     ep_bf16(y_value(c, topk[s], rank, t, i)), sum);
      if (out[t * c->hidden + i] == ep_to_bf16(sum)) continue;
      snprintf(why, 256, "out[%lld][%lld] is %g, expected %g", (long long)t, (long long)i,
               ep_bf16(out[t * c->hidden + i]), sum);
      wrong = 1;
    }
    for (int64_t s = t * c->topk; values != NULL && s < (t + 1) * c->topk && !wrong; s++) {
      const bool there = topk[s] >= 0 && topk[s] / experts != dead;
      const float expected = there ? gradient_value(topk[s], rank, t) : 0.0f;
      if (values[s] == expected) continue;
      snprintf(why, 256, "weight_gradient of slot %lld is %g, expected %g", (long long)s, values[s],
               expected);
      wrong = 1;
    }
  }
  free(topk);
  return wrong;
}

/* ---- One rank's whole round ---- */

static weft_status round_on(const ep_case *c, int64_t rank, weft_ep_plan *plan,
                            weft_ep_handle *handle, char why[256]) {
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  weft_status status = weft_ep_plan_info_get(plan, &info);
  if (status != WEFT_OK) return status;
  const int64_t n = c->tokens[rank];
  ep_inputs in = ep_inputs_make(c, rank, c->seed), again = ep_inputs_make(c, rank, c->seed + 99);
  ep_received got = ep_received_make(&info, c);
  uint16_t *own = (uint16_t *)malloc((size_t)(info.rows_max * c->hidden + 1) * 2), *y = own;
  float *row_values = (float *)malloc((size_t)(info.rows_max + 1) * 4);
  uint16_t *out = (uint16_t *)malloc((size_t)(n * c->hidden + 1) * 2);
  float *values = (float *)malloc((size_t)(n * c->topk + 1) * 4);
  weft_ep_dispatch_args d = ep_dispatch_args(c, rank, &in, &got);
  weft_ep_combine_args m = WEFT_EP_COMBINE_ARGS_INIT;
  status = weft_ep_dispatch(handle, &d, NULL);
  if (status == WEFT_OK && ep_check_received(c, &info, rank, c->seed, c->seed, &got, why))
    status = WEFT_ERR_SYSTEM;
  if (status == WEFT_OK && c->zero_copy) status = weft_ep_combine_buffer(plan, (void **)&y);
  if (status != WEFT_OK) goto cleanup;
  ep_fill_rows(c, &info, rank, &got, y, row_values);
  m.y = y;
  m.row_gradient = row_values;
  m.topk_weights = in.weights;
  m.out = out;
  m.weight_gradient = values;
  status = weft_ep_combine(handle, &m, NULL);
  if (status == WEFT_OK && ep_check_combined(c, rank, c->seed, true, -1, out, values, why))
    status = WEFT_ERR_SYSTEM;
  if (status != WEFT_OK) goto cleanup;
  m.topk_weights = NULL;
  m.row_gradient = NULL;
  m.weight_gradient = NULL;
  status = weft_ep_combine(handle, &m, NULL);
  if (status == WEFT_OK && ep_check_combined(c, rank, c->seed, false, -1, out, NULL, why))
    status = WEFT_ERR_SYSTEM;
  if (status != WEFT_OK) goto cleanup;
  d.x = again.x;
  d.topk_weights = again.weights;
  d.topk_idx = NULL;
  d.reuse = 1;
  status = weft_ep_dispatch(handle, &d, NULL);
  if (status == WEFT_OK && ep_check_received(c, &info, rank, c->seed, c->seed + 99, &got, why))
    status = WEFT_ERR_SYSTEM;
cleanup:
  if (status != WEFT_OK && why[0] == 0) snprintf(why, 256, "%.250s", weft_last_error());
  ep_inputs_free(&in);
  ep_inputs_free(&again);
  ep_received_free(&got);
  free(own);
  free(row_values);
  free(out);
  free(values);
  return status;
}

weft_status ep_everything(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  weft_ep_plan *plan = NULL;
  weft_ep_handle *handle = NULL;
  const weft_ep_config config = ep_config(c);
  why[0] = 0;
  weft_status status = weft_ep_plan_create(comm, &config, &plan);
  if (status == WEFT_OK) status = weft_ep_handle_create(plan, &handle);
  if (status == WEFT_OK) status = round_on(c, rank, plan, handle, why);
  if (status != WEFT_OK && why[0] == 0) snprintf(why, 256, "%.250s", weft_last_error());
  if (comm != NULL && status == WEFT_OK) status = weft_comm_barrier(comm);
  weft_ep_handle_destroy(handle);
  weft_ep_plan_destroy(plan);
  return status;
}
