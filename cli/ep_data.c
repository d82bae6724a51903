/* See ep_data.h. Loops over all tokens of all ranks; nothing of the library's routing. */
#include "ep_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "synth.h"

static int64_t own_experts(const ep_options *o) {
  return o->experts / o->ranks;
}

/* ---- Data ---- */

/* The `index`-th draw of K different experts out of `choice` from `first` on, around `skip_from` to
 * `skip_to`. */
static void draw(const ep_options *o, int64_t index, int64_t rank, int64_t *topk) {
  const int64_t own = own_experts(o);
  const bool local = o->strategy == STRATEGY_LOCAL_RAND || o->strategy == STRATEGY_LOCAL_SAME;
  const bool remote = o->strategy == STRATEGY_REMOTE_RAND;
  const int64_t choice = local ? own : remote ? o->experts - own : o->experts;
  uint64_t bits = synth_bits((uint64_t)o->seed, SYNTH_TARGET, index);
  for (int64_t k = 0; k < o->topk; k++) {
    bool again = true;
    while (again) {
      bits = synth_bits(bits, SYNTH_TARGET, k);
      const int64_t drawn = (int64_t)(bits % (uint64_t)choice);
      topk[k] = local ? rank * own + drawn : remote && drawn >= rank * own ? drawn + own : drawn;
      again = false;
      for (int64_t j = 0; j < k; j++)
        again = again || topk[j] == topk[k];
    }
  }
}

bool ep_data_make(ep_data *data, const ep_options *o, error *error) {
  const int64_t slots = o->tokens * o->topk;
  const bool same = o->strategy == STRATEGY_RANDOM_SAME || o->strategy == STRATEGY_LOCAL_SAME;
  *data = (ep_data){o, calloc((size_t)o->ranks, sizeof(ep_tokens))};
  for (int64_t r = 0; data->ranks != NULL && r < o->ranks; r++) {
    ep_tokens *t = &data->ranks[r];
    t->x = malloc((size_t)(o->tokens * o->hidden + 1) * sizeof *t->x);
    t->topk = malloc((size_t)(slots + 1) * sizeof *t->topk);
    t->weights = malloc((size_t)(slots + 1) * sizeof *t->weights);
    if (!t->x || !t->topk || !t->weights) break;
    tensor x = {WEFT_BF16, 2, {o->tokens, o->hidden}, o->tokens * o->hidden, t->x};
    synth_normal(&x, synth_bits((uint64_t)o->seed, SYNTH_X, r), SYNTH_X, 1);
    synth_gradient(t->weights, slots, synth_bits((uint64_t)o->seed, SYNTH_G_NLL, r), SYNTH_G_NLL);
    for (int64_t i = 0; i < o->tokens; i++)
      draw(o, same ? 0 : r * o->tokens + i, r, t->topk + i * o->topk);
    if (r + 1 == o->ranks) return true;
  }
  ep_data_free(data);
  return error_set(error, "no memory for the tokens of %lld ranks", (long long)o->ranks);
}

void ep_data_free(ep_data *data) {
  for (int64_t r = 0; data->ranks != NULL && r < data->options->ranks; r++) {
    free(data->ranks[r].x);
    free(data->ranks[r].topk);
    free(data->ranks[r].weights);
  }
  free(data->ranks);
  *data = (ep_data){0};
}

/* Channel i of what an expert makes of a token: sign, an exponent from −4 to 3, a fraction. */
static uint64_t row_key(const ep_options *o, int64_t expert, int64_t rank, int64_t token) {
  const int64_t index = (expert * o->ranks + rank) * o->tokens + token;
  return synth_bits((uint64_t)o->seed, SYNTH_W, index);
}

static uint16_t made(uint64_t key, int64_t i) {
  const uint64_t bits = (key ^ (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15) >> 48;
  return (uint16_t)((bits & 0x8000) | (123 + (bits >> 8 & 7)) << 7 | (bits & 0x7f));
}

/* ---- What must be ---- */

typedef void (*row_fn)(void *user, int64_t row, int64_t expert, int64_t rank, int64_t token);

/* Calls fn for the rows of an expert in order: source rank, token. Returns how many. */
static int64_t each_row(const ep_data *data, int64_t expert, int64_t first, row_fn fn, void *user) {
  const ep_options *o = data->options;
  int64_t row = first;
  for (int64_t r = 0; r < o->ranks; r++)
    for (int64_t i = 0; i < o->tokens * o->topk; i++)
      if (data->ranks[r].topk[i] == expert) fn(user, row++, expert, r, i / o->topk);
  return row - first;
}

typedef struct filling {
  const ep_options *options;
  uint16_t *y;
} filling;

static void fill_row(void *user, int64_t row, int64_t expert, int64_t rank, int64_t token) {
  const filling *f = user;
  const uint64_t key = row_key(f->options, expert, rank, token);
  for (int64_t i = 0; i < f->options->hidden; i++)
    f->y[row * f->options->hidden + i] = made(key, i);
}

void ep_data_fill_rows(const ep_data *data, int64_t rank, const int64_t *offsets, uint16_t *y) {
  filling f = {data->options, y};
  const int64_t experts = own_experts(data->options);
  for (int64_t e = 0; e < experts; e++)
    each_row(data, rank * experts + e, offsets[e], fill_row, &f);
}

/* The value of an E4M3 code. */
static float e4m3_value(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const float size =
      exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf(1 + (float)fraction / 8, exponent - 7);
  return code & 128 ? -size : size;
}

/* Whether `code` is the nearest to `value` of its neighbours, which on a tie have the odd fraction;
 * beyond the largest there is none. */
static bool is_nearest(int code, float value) {
  const int size = code & 127;
  if (size == 127 || (signbit(value) != 0) != (code >= 128)) return false;
  const double distance = fabs((double)e4m3_value(size) - fabs((double)value));
  for (int other = size - 1; other <= size + 1; other += 2) {
    if (other < 0 || other > 126) continue;
    const double theirs = fabs((double)e4m3_value(other) - fabs((double)value));
    if (theirs < distance || (theirs == distance && size % 2 == 1)) return false;
  }
  return true;
}

static bool right_codes(const uint16_t *x, int64_t hidden, const uint8_t *codes,
                        const float *scales) {
  for (int64_t first = 0; first < hidden; first += 128) {
    const int64_t last = first + 128 < hidden ? first + 128 : hidden;
    float amax = 1e-4f;
    for (int64_t i = first; i < last; i++)
      amax = fmaxf(amax, fabsf(bf16_to_float(x[i])));
    const float scale = amax / 448;
    if (scales[first / 128] != scale) return false;
    for (int64_t i = first; i < last; i++)
      if (!is_nearest(codes[i], bf16_to_float(x[i]) * (1 / scale))) return false;
  }
  return true;
}

typedef struct checking {
  const ep_data *data;
  const ep_rows *rows;
  int64_t wrong;
} checking;

static void check_row(void *user, int64_t row, int64_t expert, int64_t rank, int64_t token) {
  checking *c = user;
  const ep_options *o = c->data->options;
  const int64_t h = o->hidden;
  const uint16_t *x = c->data->ranks[rank].x + token * h;
  (void)expert;
  if (o->dtype == 0)
    c->wrong += memcmp((const uint16_t *)c->rows->x + row * h, x, (size_t)h * 2) != 0;
  else
    c->wrong += !right_codes(x, h, (const uint8_t *)c->rows->x + row * h,
                             c->rows->scales + row * ((h + 127) / 128));
}

int64_t ep_wrong_rows(const ep_data *data, int64_t rank, const ep_rows *rows) {
  const ep_options *o = data->options;
  const int64_t experts = own_experts(o);
  checking c = {data, rows, 0};
  int64_t end = 0;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t first =
        o->layout == WEFT_EP_SLAB ? e * o->ranks * o->tokens : (end + 127) / 128 * 128;
    if (rows->offsets[e] != first) return c.wrong + 1; /* rows are not where they can be read */
    const int64_t count = each_row(data, rank * experts + e, first, check_row, &c);
    c.wrong += rows->counts[e] != count;
    end = first + count;
  }
  return c.wrong;
}

int64_t ep_wrong_out(const ep_data *data, int64_t rank, const uint16_t *out) {
  const ep_options *o = data->options;
  const ep_tokens *t = &data->ranks[rank];
  int64_t wrong = 0;
  for (int64_t token = 0; token < o->tokens; token++) {
    uint64_t keys[32];
    bool right = true;
    for (int64_t k = 0; k < o->topk; k++)
      keys[k] = row_key(o, t->topk[token * o->topk + k], rank, token);
    for (int64_t i = 0; i < o->hidden && right; i++) {
      float sum = 0;
      for (int64_t k = 0; k < o->topk; k++)
        sum = fmaf(t->weights[token * o->topk + k], bf16_to_float(made(keys[k], i)), sum);
      right = out[token * o->hidden + i] == bf16_from_float(sum);
    }
    wrong += !right;
  }
  return wrong;
}
