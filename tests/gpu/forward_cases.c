/* See forward_cases.h. */
#include "forward_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle.h"

const struct forward_case forward_toy_cases[] = {
    {"two tiles", .pace = 5, .tokens = 300, .hidden = 72, .vocab = 400, .entropy = 1,
     .dtype = WEFT_BF16, .ignore_every = 5, .bad_every = 7, .target_dtype = WEFT_I64},
    {"whole ring", .pace = 2, .tokens = 300, .hidden = 264, .vocab = 1000, .dtype = WEFT_BF16,
     .target_dtype = WEFT_I32, .softcap = 20.0f, .temperature = 2.0f, .temperature_ptr = 1},
    {"three groups", .pace = 3, .tokens = 600, .hidden = 64, .vocab = 900, .dtype = WEFT_F16,
     .target_dtype = WEFT_I32, .temperature = 0.5f},
    {"rows of any address", .tokens = 140, .hidden = 71, .vocab = 500, .x_extra = 2,
     .dtype = WEFT_BF16, .target_dtype = WEFT_I64, .entropy = 1},
};
const size_t forward_toy_case_count = sizeof forward_toy_cases / sizeof *forward_toy_cases;

#define BF16 .dtype = WEFT_BF16, .target_dtype = WEFT_I64
#define F16  .dtype = WEFT_F16, .target_dtype = WEFT_I32
const struct forward_case forward_small_cases[] = {
    {"one token, one row", .tokens = 1, .hidden = 8, .vocab = 1, BF16, .entropy = 1},
    {"V = 7", .tokens = 33, .hidden = 16, .vocab = 7, BF16, .entropy = 1},
    {"one tile", .tokens = 256, .hidden = 64, .vocab = 192, BF16},
    {"just over a tile", .tokens = 257, .hidden = 72, .vocab = 193, BF16, .entropy = 1},
    {"just over two tiles", .tokens = 511, .hidden = 256, .vocab = 385, F16, .entropy = 1},
    {"odd V", .tokens = 129, .hidden = 128, .vocab = 50257, BF16, .entropy = 1},
    {"more segments than one", .tokens = 300, .hidden = 64, .vocab = 30011, F16},
    {"uneven segments", .tokens = 130, .hidden = 64, .vocab = 66 * 384 * 2 + 5, BF16, .entropy = 1},
    {"several groups", .tokens = 4500, .hidden = 40, .vocab = 1000, BF16, .entropy = 1,
     .ignore_every = 3},
    {"many groups", .tokens = 9000, .hidden = 8, .vocab = 520, F16, .bad_every = 5},
    {"padded W", .tokens = 100, .hidden = 64, .vocab = 500, .padding = 300, BF16, .entropy = 1},
    {"strides", .tokens = 200, .hidden = 96, .vocab = 777, .x_extra = 8, .w_extra = 24, BF16,
     .entropy = 1},
    {"temperature", .tokens = 200, .hidden = 96, .vocab = 777, BF16, .entropy = 1,
     .temperature = 0.7f},
    {"temperature by pointer", .tokens = 200, .hidden = 96, .vocab = 777, F16, .entropy = 1,
     .temperature = 3.0f, .temperature_ptr = 1},
    {"soft cap", .tokens = 200, .hidden = 96, .vocab = 777, BF16, .entropy = 1, .softcap = 30.0f,
     .amplitude = 4.0f},
    {"soft cap far from its logits", .tokens = 200, .hidden = 96, .vocab = 777, F16,
     .softcap = 50.0f, .amplitude = 1e-4f, .temperature = 0.01f},
    {"all ignored", .tokens = 300, .hidden = 64, .vocab = 333, BF16, .entropy = 1,
     .ignore_every = 1},
    {"one ignored index of its own", .tokens = 300, .hidden = 64, .vocab = 333, F16, .entropy = 1,
     .ignore_every = 4, .ignore_index = 17},
    {"all bad", .tokens = 300, .hidden = 64, .vocab = 333, BF16, .bad_every = 1},
    {"all logits -200", .tokens = 100, .hidden = 64, .vocab = 2048, BF16, .entropy = 1,
     .amplitude = 1e-30f, .shift = -200.0f},
    {"logits near 1e5", .tokens = 100, .hidden = 64, .vocab = 2048, BF16, .entropy = 1,
     .amplitude = 2e4f, .temperature = 1e3f},
    {"peaked", .tokens = 100, .hidden = 512, .vocab = 3000, BF16, .entropy = 1, .amplitude = 2.0f},
    {"H = 1", .tokens = 300, .hidden = 1, .vocab = 400, BF16, .entropy = 1},
    {"H = 7", .tokens = 300, .hidden = 7, .vocab = 4000, F16, .entropy = 1},
    {"H = 129", .tokens = 2600, .hidden = 129, .vocab = 401, BF16, .entropy = 1},
    {"only X has odd rows", .tokens = 300, .hidden = 72, .vocab = 400, .x_extra = 1, BF16},
    {"only W has odd rows", .tokens = 300, .hidden = 72, .vocab = 400, .w_extra = 3, F16},
};
const size_t forward_small_case_count = sizeof forward_small_cases / sizeof *forward_small_cases;

static uint64_t next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static double uniform(uint64_t *state) {
  return (double)(next(state) >> 11) * 0x1p-53;
}

static double normal(uint64_t *state) {
  return sqrt(-2.0 * log(1.0 - uniform(state))) * cos(6.28318530717958648 * uniform(state));
}

/* Rounds to nearest even and answers the bits; *value becomes what they stand for. */
static uint16_t to_half(int32_t dtype, double *value) {
  if (dtype == WEFT_F16) {
    const _Float16 h = (_Float16)*value;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    *value = (double)h;
    return bits;
  }
  float f = (float)*value;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  memcpy(&f, &bits, 4);
  *value = f;
  return (uint16_t)(bits >> 16);
}

/* [rows, cols] with `extra` NaN behind each row, but for the last. */
static uint16_t *matrix(const struct forward_case *c, int64_t rows, int64_t extra, double scale,
                        double first, uint64_t *state, double *exact, size_t *bytes) {
  const int64_t stride = c->hidden + extra;
  *bytes = (size_t)(rows * stride) * 2;
  uint16_t *out = malloc(*bytes);
  if (!out) return NULL;
  memset(out, 0xff, *bytes); /* NaN in both formats */
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < c->hidden; k++) {
      double v = scale * normal(state);
      if (k == 0 && first != 0) v = first;
      out[i * stride + k] = to_half(c->dtype, &v);
      exact[i * c->hidden + k] = v;
    }
  return out;
}

static void make_targets(struct forward_data *d, uint64_t *state) {
  const struct forward_case *c = d->c;
  const int64_t ignore = c->ignore_index ? c->ignore_index : -100;
  for (int64_t i = 0; i < c->tokens; i++) {
    int64_t id = (int64_t)(next(state) % (uint64_t)c->vocab);
    if (id == ignore) id = 0;
    if (c->ignore_every && i % c->ignore_every == 0) {
      id = ignore;
    } else if (c->bad_every && i % c->bad_every == 1 % c->bad_every) {
      const int64_t bad[] = {
          c->vocab,  -1,
          INT32_MAX, c->vocab + c->padding,
          -101,      c->target_dtype == WEFT_I64 ? ((int64_t)1 << 32) + 5 : INT32_MIN};
      id = bad[next(state) % 6];
      d->bad++;
    }
    d->ids[i] = id;
    if (c->target_dtype == WEFT_I32)
      ((int32_t *)d->target)[i] = (int32_t)id;
    else
      ((int64_t *)d->target)[i] = id;
  }
}

/* The target's logit and Σ p·(z − m), which the oracle does not answer. */
static void more_of_the_row(struct forward_data *d, const oracle *o, int64_t i) {
  const int64_t h = o->hidden;
  double top = -INFINITY, sum = 0, weighted = 0;
  double *z = malloc((size_t)o->vocab * sizeof *z);
  if (!z) abort();
  for (int64_t j = 0; j < o->vocab; j++) {
    double a = 0;
    for (int64_t k = 0; k < h; k++)
      a += o->x[i * h + k] * o->w[j * h + k];
    z[j] = (o->cap > 0 ? o->cap * tanh(a / o->cap) : a) / o->temperature;
    if (z[j] > top) top = z[j];
  }
  for (int64_t j = 0; j < o->vocab; j++) {
    sum += exp(z[j] - top);
    weighted += exp(z[j] - top) * (z[j] - top);
  }
  const int64_t id = d->ids[i];
  d->z_target[i] = id >= 0 && id < o->vocab && id != o->ignore_index ? z[id] : 0;
  d->sum_ratio[i] = weighted / sum;
  free(z);
}

int forward_data_make(const struct forward_case *c, uint64_t seed, struct forward_data *d) {
  memset(d, 0, sizeof *d);
  d->c = c;
  uint64_t state = seed;
  const int64_t rows = c->vocab + c->padding;
  const double scale = c->amplitude != 0 ? c->amplitude : 1.0 / sqrt((double)c->hidden);
  double *x = malloc((size_t)(c->tokens * c->hidden) * sizeof *x);
  double *w = malloc((size_t)(rows * c->hidden) * sizeof *w);
  d->target_bytes = (size_t)c->tokens * (c->target_dtype == WEFT_I32 ? 4 : 8);
  d->target = malloc(d->target_bytes);
  d->ids = malloc((size_t)c->tokens * sizeof *d->ids);
  d->z_target = malloc((size_t)c->tokens * sizeof *d->z_target);
  d->sum_ratio = malloc((size_t)c->tokens * sizeof *d->sum_ratio);
  if (!x || !w || !d->target || !d->ids || !d->z_target || !d->sum_ratio) return -1;
  d->x = matrix(c, c->tokens, c->x_extra, 1.0, c->shift != 0 ? 1.0 : 0.0, &state, x, &d->x_bytes);
  d->w = matrix(c, rows, c->w_extra, scale, c->shift, &state, w, &d->w_bytes);
  if (!d->x || !d->w) return -1;
  /* Padding counts for nothing, whatever it holds. */
  for (int64_t i = c->vocab * (c->hidden + c->w_extra); i < rows * (c->hidden + c->w_extra); i++)
    ((uint16_t *)d->w)[i] = c->dtype == WEFT_F16 ? 0x7bff : 0x7f7f; /* the largest finite */
  make_targets(d, &state);
  oracle o = {.tokens = c->tokens,
              .hidden = c->hidden,
              .vocab = c->vocab,
              .x = x,
              .w = w,
              .target = d->ids,
              .ignore_index = c->ignore_index ? c->ignore_index : -100,
              .temperature = c->temperature != 0 ? (double)c->temperature : 1.0,
              .cap = (double)c->softcap};
  oracle_run(&o);
  for (int64_t i = 0; i < c->tokens; i++)
    more_of_the_row(d, &o, i);
  d->nll = o.nll, d->lse = o.lse, d->entropy = o.entropy, d->largest = o.largest;
  free(o.dx);
  free(o.dw);
  free(x);
  free(w);
  return 0;
}

void forward_data_free(struct forward_data *d) {
  void *all[] = {d->x,   d->w,       d->target,  d->ids,      d->nll,
                 d->lse, d->entropy, d->largest, d->z_target, d->sum_ratio};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
}

weft_ce_config forward_config(const struct forward_case *c) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = c->tokens;
  config.hidden = c->hidden;
  config.vocab = c->vocab;
  config.vocab_local = c->vocab + c->padding;
  config.dtype = c->dtype;
  config.w_dtype = c->dtype;
  config.target_dtype = c->target_dtype;
  config.softcap = c->softcap;
  config.wants = c->entropy ? WEFT_CE_ENTROPY : 0;
  config.device = WEFT_DEVICE_CUDA;
  if (c->ignore_index) config.ignore_index = c->ignore_index;
  return config;
}

static const uint32_t poison = 0xdeadbeef;

int forward_outputs_make(int64_t tokens, struct forward_outputs *out) {
  const size_t count = (size_t)tokens + 2 * FORWARD_GUARD;
  out->nll = malloc(count * 4);
  out->lse = malloc(count * 4);
  out->entropy = malloc(count * 4);
  out->stats = malloc(count * 16);
  if (!out->nll || !out->lse || !out->entropy || !out->stats) return -1;
  for (size_t i = 0; i < count * 4; i++)
    memcpy(&out->stats[i], &poison, 4);
  memcpy(out->nll, out->stats, count * 4);
  memcpy(out->lse, out->stats, count * 4);
  memcpy(out->entropy, out->stats, count * 4);
  return 0;
}

void forward_outputs_free(struct forward_outputs *out) {
  free(out->nll);
  free(out->lse);
  free(out->entropy);
  free(out->stats);
}

static int is_poison(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits == poison;
}

static int guards_hold(const float *values, int64_t tokens, int64_t width) {
  for (int64_t i = 0; i < FORWARD_GUARD * width; i++)
    if (!is_poison(values[i]) || !is_poison(values[(tokens + FORWARD_GUARD) * width + i])) return 0;
  return 1;
}

static int is_off(float got, double expected, double bound) {
  return !(fabs((double)got - expected) <= bound);
}

int forward_compare(const struct forward_data *d, const struct forward_outputs *got, char *why,
                    size_t room) {
  const struct forward_case *c = d->c;
  const int64_t m = c->tokens, ignore = c->ignore_index ? c->ignore_index : -100;
  if (!guards_hold(got->nll, m, 1) || !guards_hold(got->lse, m, 1) ||
      !guards_hold(got->stats, m, 4) ||
      (c->entropy ? !guards_hold(got->entropy, m, 1) : !is_poison(got->entropy[FORWARD_GUARD]))) {
    snprintf(why, room, "wrote outside an output");
    return 1;
  }
  for (int64_t i = 0; i < m; i++) {
    const double bound = 2e-5 * (1 + d->largest[i]);
    const float nll = got->nll[FORWARD_GUARD + i], lse = got->lse[FORWARD_GUARD + i];
    const float entropy = got->entropy[FORWARD_GUARD + i];
    const float *stats = got->stats + 4 * (FORWARD_GUARD + i);
    const int ignored = d->ids[i] == ignore;
    const char *wrong = NULL;
    if (ignored ? nll != 0.0f : isnan(d->nll[i]) ? !isnan(nll) : is_off(nll, d->nll[i], bound))
      wrong = "nll";
    if (is_off(lse, d->lse[i], bound)) wrong = "lse";
    if (c->entropy &&
        (ignored ? entropy != 0.0f : !isnan(d->nll[i]) && is_off(entropy, d->entropy[i], bound)))
      wrong = "entropy";
    if (is_off((float)(stats[0] + log((double)stats[1])), d->lse[i], bound)) wrong = "stats m, s";
    if (is_off(stats[2], d->z_target[i], bound)) wrong = "stats z_target";
    if (c->entropy ? is_off(stats[3] / stats[1], d->sum_ratio[i], bound) : stats[3] != 0.0f)
      wrong = "stats t";
    if (wrong) {
      snprintf(why, room,
               "%s of token %lld (target %lld): nll %.9g, expected %.9g; lse %.9g, expected %.9g; "
               "entropy %.9g, expected %.9g; stats %.9g %.9g %.9g %.9g; bound %.3g",
               wrong, (long long)i, (long long)d->ids[i], nll, d->nll[i], lse, d->lse[i], entropy,
               d->entropy[i], stats[0], stats[1], stats[2], stats[3], bound);
      return 1;
    }
  }
  return 0;
}
