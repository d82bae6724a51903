/* The row arithmetic itself, in 16-lane vectors that the compiler maps to the instruction set of
 * the including file, which defines WEFT_ROWS_TABLE and WEFT_ROWS_ISA. Sums run over 16 lanes in
 * order of index and are folded at the end in a fixed order, so that every variant adds in the same
 * order. */
#include <math.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "cpu/rows.h"

enum { LANES = 16 };
typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));

static inline v16f load(const float *p) {
  v16f v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(float *p, v16f v) {
  memcpy(p, &v, sizeof v);
}

/* The first n < 16 floats, the rest filled with `fill`. */
static inline v16f load_part(const float *p, int64_t n, float fill) {
  float lanes[LANES];
  for (int i = 0; i < LANES; i++)
    lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}

static inline void store_part(float *p, v16f v, int64_t n) {
  float lanes[LANES];
  store(lanes, v);
  for (int64_t i = 0; i < n; i++)
    p[i] = lanes[i];
}

static inline v16f splat(float x) {
  return x - (v16f){0};
}

static inline v16f select16(v16i mask, v16f yes, v16f no) {
  return (v16f)(((v16i)yes & mask) | ((v16i)no & ~mask));
}

/* Takes b where a is not greater. A NaN may be lost here: the exponentials bring it back. */
static inline v16f max16(v16f a, v16f b) {
  return select16(a > b, a, b);
}

static inline float fold_max(v16f v) {
  float lanes[LANES], best;
  store(lanes, v);
  best = lanes[0];
  for (int i = 1; i < LANES; i++)
    best = lanes[i] > best ? lanes[i] : best;
  return best;
}

static inline float fold_sum(v16f v) {
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++)
      lanes[i] += lanes[i + width];
  return lanes[0];
}

/* e^x for x ≤ 0 (and up to 88), 0 below −87.3, relative error below 2e-7; NaN gives NaN.
 * x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its Taylor polynomial of degree 7 (next term 5e-9). */
static inline v16f exp16(v16f x) {
  const v16f least = splat(-87.3f);
  const v16i alive = ~(x < least);
  x = select16(alive, x, least);
  const v16f magic = splat(12582912.0f); /* 1.5·2²³: adding it rounds to an integer */
  const v16f shifted = x * 1.44269504f + magic;
  const v16f n = shifted - magic;
  const v16f r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts */
  v16f p = splat(1.98412698e-4f);
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const v16i exponent = ((v16i)shifted) << 23; /* the low bits of `shifted` are n */
  const v16f value = (v16f)((v16i)p + exponent);
  const v16f result = select16(p == p, value, p);
  return (v16f)((v16i)result & alive);
}

/* tanh x: its Taylor polynomial up to x⁹ below 0.3 (next term 2e-8 relative), else from e^(−2|x|).
 */
static inline v16f tanh16(v16f x) {
  const v16i sign = (v16i)x & (v16i)splat(-0.0f);
  const v16f a = (v16f)((v16i)x & ~(v16i)splat(-0.0f));
  const v16f e = exp16(a * -2.0f);
  const v16f large = (v16f)((v16i)((1.0f - e) / (1.0f + e)) | sign);
  const v16f q = x * x;
  v16f p = splat(2.18694885e-2f);
  p = p * q - 5.39682540e-2f;
  p = p * q + 1.33333333e-1f;
  p = p * q - 3.33333333e-1f;
  const v16f small = x + x * q * p;
  return select16(a < splat(0.3f), small, large);
}

static inline v16f scale16(v16f a, const weft__logit_scale *scale) {
  if (scale->cap > 0.0f) a = tanh16(a / scale->cap) * scale->cap;
  return a * scale->inverse_temperature;
}

static void logits(float *z, int64_t n, const weft__logit_scale *scale) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    store(z + i, scale16(load(z + i), scale));
  if (i < n) store_part(z + i, scale16(load_part(z + i, n - i, 0.0f), scale), n - i);
}

static void statistics(float *z, int64_t n, const weft__logit_scale *scale, weft__stats *out) {
  v16f top = splat(-INFINITY);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const v16f v = scale16(load(z + i), scale);
    store(z + i, v);
    top = max16(top, v);
  }
  const int64_t rest = n - i;
  if (rest > 0) {
    const v16f v = scale16(load_part(z + i, rest, 0.0f), scale);
    store_part(z + i, v, rest);
    top = max16(top, load_part(z + i, rest, -INFINITY));
  }
  const float m = fold_max(top);
  v16f s = splat(0.0f), t = splat(0.0f);
  for (i = 0; i + LANES <= n; i += LANES) {
    const v16f d = load(z + i) - m, e = exp16(d);
    s += e;
    t += e * d;
  }
  if (rest > 0) {
    float lanes[LANES];
    store(lanes, load_part(z + i, rest, m) - m);
    const v16f d = load_part(lanes, rest, -100.0f), e = exp16(d); /* e^−100 counts as 0 */
    s += e;
    t += e * d;
  }
  out->m = m;
  out->s = fold_sum(s);
  out->z_target = 0.0f;
  out->t = fold_sum(t);
}

static inline v16f gradient16(v16f z, const weft__logit_scale *scale, const weft__row_gradient *g) {
  const v16f d = z - g->m;
  const v16f p = exp16(d) * g->inverse_s;
  v16f dz = p * (g->constant + g->per_logp * (d - g->log_s)) * scale->inverse_temperature;
  if (scale->cap > 0.0f) {
    const v16f u = z * (scale->temperature / scale->cap); /* tanh(a/cap), and c' = 1 − tanh² */
    dz *= 1.0f - u * u;
  }
  return dz;
}

static void gradient(float *z, int64_t n, const weft__logit_scale *scale,
                     const weft__row_gradient *g) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    store(z + i, gradient16(load(z + i), scale, g));
  if (i < n) store_part(z + i, gradient16(load_part(z + i, n - i, 0.0f), scale, g), n - i);
}

static void add(float *sum, const float *in, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    store(sum + i, load(sum + i) + load(in + i));
  for (; i < n; i++)
    sum[i] += in[i];
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
    store(out + i, (v16f)(__builtin_convertvector(h, v16u) << 16));
  }
  for (; i < n; i++)
    out[i] = bf16_to_f32(in[i]);
}

static void bf16_row_from_f32(uint16_t *out, const float *in, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const v16f f = load(in + i);
    const v16u bits = (v16u)f, nan = (v16u)(f != f);
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

const weft__rows WEFT_ROWS_TABLE = {WEFT_ROWS_ISA, statistics, logits, gradient,
                                    to_f32,        from_f32,   add};
