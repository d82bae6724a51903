/* See ep_law.h. */
#include "ep_law.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

float ep_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Of the two neighbours with 8 significant bits, the nearer one. */
uint16_t ep_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t low = (uint16_t)(bits >> 16), high = (uint16_t)(low + 1);
  const double down = fabs((double)value - (double)ep_bf16(low));
  const double up = fabs((double)ep_bf16(high) - (double)value);
  if (down == up) return low & 1 ? high : low;
  return down < up ? low : high;
}

double ep_e4m3(int code) {
  const int exponent = code / 8 % 16, fraction = code % 8;
  const double sign = code >= 128 ? -1 : 1;
  if (exponent == 15 && fraction == 7) return NAN;
  if (exponent == 0) return sign * fraction / 8 * ldexp(1, -6);
  return sign * (1 + fraction / 8.0) * ldexp(1, exponent - 7);
}

/* Codes 0 to 126 grow in value, so the two around it are found by halving. */
int ep_e4m3_nearest(double value) {
  const double size = fabs(value);
  int low = 0, high = 126;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (ep_e4m3(middle) <= size)
      low = middle;
    else
      high = middle;
  }
  const double down = size - ep_e4m3(low), up = ep_e4m3(high) - size;
  const int best = up < down || (up == down && high % 2 == 0) ? high : low;
  return best + (signbit(value) ? 128 : 0);
}

/* The scale of a format's word. */
static double scale_of(int32_t format, uint32_t word) {
  float value;
  if (format == WEFT_EP_SCALE_UE8M0) return word == 255 ? NAN : ldexp(1, (int)word - 127);
  memcpy(&value, &word, sizeof value);
  return value;
}

int ep_law_block(int32_t format, const uint16_t *x, int64_t n, const uint8_t *codes, uint32_t word,
                 char why[200]) {
  const double scale = scale_of(format, word);
  double amax = 1e-4f;
  int finite = 1;
  if (n == 0) {
    if (word == 0) return 0;
    snprintf(why, 200, "padding of the scales is %u, expected 0", word);
    return 1;
  }
  for (int64_t i = 0; i < n; i++) {
    finite &= isfinite(ep_bf16(x[i])) != 0;
    amax = fmax(amax, fabs((double)ep_bf16(x[i])));
  }
  float right = (float)amax / 448.0f;
  if (format != WEFT_EP_SCALE_F32) {
    double power = pow(2, -60);
    while (power < (double)right)
      power *= 2;
    right = (float)power;
  }
  if (finite ? scale != (double)right : !isnan(scale)) {
    snprintf(why, 200, "scale is %g, expected %g", scale, finite ? (double)right : NAN);
    return 1;
  }
  for (int64_t i = 0; i < n; i++) {
    const float value = ep_bf16(x[i]);
    const int nearest = ep_e4m3_nearest((double)(value * (1.0f / right)));
    const double error = fabs(ep_e4m3(codes[i]) * scale - (double)value);
    /* half a step: 2⁻⁴ of the value, or 2⁻¹⁰ scales where codes are subnormal; and f32's rounding
     */
    const double bound = fmax(fabs((double)value) / 16, scale / 1024) * (1 + 1e-6);
    if (finite ? codes[i] == nearest && error <= bound : isnan(ep_e4m3(codes[i]))) continue;
    snprintf(why, 200, "channel %lld: code 0x%02x for %g at scale %g, expected 0x%02x",
             (long long)i, codes[i], (double)value, scale, finite ? nearest : 0x7f);
    return 1;
  }
  return 0;
}
