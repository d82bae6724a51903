/* What must be in the arrays of a scene of dispatch and combine, by plain loops over all tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/ep/toy.h"
#include "ep_scene.h"

static float bf16(uint32_t bits) {
  const uint32_t wide = bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double code_value(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
  return code & 128 ? -size : size;
}

/* Of all codes the nearest; on a tie the even one. */
static int nearest_code(float value) {
  const double size = fabs((double)value);
  int best = 0;
  for (int code = 1; code < 127; code++) {
    const double d = fabs(code_value(code) - size), least = fabs(code_value(best) - size);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best | (signbit(value) ? 128 : 0);
}

/* Code of a channel and the scale word of its block (UE8M0: the byte), by the contract's words. */
static int code_of(const struct ep_scene *s, uint64_t seed, uint32_t rank, uint32_t token,
                   uint32_t channel, uint32_t *word) {
  const uint32_t first = channel / 128 * 128;
  float amax = 1e-4f;
  for (uint32_t i = first; i < first + 128 && i < s->form.hidden; i++)
    amax = fmaxf(amax, fabsf(bf16(ep_scene_x(seed, rank, token, i))));
  float scale = amax / 448;
  if (s->form.scale_format != EP_SCALE_F32) scale = exp2f(ceilf(log2f(scale)));
  memcpy(word, &scale, 4);
  if (s->form.scale_format == EP_SCALE_UE8M0) *word = (uint32_t)(ilogbf(scale) + 127);
  return nearest_code(bf16(ep_scene_x(seed, rank, token, channel)) * (1 / scale));
}

static void wrong(uint32_t rank, const char *what, uint64_t where, double got, double expected) {
  char text[160];
  snprintf(text, sizeof text, "rank %u: %s[%llu] is %g, expected %g", rank, what,
           (unsigned long long)where, got, expected);
  loom_report_wrong(text);
}

/* ---- Received ---- */

/* A row that its source has not brought. */
static int check_empty(const struct ep_scene *s, uint32_t rank, const struct ep_scene_set *e,
                       uint32_t row) {
  const uint32_t bytes = s->form.hidden * (s->form.fp8 ? 1 : 2);
  unsigned char got[EP_SCENE_HIDDEN_MAX * 2];
  float weight;
  loom_read(e->recv_x + (uint64_t)row * bytes, got, bytes);
  loom_read(e->recv_weights + row * 4, &weight, 4);
  for (uint32_t i = 0; i < bytes; i++)
    if (got[i] != 0) return wrong(rank, "recv_x, row of a dead rank", row, got[i], 0), 1;
  return weight != 0 ? wrong(rank, "recv_weights", row, weight, 0), 1 : 0;
}

static int check_row(const struct ep_scene *s, uint32_t rank, const struct ep_scene_set *e,
                     uint64_t x_seed, uint32_t row, uint32_t source, uint32_t token, uint32_t k) {
  const uint32_t h = s->form.hidden, width = s->form.fp8 ? 1 : 2;
  unsigned char got[EP_SCENE_HIDDEN_MAX * 2];
  float weight;
  loom_read(e->recv_x + (uint64_t)row * h * width, got, h * width);
  loom_read(e->recv_weights + row * 4, &weight, 4);
  const float expected = ep_scene_weight(s, x_seed, source, token, k);
  if (weight != expected) return wrong(rank, "recv_weights", row, weight, expected), 1;
  for (uint32_t i = 0; i < h; i++) {
    uint32_t word, scale = 0;
    if (!s->form.fp8) {
      const uint16_t x = ep_scene_x(x_seed, source, token, i);
      if (!memcmp(got + i * 2, &x, 2)) continue;
      return wrong(rank, "recv_x, row", row, i, x), 1;
    }
    const int code = code_of(s, x_seed, source, token, i, &word);
    if (got[i] != code) return wrong(rank, "recv_x, row", row, got[i], code), 1;
    if (i % 128 != 0) continue;
    const uint32_t b = i / 128, packed = s->form.scale_format == EP_SCALE_UE8M0;
    const uint32_t w = packed ? b / 4 : b;
    const uint64_t index =
        !s->form.columns ? (uint64_t)row * s->scales.words + w
        : s->form.packed
            ? w * s->scales.stride + row
            : (row / s->slab_rows * s->scales.words + w) * s->scales.stride + row % s->slab_rows;
    loom_read(e->recv_scales + index * 4, &scale, 4);
    if (packed) scale = scale >> b % 4 * 8 & 255;
    if (scale != word) return wrong(rank, "recv_scales", index, scale, word), 1;
  }
  return 0;
}

static int check_i64(uint32_t rank, const char *what, uint64_t array, uint32_t index,
                     int64_t expected) {
  int64_t got;
  loom_read(array + index * 8, &got, 8);
  if (got == expected) return 0;
  return wrong(rank, what, index, (double)got, (double)expected), 1;
}

static int check_received(const struct ep_scene *s, uint32_t rank, const struct ep_scene_set *e,
                          struct ep_scene_fault fault) {
  uint32_t row = 0;
  for (uint32_t l = 0; l < EP_SCENE_LOCAL; l++) {
    if (!s->form.packed) row = l * s->slab_rows;
    if (s->form.packed) row = ep_rounded(row, 4);
    const uint32_t first = row;
    if (check_i64(rank, "offsets", e->offsets, l, row)) return 1;
    for (uint32_t r = 0; r < s->ranks; r++) {
      const uint32_t before = row;
      const int bad = (int)r == fault.rank;
      for (uint32_t t = 0; (!bad || fault.counted) && t < ep_scene_tokens(r); t++)
        for (uint32_t k = 0; k < EP_SCENE_TOPK; k++) {
          if (ep_scene_topk(s, e->seed, r, t, k) != (int32_t)(rank * EP_SCENE_LOCAL + l)) continue;
          if (bad ? check_empty(s, rank, e, row) : check_row(s, rank, e, e->x_seed, row, r, t, k))
            return 1;
          row++;
        }
      if (check_i64(rank, "source_counts", e->source_counts, l * s->ranks + r, row - before))
        return 1;
    }
    if (check_i64(rank, "counts", e->counts, l, row - first)) return 1;
  }
  return 0;
}

/* ---- Combined ---- */

static float returned(const struct ep_scene *s, const struct ep_scene_set *e, uint32_t rank,
                      uint32_t token, uint32_t i, uint32_t expert) {
  uint32_t word;
  if (s->form.fp8)
    return bf16(ep_toy_of_code((uint32_t)code_of(s, e->x_seed, rank, token, i, &word), expert));
  return bf16(ep_toy_of_bf16(ep_scene_x(e->x_seed, rank, token, i), expert));
}

static int check_token(const struct ep_scene *s, uint32_t rank, const struct ep_scene_set *e,
                       uint32_t token, int absent, uint32_t weighted) {
  uint16_t got[EP_SCENE_HIDDEN_MAX];
  float weights[EP_SCENE_TOPK];
  int32_t experts[EP_SCENE_TOPK];
  loom_read(e->out + (uint64_t)token * s->form.hidden * 2, got, s->form.hidden * 2);
  for (uint32_t k = 0; k < EP_SCENE_TOPK; k++) {
    float gradient;
    experts[k] = ep_scene_topk(s, e->seed, rank, token, k);
    if (experts[k] >= 0 && experts[k] / EP_SCENE_LOCAL == absent) experts[k] = -1;
    weights[k] = ep_scene_weight(s, e->x_seed, rank, token, k);
    loom_read(e->weight_gradient + (token * EP_SCENE_TOPK + k) * 4, &gradient, 4);
    const float expected =
        experts[k] < 0 ? 0.0f : ep_toy_gradient(weights[k], (uint32_t)experts[k]);
    if (gradient != expected) return wrong(rank, "weight_gradient", k, gradient, expected), 1;
  }
  for (uint32_t i = 0; i < s->form.hidden; i++) {
    float sum = 0;
    for (uint32_t k = 0; k < EP_SCENE_TOPK; k++)
      if (experts[k] >= 0)
        sum = fmaf(weighted ? weights[k] : 1.0f,
                   returned(s, e, rank, token, i, (uint32_t)experts[k]), sum);
    if (got[i] != to_bf16(sum)) return wrong(rank, "out", token, bf16(got[i]), (double)sum), 1;
  }
  return 0;
}

void ep_scene_check(const struct ep_scene *s, uint32_t rank, uint32_t set,
                    struct ep_scene_fault fault, uint32_t weighted) {
  const struct ep_scene_set *e = &s->rank[rank].set[set];
  if (check_received(s, rank, e, fault)) return;
  for (uint32_t t = 0; t < ep_scene_tokens(rank); t++)
    if (check_token(s, rank, e, t, fault.rank, weighted)) return;
}
