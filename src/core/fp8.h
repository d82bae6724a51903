/* E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinity, one NaN a sign (0x7f, 0xff),
 * subnormals of 2⁻⁹, largest 448. */
#ifndef WEFT_CORE_FP8_H
#define WEFT_CORE_FP8_H

#include <stdint.h>

#define WEFT__E4M3_MAX 448.0f
enum { WEFT__E4M3_NAN = 0x7f };

/* To nearest even; what is larger than 448, infinities too, becomes 448 of its sign; NaN 0x7f. */
uint8_t weft__e4m3_from_f32(float value);
float weft__e4m3_to_f32(uint8_t code);

#endif
