/* E4M3 by the bits of f32. */
#include "core/fp8.h"

#include <math.h>
#include <string.h>

uint8_t weft__e4m3_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
  const float size = fabsf(value);
  if (size != size) return WEFT__E4M3_NAN;
  if (size > WEFT__E4M3_MAX) return sign | 0x7e;
  /* below 2⁻⁶: a count of 2⁻⁹, and 8 of them are the first normal number */
  if (size < 0x1p-6f) return sign | (uint8_t)rintf(size * 0x1p9f);
  bits &= 0x7fffffff;
  const uint32_t rounded = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
  return sign | (uint8_t)(rounded - ((127 - 7) << 3));
}

float weft__e4m3_to_f32(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == WEFT__E4M3_NAN) return NAN;
  const float size =
      exponent == 0 ? (float)fraction * 0x1p-9f : ldexpf((float)(8 + fraction), exponent - 10);
  return code & 0x80 ? -size : size;
}
