/* See ce_backward_cases.h. */
#include "ce_backward_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct ce_backward_case ce_backward_cases[] = {
    {256, 256, 384, 1, 0, 1, 0, 1, 0},
    {256, 256, 384, 1, CE_F16, 1, 0, 1, 0},
    {512, 512, 1536, 4, 0, 1, 0, 1, 0},
    {512, 512, 1536, 2, 0, 1, 0, 1, 3},
    {300, 200, 1000, 1, CE_IGNORE, 1, 0, 1, 0},
    {300, 200, 1000, 1, CE_F16 | CE_IGNORE | CE_ENTROPY | CE_LSE, 1, 0, 1, 5},
    /* So few elements in f16, whose roundings do not have to average out. */
    {1, 8, 1, 1, CE_F16, 1, 0, 1, 0},
    {1, 64, 1025, 1, CE_F16 | CE_ENTROPY, 1, 0, 2, 0},
    {1025, 72, 507, 1, CE_I32 | CE_LSE, 2, 0, 2, 0},
    {700, 264, 1153, 2, CE_DX_F32 | CE_DW_F32, 1, 0, 1, 0},
    {700, 264, 1153, 1, CE_DX_F32 | CE_DW_F32 | CE_ACCUMULATE | CE_ENTROPY, 0.7f, 0, 1, 0},
    {700, 264, 1153, 1, CE_ACCUMULATE | CE_IGNORE | CE_T_POINTER, 1.3f, 0, 1, 0},
    {600, 136, 900, 2, CE_F16 | CE_ACCUMULATE, 1, 0, 1, 0},
    {513, 320, 1500, 1, CE_ENTROPY, 1, 5, 4, 0},
    {513, 320, 1500, 1, CE_IGNORE | CE_BAD, 0.5f, 30, 20, 0},
    {400, 100, 800, 1, CE_ODD_OUT, 1, 0, 1, 0},
    {400, 99, 800, 1, 0, 1, 0, 1, 0},
    {400, 99, 800, 1, CE_ODD_OUT | CE_DX_F32 | CE_DW_F32 | CE_ACCUMULATE, 1, 0, 1, 0},
    {400, 100, 800, 2, CE_ODD_OUT | CE_F16 | CE_ACCUMULATE, 1, 0, 1, 0},
    {640, 256, 1200, 2, CE_SHARD | CE_BAD, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_NO_DX, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_NO_DW, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_NO_NLL | CE_ENTROPY, 1, 0, 1, 0},
    {300, 128, 500, 1, CE_ALL_IGNORED, 0.1f, 0, 20, 0},
    {300, 128, 500, 1, CE_ALL_IGNORED | CE_ENTROPY | CE_F16, 0.1f, 5, 20, 0},
    {256, 128, 600, 1, CE_ENTROPY, 1000.0f, 0, 100000, 0},
    {2100, 128, 3000, 2, CE_IGNORE, 1, 0, 1, 0},
    {256, 256, 384, 1, CE_STEP, 1, 0, 1, 0},
    {512, 512, 1536, 4, CE_STEP | CE_WANTS_ENTROPY, 1, 0, 1, 3},
    {300, 200, 1000, 1, CE_STEP | CE_IGNORE | CE_WANTS_ENTROPY, 1, 0, 1, 0},
    {300, 200, 1000, 1, CE_STEP | CE_F16 | CE_IGNORE | CE_LSE, 1, 0, 1, 5},
    {1, 64, 1025, 1, CE_STEP, 1, 0, 2, 0},
    {1, 8, 1, 1, CE_STEP | CE_F16 | CE_WANTS_ENTROPY, 1, 0, 1, 0},
    {1025, 72, 507, 1, CE_STEP | CE_I32 | CE_LSE, 2, 0, 2, 0},
    {700, 264, 1153, 2, CE_STEP | CE_DX_F32 | CE_DW_F32, 1, 0, 1, 0},
    {700, 264, 1153, 1, CE_STEP | CE_DX_F32 | CE_DW_F32 | CE_ACCUMULATE, 0.7f, 0, 1, 0},
    {700, 264, 1153, 1, CE_STEP | CE_ACCUMULATE | CE_IGNORE | CE_T_POINTER, 1.3f, 0, 1, 0},
    {600, 136, 900, 2, CE_STEP | CE_F16 | CE_ACCUMULATE | CE_WANTS_ENTROPY, 1, 0, 1, 0},
    {513, 320, 1500, 1, CE_STEP | CE_IGNORE | CE_BAD | CE_WANTS_ENTROPY, 0.5f, 0, 20, 0},
    {400, 99, 800, 1, CE_STEP, 1, 0, 1, 0},
    {400, 100, 800, 2, CE_STEP | CE_ODD_OUT | CE_F16 | CE_ACCUMULATE, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_STEP | CE_NO_DX, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_STEP | CE_NO_DW, 1, 0, 1, 0},
    {640, 256, 1200, 1, CE_STEP | CE_NO_NLL | CE_LSE, 1, 0, 1, 0},
    {300, 128, 500, 1, CE_STEP | CE_ALL_IGNORED | CE_WANTS_ENTROPY, 0.1f, 0, 20, 0},
    {256, 128, 600, 1, CE_STEP | CE_WANTS_ENTROPY, 1000.0f, 0, 100000, 0},
    {256, 128, 600, 1, CE_STEP | CE_WANTS_ENTROPY, 0.001f, 0, 10000, 0},
    {2100, 128, 3000, 2, CE_STEP | CE_IGNORE, 1, 0, 1, 0},
    {600, 200, 1500, 1, CE_STEP | CE_ODD_IN | CE_IGNORE | CE_UNCLEAN, 1, 0, 1, 0},
    {1500, 203, 1000, 1, CE_STEP | CE_IGNORE | CE_UNCLEAN | CE_F16 | CE_WANTS_ENTROPY, 1, 0, 1, 0},
    {600, 136, 900, 1, CE_STEP | CE_IGNORE | CE_W_NAN, 1, 0, 1, 0},
    {3000, 128, 9000, 2, CE_STEP | CE_IGNORE | CE_WANTS_ENTROPY, 1, 0, 1, 0},
    {400, 99, 800, 1, CE_ODD_IN | CE_ODD_OUT, 1, 0, 1, 0},
    {300, 264, 900, 1, CE_ODD_IN | CE_F16 | CE_IGNORE | CE_ENTROPY | CE_UNCLEAN, 1, 0, 1, 0},
    {700, 1100, 900, 1, CE_ODD_IN | CE_SHARD, 1, 0, 1, 3},
    {513, 320, 1500, 1, CE_IGNORE | CE_BAD | CE_UNCLEAN, 1, 30, 4, 0},
    {1500, 200, 1000, 1, CE_IGNORE | CE_UNCLEAN | CE_DW_F32 | CE_ACCUMULATE, 1, 0, 1, 0},
    {1500, 203, 1000, 1, CE_IGNORE | CE_UNCLEAN | CE_F16 | CE_ENTROPY | CE_LSE, 1, 0, 1, 0},
    {600, 136, 900, 1, CE_ALL_IGNORED | CE_UNCLEAN, 1, 0, 1, 0},
    {600, 136, 900, 1, CE_IGNORE | CE_W_NAN, 1, 0, 1, 0},
    {600, 136, 900, 1, CE_IGNORE | CE_W_NAN | CE_F16 | CE_ENTROPY, 1, 5, 1, 0},
};
const size_t ce_backward_case_count = sizeof ce_backward_cases / sizeof *ce_backward_cases;

const struct ce_backward_case ce_backward_toy_cases[] = {
    {300, 72, 500, 1, CE_IGNORE, 1, 0, 1, 2},
    {260, 328, 400, 1, CE_ENTROPY | CE_DW_F32 | CE_ACCUMULATE, 1, 0, 1, 2},
    /* One cluster: tile after tile of one kind, with more stages than the ring has. */
    {100, 1100, 390, 2, 0, 1, 0, 1, 1},
    /* Conversions behind other tiles, and in tiles of their own; a last group of one row. */
    {300, 72, 500, 1, CE_STEP | CE_IGNORE | CE_WANTS_ENTROPY, 1, 0, 1, 2},
    {560, 8, 1100, 1, CE_STEP | CE_BAD | CE_LSE, 2, 0, 2, 2},
    {100, 1100, 390, 1, CE_STEP, 1, 0, 1, 1},
    /* dX of converted rows while the other cluster still multiplies logits. */
    {260, 600, 390, 1, CE_STEP, 1, 0, 1, 2},
    {130, 331, 400, 1, CE_ODD_IN | CE_IGNORE | CE_UNCLEAN, 1, 0, 1, 1},
    {130, 331, 400, 1, CE_STEP | CE_ODD_IN | CE_IGNORE | CE_UNCLEAN, 1, 0, 1, 1},
    {70, 72, 400, 1, CE_IGNORE | CE_W_NAN, 1, 0, 1, 1},
    /* Steps of dW by hand and by copies after each other, in tiles that follow each other. */
    {580, 264, 400, 1, CE_IGNORE | CE_UNCLEAN | CE_NO_DX, 1, 0, 1, 3},
};
const size_t ce_backward_toy_case_count =
    sizeof ce_backward_toy_cases / sizeof *ce_backward_toy_cases;

double ce_backward_dx_error, ce_backward_dw_error;

enum { GUARD = 0x5a, IGNORE_INDEX = -100 };

static uint32_t hash(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}

static double uniform(uint32_t seed, uint64_t i) { /* in [0, 1) */
  return hash(seed * 0x9e3779b9u ^ hash((uint32_t)i ^ hash((uint32_t)(i >> 32) + 77))) /
         4294967296.0;
}

static double normal(uint32_t seed, uint64_t i) {
  return sqrt(-2 * log(1 - uniform(seed, i))) * cos(6.283185307179586 * uniform(seed + 1000, i));
}

static uint16_t half_of(double v, int f16) {
  if (f16) {
    const _Float16 h = (_Float16)v;
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
  }
  float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static double half_value(uint16_t u, int f16) {
  if (f16) {
    _Float16 h;
    memcpy(&h, &u, 2);
    return (double)h;
  }
  const uint32_t wide = (uint32_t)u << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}

static double element(const unsigned char *p, int64_t at, int f32, int f16) {
  float f;
  uint16_t h;
  if (f32) {
    memcpy(&f, p + at * 4, 4);
    return f;
  }
  memcpy(&h, p + at * 2, 2);
  return half_value(h, f16);
}

static int64_t padded(int64_t h, int64_t unit) {
  return (h + unit - 1) / unit * unit + unit;
}

/* Rows of an operand; what lies between them is NaN. */
static uint16_t *operand(int64_t rows, int64_t cols, int64_t stride, uint32_t seed, double scale,
                         int f16, size_t *bytes) {
  *bytes = (size_t)(rows * stride) * 2;
  uint16_t *to = malloc(*bytes);
  if (!to) return NULL;
  memset(to, 0xff, *bytes);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < cols; k++)
      to[i * stride + k] = half_of(scale * normal(seed, (uint64_t)(i * cols + k)), f16);
  return to;
}

static void fill_upstream(float *g, int64_t tokens, uint32_t seed, const unsigned char *live) {
  for (int64_t i = 0; i < tokens; i++)
    g[i] = live[i] ? (float)(0.25 + uniform(seed, (uint64_t)i)) : NAN;
}

static int64_t choose_target(struct ce_backward_data *d, int64_t row) {
  const struct ce_backward_case *c = d->c;
  d->live[row] = 0;
  if (c->flags & CE_ALL_IGNORED) return IGNORE_INDEX;
  if ((c->flags & CE_IGNORE) && row % 3 == 1) return IGNORE_INDEX;
  if ((c->flags & CE_BAD) && row % 7 == 2) {
    d->bad++;
    if (c->flags & CE_I32) return row % 2 ? -5 : d->vocab;
    return row % 2 ? -5 : (INT64_C(1) << 32) + 5;
  }
  d->live[row] = 1;
  return (int64_t)(uniform(9, (uint64_t)row) * (double)d->vocab);
}

/* One element of every fifth row that does not count becomes NaN or infinite: none of those in
 * every other 64. Makes the expected results' logits of those rows unusable, and they are not used.
 */
static void spoil(struct ce_backward_data *d, int f16) {
  const uint16_t infinite = f16 ? 0x7c00 : 0x7f80;
  const uint16_t values[] = {infinite, (uint16_t)(infinite | 0x8000), (uint16_t)(infinite | 1)};
  for (int64_t i = 0, n = 0; i < d->c->tokens; i++) {
    if (d->live[i] || i / 64 % 2 == 1 || n++ % 5 != 0) continue;
    d->x[i * d->x_stride + i * 7 % d->c->hidden] = values[n / 5 % 3];
  }
}

/* The gradient of one token's logits, from the formula in f64; z is replaced. */
static void gradient_row(const struct ce_backward_data *d, int64_t row, int64_t target, double *z) {
  const struct ce_backward_case *c = d->c;
  const double g_nll = c->flags & CE_NO_NLL ? 0 : d->g_nll[row];
  const double g_entropy = c->flags & CE_ENTROPY ? d->g_entropy[row] : 0;
  const double g_lse = c->flags & CE_LSE ? d->g_lse[row] : 0;
  const float *s = d->stats + row * 4;
  double most = -INFINITY, sum = 0, t = 0;
  double *slope = z + d->vocab;
  for (int64_t v = 0; v < d->vocab; v++) {
    slope[v] = 1;
    if (c->softcap > 0) {
      const double u = tanh(z[v] / c->softcap);
      z[v] = c->softcap * u;
      slope[v] = 1 - u * u;
    }
    z[v] /= c->temperature;
    if (z[v] > most) most = z[v];
  }
  for (int64_t v = 0; v < d->vocab; v++) {
    sum += exp(z[v] - most);
    t += exp(z[v] - most) * (z[v] - most);
  }
  float *out = d->stats + row * 4;
  out[0] = (float)most, out[1] = (float)sum, out[3] = (float)t;
  out[2] = target >= 0 && target < d->vocab ? (float)z[target] : 0;
  (void)s;
  const double entropy = log(sum) - t / sum;
  double *loss = d->loss + row * 4;
  const int counts = target >= 0 && target < d->vocab;
  loss[0] = target == IGNORE_INDEX ? 0 : counts ? most - z[target] + log(sum) : NAN;
  loss[1] = most + log(sum);
  loss[2] = target == IGNORE_INDEX ? 0 : entropy;
  loss[3] = 0;
  for (int64_t v = 0; v < d->vocab; v++)
    if (fabs(z[v]) > loss[3]) loss[3] = fabs(z[v]);
  for (int64_t v = 0; v < d->vocab; v++) {
    const double log_p = z[v] - most - log(sum), p = exp(log_p);
    double g = 0;
    if (d->live[row])
      g = (g_nll * (p - (v == target)) - g_entropy * p * (log_p + entropy) + g_lse * p) /
          c->temperature * slope[v];
    z[v] = g;
  }
}

static int make_expected(struct ce_backward_data *d) {
  const struct ce_backward_case *c = d->c;
  const int64_t h = c->hidden;
  const int f16 = (c->flags & CE_F16) != 0;
  double *z = malloc((size_t)d->vocab * 2 * sizeof *z);
  float *x = malloc((size_t)(c->tokens * h) * sizeof *x);
  float *w = malloc((size_t)(d->vocab * h) * sizeof *w); /* bf16 and f16 are exact in f32 */
  if (!z || !x || !w) return -1;
  for (int64_t i = 0; i < c->tokens; i++)
    for (int64_t k = 0; k < h; k++)
      x[i * h + k] = (float)half_value(d->x[i * d->x_stride + k], f16);
  /* A shard's w holds the whole vocabulary; the kernel sees its rows from vocab_start on. */
  for (int64_t v = 0; v < d->vocab; v++)
    for (int64_t k = 0; k < h; k++)
      w[v * h + k] = (float)half_value(d->w[v * d->w_stride + k], f16);
  for (int64_t i = 0; i < c->tokens; i++) {
    for (int64_t v = 0; v < d->vocab; v++) {
      double sum = 0;
      for (int64_t k = 0; k < h; k++)
        sum += (double)x[i * h + k] * w[v * h + k];
      z[v] = sum;
    }
    const int64_t target =
        c->flags & CE_I32 ? ((int32_t *)d->target)[i] : ((int64_t *)d->target)[i];
    gradient_row(d, i, target, z);
    if (!d->live[i]) continue;
    for (int64_t v = 0; v < c->rows; v++) {
      const double g = z[d->vocab_start + v];
      const float *wv = w + (d->vocab_start + v) * h, *xi = x + i * h;
      double *dx = d->dx + i * h, *dw = d->dw + v * h;
      for (int64_t k = 0; k < h; k++) {
        dx[k] += g * wv[k];
        dw[k] += g * xi[k];
      }
    }
  }
  free(z);
  free(x);
  free(w);
  return 0;
}

int ce_backward_data_make(const struct ce_backward_case *c, struct ce_backward_data *d) {
  memset(d, 0, sizeof *d);
  d->c = c;
  const int f16 = (c->flags & CE_F16) != 0, odd = (c->flags & CE_ODD_OUT) != 0;
  const size_t dx_size = c->flags & CE_DX_F32 ? 4 : 2, dw_size = c->flags & CE_DW_F32 ? 4 : 2;
  d->vocab_start = c->flags & CE_SHARD ? 555 : 0;
  d->vocab = d->vocab_start + c->rows + (c->flags & CE_SHARD ? 100 : 0);
  const int64_t skew = c->flags & CE_ODD_IN ? 1 : 0;
  d->x_stride = padded(c->hidden, 8) + skew;
  d->w_stride = padded(c->hidden, 8) + 8 + skew;
  d->dx_stride = odd ? c->hidden + 1 + c->hidden % 2 : padded(c->hidden, 8);
  d->dw_stride = d->dx_stride + (odd ? 2 : 8);
  d->x = operand(c->tokens, c->hidden, d->x_stride, 1, c->logits, f16, &d->x_bytes);
  d->w =
      operand(d->vocab, c->hidden, d->w_stride, 2, 1 / sqrt((double)c->hidden), f16, &d->w_bytes);
  d->target_bytes = (size_t)c->tokens * (c->flags & CE_I32 ? 4 : 8);
  d->target = malloc(d->target_bytes);
  d->row_bytes = (size_t)c->tokens * 4;
  d->stats_bytes = d->row_bytes * 4;
  d->stats = malloc(d->stats_bytes);
  d->g_nll = malloc(d->row_bytes);
  d->g_entropy = malloc(d->row_bytes);
  d->g_lse = malloc(d->row_bytes);
  d->live = malloc((size_t)c->tokens);
  d->dx_bytes = (size_t)((c->tokens + 1) * d->dx_stride) * dx_size;
  d->dw_bytes = (size_t)((c->rows + 1) * d->dw_stride) * dw_size;
  d->dx_before = malloc(d->dx_bytes);
  d->dw_before = malloc(d->dw_bytes);
  d->loss = malloc((size_t)c->tokens * 4 * sizeof(double));
  d->dx = calloc((size_t)(c->tokens * c->hidden), sizeof(double));
  d->dw = calloc((size_t)(c->rows * c->hidden), sizeof(double));
  if (!d->x || !d->w || !d->target || !d->stats || !d->g_nll || !d->g_entropy || !d->g_lse ||
      !d->live || !d->loss || !d->dx_before || !d->dw_before || !d->dx || !d->dw) {
    ce_backward_data_free(d);
    return -1;
  }
  for (int64_t i = 0; i < c->tokens; i++) {
    const int64_t target = choose_target(d, i);
    if (c->flags & CE_I32)
      ((int32_t *)d->target)[i] = (int32_t)target;
    else
      ((int64_t *)d->target)[i] = target;
  }
  if (c->flags & CE_UNCLEAN) spoil(d, f16);
  if (c->flags & CE_W_NAN) d->w[7 * d->w_stride + 3] = 0x7fff;
  fill_upstream(d->g_nll, c->tokens, 3, d->live);
  fill_upstream(d->g_entropy, c->tokens, 4, d->live);
  fill_upstream(d->g_lse, c->tokens, 5, d->live);
  memset(d->dx_before, GUARD, d->dx_bytes);
  memset(d->dw_before, GUARD, d->dw_bytes);
  if (c->flags & CE_ACCUMULATE) {
    for (int64_t v = 0; v < c->rows; v++)
      for (int64_t k = 0; k < c->hidden; k++) {
        const float f = (float)(0.1 * normal(6, (uint64_t)(v * c->hidden + k)));
        const uint16_t u = half_of(f, f16);
        const int64_t at = v * d->dw_stride + k;
        memcpy(d->dw_before + (size_t)at * dw_size, dw_size == 4 ? (const void *)&f : &u, dw_size);
        d->dw[v * c->hidden + k] = dw_size == 4 ? (double)f : half_value(u, f16);
      }
  }
  return make_expected(d);
}

void ce_backward_data_free(struct ce_backward_data *d) {
  void *all[] = {d->x,    d->w,         d->target,    d->stats, d->g_nll, d->g_entropy, d->g_lse,
                 d->live, d->dx_before, d->dw_before, d->dx,    d->dw,    d->loss};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
  memset(d, 0, sizeof *d);
}

struct ce_backward_problem ce_backward_data_problem(const struct ce_backward_data *d) {
  const struct ce_backward_case *c = d->c;
  return (struct ce_backward_problem){.tokens = c->tokens,
                                      .hidden = c->hidden,
                                      .rows = c->rows,
                                      .vocab = d->vocab,
                                      .vocab_start = d->vocab_start,
                                      .ignore_index = IGNORE_INDEX,
                                      .x_stride = d->x_stride,
                                      .w_stride = d->w_stride,
                                      .dx_stride = d->dx_stride,
                                      .dw_stride = d->dw_stride,
                                      .temperature = c->flags & CE_T_POINTER ? 0 : c->temperature,
                                      .softcap = c->softcap,
                                      .f16 = (c->flags & CE_F16) != 0,
                                      .target_i64 = (c->flags & CE_I32) == 0,
                                      .dx_f32 = (c->flags & CE_DX_F32) != 0,
                                      .dw_f32 = (c->flags & CE_DW_F32) != 0,
                                      .dw_accumulate = (c->flags & CE_ACCUMULATE) != 0,
                                      .keeps = (c->flags & CE_STEP) != 0,
                                      .wants_entropy = (c->flags & CE_WANTS_ENTROPY) != 0,
                                      .timeout_ns = UINT64_C(2000000000)};
}

weft_status ce_backward_case_layout(const struct ce_backward_case *c,
                                    struct ce_backward_layout *layout) {
  if (!(c->flags & CE_STEP))
    return weft__ce_backward_layout(c->tokens, c->hidden, c->rows,
                                    c->wave_cols * c->tokens * BACKWARD_TILE_COLS * 2, layout);
  weft__ce_step_layout(c->tokens, c->hidden, c->rows, layout);
  return WEFT_OK;
}

/* Frobenius error of all, and the number of rows that are further off than the contract allows. */
static double compare(const double *expected, const unsigned char *got, const unsigned char *before,
                      int64_t rows, int64_t cols, int64_t stride, size_t bytes, int f32, int f16,
                      int64_t *wrong_rows, int64_t *touched) {
  double error = 0, norm = 0;
  *wrong_rows = *touched = 0;
  double *row_error = calloc((size_t)rows * 2, sizeof(double));
  if (!row_error) abort();
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t k = 0; k < cols; k++) {
      const double e = expected[i * cols + k], g = element(got, i * stride + k, f32, f16);
      row_error[i * 2] += (g - e) * (g - e);
      row_error[i * 2 + 1] += e * e;
    }
    error += row_error[i * 2], norm += row_error[i * 2 + 1];
  }
  const double mean = sqrt(norm / (double)rows);
  for (int64_t i = 0; i < rows; i++)
    *wrong_rows +=
        !(sqrt(row_error[i * 2]) <= 4 * 0.0025 * sqrt(row_error[i * 2 + 1]) + 1e-3 * mean);
  free(row_error);
  const int64_t size = f32 ? 4 : 2, elements = (int64_t)bytes / size;
  for (int64_t at = 0; at < elements; at++)
    if (at >= rows * stride || at % stride >= cols)
      *touched += memcmp(got + at * size, before + at * size, (size_t)size) != 0;
  if (error == 0) return 0;
  /* A vocabulary of one has no gradient: what is left is a rounding of 1 - 1. */
  return sqrt(error / (norm + 1e-8 * (double)(rows * cols)));
}

/* Of a case with CE_W_NAN: everything of rows that count is NaN, the other rows of dX are 0. */
static int64_t not_as_nan(const struct ce_backward_data *d, const unsigned char *dx,
                          const unsigned char *dw) {
  const struct ce_backward_case *c = d->c;
  const int f16 = (c->flags & CE_F16) != 0;
  int64_t wrong = 0;
  for (int64_t i = 0; i < c->tokens; i++)
    for (int64_t k = 0; k < c->hidden; k++) {
      const double v = element(dx, i * d->dx_stride + k, (c->flags & CE_DX_F32) != 0, f16);
      wrong += d->live[i] ? !isnan(v) : v != 0;
    }
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t k = 0; k < c->hidden; k++)
      wrong += !isnan(element(dw, i * d->dw_stride + k, (c->flags & CE_DW_F32) != 0, f16));
  return wrong;
}

int ce_backward_data_compare(const struct ce_backward_data *d, const unsigned char *dx,
                             const unsigned char *dw, char *why, size_t room) {
  const struct ce_backward_case *c = d->c;
  const int f16 = (c->flags & CE_F16) != 0;
  int64_t dx_wrong = 0, dx_touched = 0, dw_wrong = 0, dw_touched = 0, not_zero = 0;
  ce_backward_dx_error = ce_backward_dw_error = 0;
  if (c->flags & CE_W_NAN) {
    const int64_t wrong = not_as_nan(d, dx, dw);
    snprintf(why, room, "%lld elements are not NaN, or not 0 of a row that does not count",
             (long long)wrong);
    return wrong != 0;
  }
  if (!(c->flags & CE_NO_DX)) {
    const int f32 = (c->flags & CE_DX_F32) != 0;
    ce_backward_dx_error = compare(d->dx, dx, d->dx_before, c->tokens, c->hidden, d->dx_stride,
                                   d->dx_bytes, f32, f16, &dx_wrong, &dx_touched);
    for (int64_t i = 0; i < c->tokens; i++)
      for (int64_t k = 0; k < c->hidden && !d->live[i]; k++)
        not_zero += element(dx, i * d->dx_stride + k, f32, f16) != 0;
  }
  if (!(c->flags & CE_NO_DW))
    ce_backward_dw_error =
        compare(d->dw, dw, d->dw_before, c->rows, c->hidden, d->dw_stride, d->dw_bytes,
                (c->flags & CE_DW_F32) != 0, f16, &dw_wrong, &dw_touched);
  if (ce_backward_dx_error <= 0.0025 && ce_backward_dw_error <= 0.0025 && !dx_wrong && !dw_wrong &&
      !dx_touched && !dw_touched && !not_zero &&
      !((c->flags & CE_ALL_IGNORED) && ce_backward_dw_error != 0))
    return 0;
  snprintf(why, room,
           "dX off by %.4f%%, %lld rows wrong, %lld elements around it touched, %lld not zero; dW "
           "off by %.4f%%, %lld rows wrong, %lld touched",
           100 * ce_backward_dx_error, (long long)dx_wrong, (long long)dx_touched,
           (long long)not_zero, 100 * ce_backward_dw_error, (long long)dw_wrong,
           (long long)dw_touched);
  return 1;
}

int ce_backward_data_compare_loss(const struct ce_backward_data *d, const float *nll,
                                  const float *lse, const float *entropy, char *why, size_t room) {
  const float *got[3] = {nll, lse, entropy};
  static const char *const names[3] = {"nll", "lse", "entropy"};
  for (int64_t i = 0; i < d->c->tokens; i++) {
    for (int k = 0; k < 3; k++) {
      if (got[k] == NULL) continue;
      const double e = d->loss[i * 4 + k], g = got[k][i];
      const int good = isnan(e)               ? isnan(g)
                       : d->live[i] || k == 1 ? fabs(g - e) <= 2e-5 * (1 + d->loss[i * 4 + 3])
                       : e == 0               ? g == 0
                                              : 1;
      if (good) continue;
      snprintf(why, room, "%s of row %lld is %.9g, expected %.9g", names[k], (long long)i, g, e);
      return 1;
    }
  }
  return 0;
}

void ce_backward_case_name(const struct ce_backward_case *c, char *text, size_t room) {
  static const char *const names[] = {
      "f16",         "dx-f32",    "dw-f32",      "accumulate", "entropy", "lse",   "no-nll",
      "i32",         "ignore",    "bad-targets", "shard",      "no-dx",   "no-dw", "odd-out",
      "all-ignored", "t-pointer", "odd-in",      "unclean",    "w-nan",   "step",  "wants-entropy"};
  int n = snprintf(text, room, "%lldx%lldx%lld waves of %u, T %g cap %g", (long long)c->tokens,
                   (long long)c->hidden, (long long)c->rows, c->wave_cols, (double)c->temperature,
                   (double)c->softcap);
  for (size_t i = 0; i < sizeof names / sizeof *names && (size_t)n < room; i++)
    if (c->flags >> i & 1) n += snprintf(text + n, room - (size_t)n, " %s", names[i]);
}
