/* bf16 by its bits, f16 by the compiler's own type. */
#include "matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 512, MARK = 0xFB };

static int64_t bytes_of(int dtype) {
  return dtype == WEFT_I64 ? 8 : dtype == WEFT_BF16 || dtype == WEFT_F16 ? 2 : 4;
}

matrix matrix_new(int dtype, int64_t rows, int64_t columns, int64_t stride, int64_t offset) {
  matrix m = {dtype, rows, columns, stride > 0 ? stride : columns, bytes_of(dtype), NULL, NULL, 0};
  m.size = 2 * GUARD + (rows * m.stride + offset) * m.bytes;
  m.size = (m.size + 63) / 64 * 64;
  m.memory = (unsigned char *)aligned_alloc(64, (size_t)m.size);
  if (m.memory == NULL) {
    fprintf(stderr, "test: no memory for %lld bytes\n", (long long)m.size);
    exit(4);
  }
  m.data = m.memory + GUARD + offset * m.bytes;
  matrix_poison(&m);
  return m;
}

void matrix_free(matrix *m) {
  free(m->memory);
  m->memory = m->data = NULL;
}

void matrix_poison(matrix *m) {
  memset(m->memory, MARK, (size_t)m->size);
  for (int64_t r = 0; r < m->rows; r++)
    memset(m->data + r * m->stride * m->bytes, 0xFF, (size_t)(m->columns * m->bytes));
}

static bool marked(const unsigned char *from, const unsigned char *to) {
  for (; from < to; from++)
    if (*from != MARK) return false;
  return true;
}

bool matrix_intact(const matrix *m) {
  const unsigned char *end = m->data + m->rows * m->stride * m->bytes;
  if (!marked(m->memory, m->data) || !marked(end, m->memory + m->size)) return false;
  for (int64_t r = 0; r < m->rows; r++) {
    const unsigned char *row = m->data + r * m->stride * m->bytes;
    if (!marked(row + m->columns * m->bytes, row + m->stride * m->bytes)) return false;
  }
  return true;
}

void *matrix_row(const matrix *m, int64_t row) {
  return m->rows > 0 ? m->data + row * m->stride * m->bytes : NULL;
}

bool matrix_rows_equal(const matrix *a, int64_t row_a, const matrix *b, int64_t row_b) {
  return memcmp(matrix_row(a, row_a), matrix_row(b, row_b), (size_t)(a->columns * a->bytes)) == 0;
}

bool matrix_equal(const matrix *a, const matrix *b) {
  for (int64_t r = 0; r < a->rows; r++)
    if (!matrix_rows_equal(a, r, b, r)) return false;
  return true;
}

/* ---- Elements ---- */

static float bf16_get(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static uint16_t bf16_set(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (isnan(f)) return 0x7fff;
  const uint32_t rest = bits & 0xffff;
  bits >>= 16;
  if (rest > 0x8000 || (rest == 0x8000 && (bits & 1))) bits++;
  return (uint16_t)bits;
}

double matrix_get(const matrix *m, int64_t row, int64_t column) {
  const unsigned char *at = m->data + (row * m->stride + column) * m->bytes;
  float f;
  uint16_t h;
  _Float16 half;
  int32_t i32;
  int64_t i64;
  switch (m->dtype) {
  case WEFT_BF16:
    memcpy(&h, at, sizeof h);
    return bf16_get(h);
  case WEFT_F16:
    memcpy(&half, at, sizeof half);
    return (double)(float)half;
  case WEFT_I32:
    memcpy(&i32, at, sizeof i32);
    return i32;
  case WEFT_I64:
    memcpy(&i64, at, sizeof i64);
    return (double)i64;
  default:
    memcpy(&f, at, sizeof f);
    return f;
  }
}

void matrix_set(matrix *m, int64_t row, int64_t column, double value) {
  unsigned char *at = m->data + (row * m->stride + column) * m->bytes;
  const float f = (float)value;
  const uint16_t h = m->dtype == WEFT_BF16 ? bf16_set(f) : 0;
  const _Float16 half = m->dtype == WEFT_F16 ? (_Float16)f : 0;
  const int32_t i32 = m->dtype == WEFT_I32 ? (int32_t)value : 0;
  const int64_t i64 = m->dtype == WEFT_I64 ? (int64_t)value : 0;
  switch (m->dtype) {
  case WEFT_BF16:
    memcpy(at, &h, sizeof h);
    break;
  case WEFT_F16:
    memcpy(at, &half, sizeof half);
    break;
  case WEFT_I32:
    memcpy(at, &i32, sizeof i32);
    break;
  case WEFT_I64:
    memcpy(at, &i64, sizeof i64);
    break;
  default:
    memcpy(at, &f, sizeof f);
  }
}

double matrix_rounded(int dtype, double value) {
  const float f = (float)value;
  if (dtype == WEFT_BF16) return bf16_get(bf16_set(f));
  if (dtype == WEFT_F16) return (double)(float)(_Float16)f;
  return f;
}

/* ---- Noise ---- */

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
  return x ^ x >> 31;
}

double noise_uniform(uint64_t seed, uint64_t index) {
  return (double)(mix(mix(seed) ^ index) >> 11) * 0x1p-53;
}

double noise_normal(uint64_t seed, uint64_t index) {
  const double u = noise_uniform(seed, 2 * index), v = noise_uniform(seed, 2 * index + 1);
  return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}
