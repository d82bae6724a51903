/* The row arithmetic itself, in 16-lane vectors that the compiler maps to the instruction set of
 * the including file, which defines WEFT_ROWS_TABLE and WEFT_ROWS_ISA. Sums run over 16 lanes in
 * order of index and are folded at the end in a fixed order, so that every variant adds in the same
 * order. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "cpu/rows.h"

/* 16 lanes, held in as many of the machine's own vectors as that takes. */
enum { LANES = 16 };
#if defined(__AVX512F__)
enum { WIDTH = 16, PRODUCT_ROWS = 12 };
#elif defined(__AVX2__)
enum { WIDTH = 8, PRODUCT_ROWS = 6 };
#else
enum { WIDTH = 4, PRODUCT_ROWS = 3 };
#endif
enum { PARTS = LANES / WIDTH };
typedef float vf __attribute__((vector_size(WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));

static inline vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(float *p, vf v) {
  memcpy(p, &v, sizeof v);
}

static inline vf splat(float x) {
  return x - (vf){0};
}

static inline vf choose(vi mask, vf yes, vf no) {
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* Takes b where a is not greater. A NaN may be lost here: the exponentials bring it back. */
static inline vf greater(vf a, vf b) {
  return choose(a > b, a, b);
}

/* The lanes of a full group, or the first `n` of them and `fill` in the rest, in a buffer. */
static inline void fill_group(float group[LANES], const float *p, int64_t n, float fill) {
  for (int i = 0; i < LANES; i++)
    group[i] = i < n ? p[i] : fill;
}

static inline float fold_sum(const vf parts[PARTS]) {
  float lanes[LANES];
  memcpy(lanes, parts, sizeof lanes);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++)
      lanes[i] += lanes[i + width];
  return lanes[0];
}

static inline float fold_max(const vf parts[PARTS]) {
  float lanes[LANES], best;
  memcpy(lanes, parts, sizeof lanes);
  best = lanes[0];
  for (int i = 1; i < LANES; i++)
    best = lanes[i] > best ? lanes[i] : best;
  return best;
}

/* e^x for x ≤ 0 (and up to 88), 0 below −87.3, relative error below 2e-7; NaN gives NaN.
 * x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its Taylor polynomial of degree 7 (next term 5e-9). */
static inline vf exponential(vf x) {
  const vf least = splat(-87.3f);
  const vi alive = ~(x < least);
  x = choose(alive, x, least);
  const vf magic = splat(12582912.0f); /* 1.5·2²³: adding it rounds to an integer */
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts */
  vf p = splat(1.98412698e-4f);
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const vi exponent = ((vi)shifted) << 23; /* the low bits of `shifted` are n */
  const vf result = choose(p == p, (vf)((vi)p + exponent), p);
  return (vf)((vi)result & alive);
}

/* tanh x: its Taylor polynomial up to x⁹ below 0.3 (next term 2e-8 relative), else from e^(−2|x|).
 */
static inline vf tangent(vf x) {
  const vi sign_bit = (vi)splat(-0.0f), sign = (vi)x & sign_bit;
  const vf a = (vf)((vi)x & ~sign_bit);
  const vf e = exponential(a * -2.0f);
  const vf large = (vf)((vi)((1.0f - e) / (1.0f + e)) | sign);
  const vf q = x * x;
  vf p = splat(2.18694885e-2f);
  p = p * q - 5.39682540e-2f;
  p = p * q + 1.33333333e-1f;
  p = p * q - 3.33333333e-1f;
  return choose(a < splat(0.3f), x + x * q * p, large);
}

static inline vf scaled(vf a, const weft__logit_scale *scale) {
  if (scale->cap > 0.0f) a = tangent(a / scale->cap) * scale->cap;
  return a * scale->inverse_temperature;
}

static void logits(const float *a, float *z, int64_t n, const weft__logit_scale *scale) {
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH)
    store(z + i, scaled(load(a + i), scale));
  if (i == n) return;
  float group[LANES];
  fill_group(group, a + i, n - i, 0.0f);
  store(group, scaled(load(group), scale));
  memcpy(z + i, group, (size_t)(n - i) * sizeof(float));
}

/* z − m ≤ 0, but never so far below 0 that its product with e^(z−m) = 0 could be no number. */
static inline vf below_top(vf z, float m) {
  const vf d = z - m, floor = splat(WEFT__FAR_BELOW);
  return choose(d < floor, floor, d);
}

/* ---- Steep caps: logits that are large where the cap saturates ----
 * With S = cap/T in the hundreds and above, z rounds by more than a softmax can bear (6e-8·S),
 * though S − |z| = S·2e/(1 + e), e = e^(−2|a|/cap), is known to all its digits. So z − m is taken
 * from that, m being any number near the top. Above 2²⁰ the rounding of m would be more than an
 * exponent. */
static inline bool is_steep(const weft__logit_scale *scale) {
  const float top = scale->cap * scale->inverse_temperature;
  return scale->cap > 0.0f && top > 64.0f && top <= 0x1p20f;
}

static inline vf steep_below_top(vf a, vf z, const weft__logit_scale *scale, float m) {
  const vi sign_bit = (vi)splat(-0.0f), sign = (vi)a & sign_bit;
  const vf u = (vf)((vi)(a / scale->cap) & ~sign_bit), e = exponential(u * -2.0f);
  const float top = scale->cap * scale->inverse_temperature;
  const vf below = (vf)((vi)(top * (2.0f * e / (1.0f + e))) | sign);
  const vf signed_top = (vf)((vi)splat(top) | sign);
  const vf d = choose(u > splat(1.0f), (signed_top - m) - below, z - m);
  const vf floor = splat(WEFT__FAR_BELOW);
  return choose(d < floor, floor, d);
}

/* Adds a group of e^d and e^d·d to the lanes' sums. */
static inline void add_part(vf *s, vf *t, vf d) {
  const vf e = exponential(d);
  *s += e;
  *t += e * d;
}

static inline void add_group(vf s[PARTS], vf t[PARTS], const float *z, float m) {
#pragma GCC unroll 4
  for (int part = 0; part < PARTS; part++)
    add_part(&s[part], &t[part], below_top(load(z + part * WIDTH), m));
}

/* As statistics(), which see; z may be the row a, so a group is read before it is written. */
static void steep_statistics(const float *a, float *z, int64_t n, const weft__logit_scale *scale,
                             weft__stats *out) {
  float group[LANES], logits_of[LANES];
  vf top[PARTS], s[PARTS], t[PARTS];
  for (int part = 0; part < PARTS; part++) {
    top[part] = splat(-INFINITY);
    s[part] = t[part] = splat(0.0f);
  }
  for (int64_t i = 0; i < n; i += LANES) {
    fill_group(group, a + i, n - i, a[0]);
    for (int part = 0; part < PARTS; part++)
      top[part] = greater(top[part], scaled(load(group + part * WIDTH), scale));
  }
  const float m = fold_max(top);
  for (int64_t i = 0; i < n; i += LANES) {
    const int64_t here = n - i < LANES ? n - i : LANES;
    fill_group(group, a + i, here, 0.0f);
    for (int part = 0; part < PARTS; part++) {
      const vf products = load(group + part * WIDTH), logit = scaled(products, scale);
      store(logits_of + part * WIDTH, logit);
      store(group + part * WIDTH, steep_below_top(products, logit, scale, m));
    }
    for (int64_t lane = here; lane < LANES; lane++) /* e^−100 counts as 0 */
      group[lane] = -100.0f;
    for (int part = 0; part < PARTS; part++)
      add_part(&s[part], &t[part], load(group + part * WIDTH));
    memcpy(z + i, logits_of, (size_t)here * sizeof(float));
  }
  *out = (weft__stats){m, fold_sum(s), 0.0f, fold_sum(t)};
}

static void statistics(const float *a, float *z, int64_t n, const weft__logit_scale *scale,
                       weft__stats *out) {
  const int64_t whole = n / LANES * LANES, rest = n - whole;
  float group[LANES];
  vf top[PARTS], s[PARTS], t[PARTS];
  if (is_steep(scale)) {
    steep_statistics(a, z, n, scale, out);
    return;
  }
  for (int part = 0; part < PARTS; part++) {
    top[part] = splat(-INFINITY);
    s[part] = t[part] = splat(0.0f);
  }
  logits(a, z, n, scale);
  for (int64_t i = 0; i < whole; i += LANES)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++)
      top[part] = greater(top[part], load(z + i + part * WIDTH));
  float m = fold_max(top);
  for (int64_t i = whole; i < n; i++)
    m = z[i] > m ? z[i] : m;
  for (int64_t i = 0; i < whole; i += LANES)
    add_group(s, t, z + i, m);
  if (rest > 0) {
    for (int i = 0; i < LANES; i++) /* e^−100 counts as 0 */
      group[i] = i < rest ? z[whole + i] - m : -100.0f;
    add_group(s, t, group, 0.0f);
  }
  out->m = m;
  out->s = fold_sum(s);
  out->z_target = 0.0f;
  out->t = fold_sum(t);
}

/* c'(a): 1 − tanh² = 4e/(1 + e)² with e = e^(−2|a|/cap), which keeps its digits where tanh is
 * nearly 1. */
static inline vf cap_slope(vf a, float cap) {
  const vf e = exponential((vf)((vi)(a / cap) | (vi)splat(-0.0f)) * 2.0f), f = 1.0f + e;
  return 4.0f * e / (f * f);
}

static inline vf logit_gradient(vf a, const weft__logit_scale *scale, const weft__row_gradient *g,
                                bool steep) {
  const vf scaled_a = scaled(a, scale), top = splat(g->m);
  /* The statistics saw z rounded, so z − m must not be contracted with the product that gave z:
   * p would not sum to 1. Taking m where z is above it, which it never is, keeps them apart. */
  const vf z = choose(scaled_a > top, top, scaled_a);
  const vf d = steep ? steep_below_top(a, z, scale, g->m) : below_top(z, g->m);
  const vf p = exponential(d) * g->inverse_s;
  const vf dz = p * (g->constant - g->g_entropy * (d - g->mean)) * scale->inverse_temperature;
  return scale->cap > 0.0f ? dz * cap_slope(a, scale->cap) : dz;
}

static void gradient(float *a, int64_t n, const weft__logit_scale *scale,
                     const weft__row_gradient *g) {
  const bool steep = is_steep(scale);
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH)
    store(a + i, logit_gradient(load(a + i), scale, g, steep));
  if (i == n) return;
  float group[LANES];
  fill_group(group, a + i, n - i, 0.0f);
  store(group, logit_gradient(load(group), scale, g, steep));
  memcpy(a + i, group, (size_t)(n - i) * sizeof(float));
}

static void add(float *sum, const float *in, int64_t n) {
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH)
    store(sum + i, load(sum + i) + load(in + i));
  for (; i < n; i++)
    sum[i] += in[i];
}

static void add_scaled(float *sum, const float *in, float weight, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    sum[i] = fmaf(weight, in[i], sum[i]);
}

/* ---- A product whose sums do not depend on where a row stands ---- */

/* One group of 16 columns (its k × 16 panel) times `rows` ≤ PRODUCT_ROWS rows. */
static inline void product_group(float *z, int64_t z_ld, const float *x, int64_t x_ld, int rows,
                                 int64_t k, const float *panel) {
  vf sum[PRODUCT_ROWS][PARTS] = {{{0}}};
  const float *row[PRODUCT_ROWS]; /* rows that are not there repeat the last: not stored */
  for (int r = 0; r < PRODUCT_ROWS; r++)
    row[r] = x + (r < rows ? r : rows - 1) * x_ld;
  for (int64_t i = 0; i < k; i++)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
      const vf w = load(panel + i * LANES + part * WIDTH);
#pragma GCC unroll 12
      for (int r = 0; r < PRODUCT_ROWS; r++)
        sum[r][part] += w * row[r][i];
    }
#pragma GCC unroll 12
  for (int r = 0; r < PRODUCT_ROWS; r++)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++)
      if (r < rows) store(z + r * z_ld + part * WIDTH, sum[r][part]);
}

static void product(float *z, int64_t z_ld, const float *x, int64_t x_ld, int64_t rows,
                    const float *w, int64_t w_ld, int64_t columns, int64_t k, float *panel) {
  for (int64_t c = 0; c < columns; c += LANES) {
    for (int64_t i = 0; i < k; i++)
      for (int lane = 0; lane < LANES; lane++)
        panel[i * LANES + lane] = w[(c + lane) * w_ld + i];
    for (int64_t r = 0; r < rows; r += PRODUCT_ROWS)
      product_group(z + r * z_ld + c, z_ld, x + r * x_ld, x_ld,
                    rows - r < PRODUCT_ROWS ? (int)(rows - r) : PRODUCT_ROWS, k, panel);
  }
}

/* ---- Products where the cap is narrow ---- */

/* The cap's slope e^(−2|a|/cap) turns an error of a into a relative one of 2/cap times its size;
 * sums in f32 err by about 1e-7 of the row's largest product. Where that is more than 64 caps, the
 * products below 12 caps (the others have no slope left) are summed again in f64, in a fixed order.
 */
static void refine(float *a, int64_t n, const float *x, const float *w, int64_t w_ld, int64_t k,
                   float cap) {
  const float wide = 64.0f * cap, narrow = 12.0f * cap;
  float largest = 0.0f;
  for (int64_t i = 0; i < n; i++)
    largest = fabsf(a[i]) > largest ? fabsf(a[i]) : largest;
  if (!(largest > wide)) return;
  for (int64_t i = 0; i < n; i++) {
    double sums[LANES] = {0.0};
    if (!(fabsf(a[i]) < narrow)) continue;
    const float *row = w + i * w_ld;
    for (int64_t j = 0; j < k; j += LANES)
      for (int lane = 0; lane < LANES; lane++)
        sums[lane] += (double)x[j + lane] * (double)row[j + lane];
    for (int width = LANES / 2; width > 0; width /= 2)
      for (int lane = 0; lane < width; lane++)
        sums[lane] += sums[lane + width];
    a[i] = (float)sums[0];
  }
}

/* ---- bf16: the upper half of an f32 ---- */

static inline float bf16_to_f32(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint16_t bf16_from_f32(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (f != f) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void bf16_row_to_f32(float *out, const uint16_t *in, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    v16h h;
    memcpy(&h, in + i, sizeof h);
    const v16u bits = __builtin_convertvector(h, v16u) << 16;
    memcpy(out + i, &bits, sizeof bits);
  }
  for (; i < n; i++)
    out[i] = bf16_to_f32(in[i]);
}

static void bf16_row_from_f32(uint16_t *out, const float *in, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    v16u bits;
    memcpy(&bits, in + i, sizeof bits);
    const v16u nan = (v16u)((bits & 0x7fffffff) > 0x7f800000);
    const v16u rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    const v16h h = __builtin_convertvector((rounded & ~nan) | (quiet & nan), v16h);
    memcpy(out + i, &h, sizeof h);
  }
  for (; i < n; i++)
    out[i] = bf16_from_f32(in[i]);
}

/* ---- f16: IEEE binary16 ---- */

static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  uint32_t bits;
  float f;
  if (exponent == 0) { /* zero or subnormal: fraction · 2⁻²⁴ is exact */
    f = (float)fraction * 0x1p-24f;
    memcpy(&bits, &f, sizeof bits);
    bits |= sign;
  } else {
    bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
  }
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint16_t f16_from_f32(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 2¹⁶ and above */
  if (magnitude < 0x38800000) {                                  /* below 2⁻¹⁴: subnormal */
    float a;
    memcpy(&a, &magnitude, sizeof a);
    return (uint16_t)(sign | (uint16_t)lrintf(a * 0x1p24f));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

static void f16_row_to_f32(float *out, const uint16_t *in, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
#endif
  for (; i < n; i++)
    out[i] = f16_to_f32(in[i]);
}

static void f16_row_from_f32(uint16_t *out, const float *in, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++)
    out[i] = f16_from_f32(in[i]);
}

static void to_f32(float *out, const void *in, int64_t n, int dtype) {
  if (dtype == WEFT_BF16)
    bf16_row_to_f32(out, (const uint16_t *)in, n);
  else if (dtype == WEFT_F16)
    f16_row_to_f32(out, (const uint16_t *)in, n);
  else
    memcpy(out, in, (size_t)n * sizeof(float));
}

static void from_f32(void *out, const float *in, int64_t n, int dtype) {
  if (dtype == WEFT_BF16)
    bf16_row_from_f32((uint16_t *)out, in, n);
  else if (dtype == WEFT_F16)
    f16_row_from_f32((uint16_t *)out, in, n);
  else
    memcpy(out, in, (size_t)n * sizeof(float));
}

const weft__rows WEFT_ROWS_TABLE = {WEFT_ROWS_ISA, statistics, gradient, to_f32, from_f32,
                                    add,           add_scaled, product,  refine};
