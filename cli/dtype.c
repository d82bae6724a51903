/* Conversions are written from the formats: bf16 is the upper half of an f32; f16 has 1 sign, 5
 * exponent (bias 15) and 10 fraction bits. */
#include "dtype.h"

#include <string.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

int64_t dtype_bytes(weft_dtype dtype) {
  switch (dtype) {
  case WEFT_F32:
  case WEFT_I32:
    return 4;
  case WEFT_BF16:
  case WEFT_F16:
    return 2;
  case WEFT_I64:
    return 8;
  default:
    return 0;
  }
}

const char *dtype_name(weft_dtype dtype) {
  switch (dtype) {
  case WEFT_F32:
    return "f32";
  case WEFT_BF16:
    return "bf16";
  case WEFT_F16:
    return "f16";
  case WEFT_I32:
    return "i32";
  case WEFT_I64:
    return "i64";
  default:
    return "?";
  }
}

uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t bits) {
  return float_of((uint32_t)bits << 16);
}

uint16_t f16_from_float(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to inf */
  if (magnitude < 0x38800000) {
    /* Below 2^-14 the unit is 2^-24 throughout: adding 0.5, whose own unit is 2^-24, rounds. */
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  const uint32_t rebased = magnitude - ((127 - 15) << 23);
  return (uint16_t)(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x400) {
    const float value = (float)magnitude * 0x1p-24f;
    return sign ? -value : value;
  }
  return float_of(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}

void dtype_load(double *to, const void *from, weft_dtype dtype, int64_t count) {
  const float *f32 = from;
  const uint16_t *half = from;
  switch (dtype) {
  case WEFT_BF16:
    for (int64_t i = 0; i < count; i++)
      to[i] = bf16_to_float(half[i]);
    break;
  case WEFT_F16:
    for (int64_t i = 0; i < count; i++)
      to[i] = f16_to_float(half[i]);
    break;
  default:
    for (int64_t i = 0; i < count; i++)
      to[i] = f32[i];
  }
}

void dtype_store(void *to, weft_dtype dtype, const float *from, int64_t count) {
  uint16_t *half = to;
  switch (dtype) {
  case WEFT_BF16:
    for (int64_t i = 0; i < count; i++)
      half[i] = bf16_from_float(from[i]);
    break;
  case WEFT_F16:
    for (int64_t i = 0; i < count; i++)
      half[i] = f16_from_float(from[i]);
    break;
  default:
    memcpy(to, from, (size_t)count * sizeof(float));
  }
}

int64_t dtype_int(const void *from, weft_dtype dtype, int64_t index) {
  return dtype == WEFT_I32 ? ((const int32_t *)from)[index] : ((const int64_t *)from)[index];
}
