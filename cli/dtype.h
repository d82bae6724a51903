/* Number formats of tensors: names, sizes, and conversion of bf16 and f16 by bit patterns. */
#ifndef CLI_DTYPE_H
#define CLI_DTYPE_H

#include <stdint.h>
#include <weft/weft.h>

/* Bytes of one element; 0 for WEFT_DTYPE_DEFAULT and unknown values. */
int64_t dtype_bytes(weft_dtype dtype);

/* "f32", "bf16", "f16", "i32", "i64" */
const char *dtype_name(weft_dtype dtype);

uint16_t bf16_from_float(float value); /* to nearest, ties to even; NaN stays NaN */
float bf16_to_float(uint16_t bits);
uint16_t f16_from_float(float value); /* the same, overflow to infinity */
float f16_to_float(uint16_t bits);

/* count elements of `dtype` (F32, BF16, F16) at `from`, as double. */
void dtype_load(double *to, const void *from, weft_dtype dtype, int64_t count);

/* count floats stored as `dtype` (F32, BF16, F16). */
void dtype_store(void *to, weft_dtype dtype, const float *from, int64_t count);

/* Element `index` of an I32 or I64 array. */
int64_t dtype_int(const void *from, weft_dtype dtype, int64_t index);

#endif
