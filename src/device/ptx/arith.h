/* Arithmetic that has its own instruction, and conversions between f32 and the narrow formats (PTX
 * "ex2", "lg2", "tanh", "cvt"). Under gcc the approximate functions are libm's, correctly rounded
 * where libm is; the conversions are exact to the bit. */
#ifndef WEFT_DEVICE_PTX_ARITH_H
#define WEFT_DEVICE_PTX_ARITH_H

#include "types.h"

#ifdef __CUDACC__

DEV float bits_f32(uint32_t v) {
  return __uint_as_float(v);
}
DEV uint32_t f32_bits(float v) {
  return __float_as_uint(v);
}

DEV float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

DEV float lg2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

DEV float tanh_approx(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

DEV float rcp(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/* The number of bits set. */
DEV uint32_t popc(uint32_t v) {
  return (uint32_t)__popc(v);
}

DEV float fma_f32(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
DEV float max_f32(float a, float b) {
  return fmaxf(a, b);
}
DEV float min_f32(float a, float b) {
  return fminf(a, b);
}

/* lo in the low half: the element at the lower address. */
DEV uint32_t pack_bf16x2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

DEV uint32_t pack_f16x2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

/* Two E4M3 in the low 16 bits, lo in the low byte; out of range saturates to 448, NaN stays NaN. */
DEV uint32_t pack_e4m3x2(float lo, float hi) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
}

DEV float f16_f32(uint32_t v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((uint16_t)v));
  return r;
}

#else

#define bits_f32(v)         loom_bits_f32(v)
#define f32_bits(v)         loom_f32_bits(v)
#define ex2(x)              loom_ex2(x)
#define lg2(x)              loom_lg2(x)
#define tanh_approx(x)      loom_tanh(x)
#define rcp(x)              (1.0f / (x))
#define popc(v)             ((uint32_t)__builtin_popcount(v))
#define fma_f32(a, b, c)    loom_fma(a, b, c)
#define max_f32(a, b)       loom_max(a, b)
#define min_f32(a, b)       loom_min(a, b)
#define pack_bf16x2(lo, hi) (loom_bf16(lo) | loom_bf16(hi) << 16)
#define pack_f16x2(lo, hi)  (loom_f16(lo) | loom_f16(hi) << 16)
#define pack_e4m3x2(lo, hi) (loom_e4m3(lo) | loom_e4m3(hi) << 8)
#define f16_f32(v)          loom_f16_f32((v)&0xffffu)

#endif

/* The halves of a pair of bf16, as f32. */
DEV float bf16x2_lo(uint32_t v) {
  return bits_f32(v << 16);
}
DEV float bf16x2_hi(uint32_t v) {
  return bits_f32(v & 0xffff0000u);
}

#endif
