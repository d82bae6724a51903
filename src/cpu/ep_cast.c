/* The cast of rows to E4M3, a block of 128 channels at a time, by the formula in weft.h. Knows
 * rows, not who sends them. */
#include <math.h>
#include <string.h>

#include "core/fp8.h"
#include "cpu/ep.h"

#define LEAST_AMAX 1e-4f /* below it a block's scale stays as it is: zeros get one too */

enum { UE8M0_NAN = 255, UE8M0_BIAS = 127 };

/* The exponent of the least power of two that is not below a positive normal number. */
static int exponent_above(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (int)(bits >> 23) - UE8M0_BIAS + ((bits & 0x7fffff) != 0);
}

/* The scale of a block whose largest size is `amax`, NaN where it holds no finite numbers. */
static float scale_of(const weft_ep_config *c, float amax) {
  if (amax != amax) return NAN;
  const float scale = fmaxf(amax, LEAST_AMAX) / WEFT__E4M3_MAX;
  return c->scale_format == WEFT_EP_SCALE_F32 ? scale : ldexpf(1.0f, exponent_above(scale));
}

static void store_scale(const weft_ep_config *c, int64_t block, float scale, uint32_t *scales) {
  uint32_t bits;
  if (c->scale_format == WEFT_EP_SCALE_UE8M0) {
    bits = scale != scale ? UE8M0_NAN : (uint32_t)(exponent_above(scale) + UE8M0_BIAS);
    scales[block / 4] |= bits << (8 * (block % 4));
    return;
  }
  memcpy(&bits, &scale, sizeof bits);
  scales[block] = bits;
}

void weft__ep_cast_row(const weft_ep_config *c, const weft__rows *rows, const void *x, float *row,
                       uint8_t *codes, uint32_t *scales) {
  memset(scales, 0, (size_t)weft__ep_scale_words(c) * sizeof *scales);
  rows->to_f32(row, x, c->hidden, WEFT_BF16);
  for (int64_t first = 0; first < c->hidden; first += WEFT__EP_BLOCK) {
    const int64_t rest = c->hidden - first, n = rest < WEFT__EP_BLOCK ? rest : WEFT__EP_BLOCK;
    float amax = 0.0f;
    for (int64_t i = 0; i < n; i++) {
      const float size = fabsf(row[first + i]);
      if (!isfinite(size)) amax = NAN;
      if (size > amax) amax = size; /* never true once it is NaN */
    }
    const float scale = scale_of(c, amax), inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; i++)
      codes[first + i] = weft__e4m3_from_f32(row[first + i] * inverse);
    store_scale(c, first / WEFT__EP_BLOCK, scale, scales);
  }
}
