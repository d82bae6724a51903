/* The number formats of ep by their definition: bf16, E4M3 as a table of all its values, and what a
 * block of received codes and its scale must be. */
#ifndef WEFT_TESTS_EP_LAW_H
#define WEFT_TESTS_EP_LAW_H

#include <stdint.h>

float ep_bf16(uint16_t bits);
uint16_t ep_to_bf16(float value); /* to nearest even; finite values */

/* The value of a code, from sign, exponent and fraction; NaN for 0x7f and 0xff. */
double ep_e4m3(int code);

/* The code that is right for a value: of all 256, the nearest, on a tie that with the even
 * fraction; beyond 448, that of 448. */
int ep_e4m3_nearest(double value);

/* Checks the codes and the scale of a block of `n` channels (0: a block of padding). `scale` is the
 * word of f32 formats, the byte of UE8M0. Returns 0, or 1 with words. */
int ep_law_block(int32_t scale_format, const uint16_t *x, int64_t n, const uint8_t *codes,
                 uint32_t scale, char why[200]);

#endif
