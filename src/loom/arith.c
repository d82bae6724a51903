/* The arithmetic of src/device/ptx/arith.h in plain C. Conversions follow the formats bit by bit.
 */
#include "state.h"

#include <math.h>
#include <string.h>

float loom_bits_f32(uint32_t v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}

uint32_t loom_f32_bits(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}

/* Every NaN that arithmetic answers is this one. */
static float canonical(float v) {
  return isnan(v) ? loom_bits_f32(0x7fffffffu) : v;
}

float loom_ex2(float x) {
  return canonical(exp2f(x));
}
float loom_lg2(float x) {
  return canonical(log2f(x));
}
float loom_tanh(float x) {
  return canonical(tanhf(x));
}
float loom_fma(float a, float b, float c) {
  return canonical(fmaf(a, b, c));
}

/* PTX min and max: a NaN gives the other operand, two give the canonical one; +0 is above -0. */
float loom_max(float a, float b) {
  if (isnan(a)) return canonical(b);
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}

float loom_min(float a, float b) {
  if (isnan(a)) return canonical(b);
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? a : b;
  return a < b ? a : b;
}

uint32_t loom_bf16(float v) {
  const uint32_t u = loom_f32_bits(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* what cvt gives for NaN */
  return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

/* Rounds |v| to a float format of `mantissa` stored bits whose smallest normal exponent is `emin`,
 * to nearest even; the answer is exact in double. */
static double round_to(double v, int mantissa, int emin) {
  if (v == 0) return 0;
  int e;
  frexp(v, &e);
  e -= 1; /* v = 1.x * 2^e */
  if (e < emin) e = emin;
  const double unit = ldexp(1.0, e - mantissa);
  return nearbyint(v / unit) * unit;
}

/* The encoding of a magnitude that round_to has made representable. */
static uint32_t encode(double v, int mantissa, int emin, int bias) {
  if (v == 0) return 0;
  int e;
  frexp(v, &e);
  e -= 1;
  if (e < emin) return (uint32_t)ldexp(v, mantissa - emin);
  return (uint32_t)(e + bias) << mantissa |
         ((uint32_t)ldexp(v, mantissa - e) & ((1u << mantissa) - 1));
}

uint32_t loom_f16(float v) {
  const uint32_t sign = loom_f32_bits(v) >> 16 & 0x8000u;
  if (isnan(v)) return 0x7fff;
  const double r = round_to(fabs((double)v), 10, -14);
  return sign | (r > 65504.0 ? 0x7c00u : encode(r, 10, -14, 15));
}

uint32_t loom_e4m3(float v) {
  const uint32_t sign = loom_f32_bits(v) >> 24 & 0x80u;
  if (isnan(v)) return 0x7f;
  const double r = round_to(fabs((double)v), 3, -6);
  return sign | (r > 448.0 ? 0x7eu : encode(r, 3, -6, 7));
}

float loom_f16_f32(uint32_t v) {
  const uint32_t sign = (v & 0x8000u) << 16, e = v >> 10 & 31, m = v & 0x3ffu;
  if (e == 31) return m ? loom_bits_f32(0x7fffffffu) : loom_bits_f32(sign | 0x7f800000u);
  const double r = e ? ldexp(1024.0 + m, (int)e - 25) : ldexp((double)m, -24);
  return loom_bits_f32(sign | loom_f32_bits((float)r));
}
