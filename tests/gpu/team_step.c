/* See team_step.h. */
#include "team_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct team_step_case team_step_cases[] = {
    {"bf16", 500, 500, 264, 1500, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0},
    {"f16, entropy, ignored", 400, 400, 264, 1100, 0, WEFT_F16, 0, 0, 1, 5, 1, 0, 0, 0, 0, 0},
    {"uneven, padded, fewer tokens", 900, 301, 136, 1100, 84, WEFT_BF16, 0, 0, 1, 3, 2, 1, 0, 0, 0,
     0},
    {"no tokens", 900, 0, 136, 1100, 84, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0},
    {"least workspace, targets on the last rank", 400, 400, 200, 4000, 0, WEFT_BF16, 0, 0, 1, 0, 1,
     0, 1, 1, 0, 0},
    {"f32 out, accumulate", 300, 300, 520, 1200, 40, WEFT_BF16, WEFT_F32, WEFT_F32, 0, 4, 1, 0, 0,
     0, 1, 0},
    {"reduce_scatter", 517, 517, 72, 900, 0, WEFT_BF16, 0, 0, 1, 7, 1, 0, 0, 0, 0,
     WEFT_DX_REDUCE_SCATTER},
    {"parts of dX", 260, 260, 72, 900, 0, WEFT_BF16, WEFT_F32, 0, 0, 0, 1, 1, 0, 0, 0,
     WEFT_DX_NONE},
    {"few tokens", 64, 5, 64, 700, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0},
    {"fewer tokens than ranks", 64, 5, 64, 700, 0, WEFT_F16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0},
    {"4097 tokens", 4097, 4097, 64, 500, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0},
};
const size_t team_step_case_count = sizeof team_step_cases / sizeof *team_step_cases;

static double uniform(uint32_t seed, uint64_t i) {
  uint64_t z = ((uint64_t)seed << 40) + i * 0x9e3779b97f4a7c15u + 0x1234567;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static double normal(uint32_t seed, uint64_t i) {
  return sqrt(-2 * log(1 - uniform(seed, i))) * cos(6.283185307179586 * uniform(seed + 1000, i));
}

static uint16_t half_of(double v, int32_t dtype) {
  if (dtype == WEFT_F16) {
    const _Float16 h = (_Float16)v;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
  }
  const float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double team_step_value(const void *p, int64_t at, int32_t dtype) {
  float f;
  uint16_t bits;
  if (dtype == WEFT_F32) {
    memcpy(&f, (const char *)p + at * 4, 4);
    return (double)f;
  }
  memcpy(&bits, (const char *)p + at * 2, 2);
  if (dtype == WEFT_F16) {
    _Float16 h;
    memcpy(&h, &bits, 2);
    return (double)h;
  }
  const uint32_t wide = (uint32_t)bits << 16;
  memcpy(&f, &wide, 4);
  return (double)f;
}

static void *need(size_t bytes) {
  void *p = calloc(bytes ? bytes : 1, 1);
  if (!p) abort();
  return p;
}

static void make_targets(const struct team_step_case *c, uint32_t seed, int64_t *target) {
  const int64_t span = c->targets_last ? c->vocab / 20 : c->vocab;
  for (int64_t i = 0; i < c->tokens; i++) {
    const int64_t id = c->vocab - span + (int64_t)(uniform(seed, (uint64_t)i) * (double)span);
    target[i] = c->ignore_every && i % c->ignore_every == 1 ? -100 : id;
  }
}

void team_step_make(const struct team_step_case *c, uint32_t seed, struct team_step_data *d) {
  const int64_t m = c->tokens, h = c->hidden, rows = c->vocab + c->padding;
  memset(d, 0, sizeof *d);
  d->x = need((size_t)(m * h) * 2);
  d->w = need((size_t)(rows * h) * 2);
  d->target = need((size_t)m * 8);
  d->dw0 = need((size_t)(rows * h) * 4);
  d->doubles = need((size_t)((m + c->vocab) * h + 3 * m) * 8);
  double *x = d->doubles, *w = x + m * h, *g = w + c->vocab * h;
  for (int64_t i = 0; i < m * h; i++) {
    d->x[i] = half_of(normal(seed, (uint64_t)i), c->dtype);
    x[i] = team_step_value(d->x, i, c->dtype);
  }
  for (int64_t i = 0; i < rows * h; i++) {
    d->w[i] = half_of(normal(seed + 1, (uint64_t)i) / sqrt((double)h), c->dtype);
    if (i < c->vocab * h) w[i] = team_step_value(d->w, i, c->dtype);
    d->dw0[i] = (float)(0.05 * normal(seed + 2, (uint64_t)i));
  }
  make_targets(c, seed + 3, d->target);
  for (int k = 0; k < 3; k++) {
    d->g[k] = need((size_t)m * 4);
    for (int64_t i = 0; i < m; i++) {
      const double v = 0.25 + uniform(seed + 4 + (uint32_t)k, (uint64_t)i);
      d->g[k][i] = d->target[i] < 0 ? NAN : (float)v;
      g[k * m + i] = (double)d->g[k][i];
    }
  }
  d->right = (oracle){.tokens = m,
                      .hidden = h,
                      .vocab = c->vocab,
                      .x = x,
                      .w = w,
                      .target = d->target,
                      .ignore_index = -100,
                      .temperature = (double)c->temperature,
                      .g_nll = g,
                      .g_entropy = c->entropy ? g + m : NULL,
                      .g_lse = g + 2 * m};
  oracle_run(&d->right);
}

void team_step_free(struct team_step_data *d) {
  oracle_free(&d->right);
  free(d->x), free(d->w), free(d->target), free(d->dw0), free(d->doubles);
  for (int k = 0; k < 3; k++)
    free(d->g[k]);
}

void team_step_range(const struct team_step_case *c, int64_t ranks, int64_t rank, int64_t *start,
                     int64_t *rows) {
  const int64_t all = c->vocab + c->padding;
  int64_t at = 0, n = 0;
  for (int64_t r = 0; r <= rank; r++) {
    at += n;
    n = all / ranks + (r < all % ranks);
    if (c->uneven) n = r % 3 == 1 ? 0 : (all - at) / 2;
    if (r == ranks - 1) n = all - at;
  }
  *start = at;
  *rows = n;
}

weft_ce_config team_step_config(const struct team_step_case *c, int64_t ranks, int64_t rank) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = c->max_tokens;
  config.hidden = c->hidden;
  config.vocab = c->vocab;
  team_step_range(c, ranks, rank, &config.vocab_start, &config.vocab_local);
  config.dtype = c->dtype;
  config.dx_dtype = c->dx_dtype;
  config.dw_dtype = c->dw_dtype;
  config.dx_mode = c->dx_mode;
  config.device = WEFT_DEVICE_CUDA;
  config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP | (c->entropy ? WEFT_CE_ENTROPY : 0);
  return config;
}
