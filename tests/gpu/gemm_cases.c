/* See gemm_cases.h. */
#include "gemm_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tails in every dimension, alone and together; depths below, at and across a stage and the ring;
 * more tiles than clusters; row groups that do not divide. */
const struct gemm_case gemm_cases[] = {
    {256, 384, 64, 0, 0, 0},
    {256, 384, 64, 1, 0, 0},
    {512, 768, 256, 0, 0, 1},
    {512, 768, 256, 1, 0, 1},
    {1, 1, 1, 0, 0, 0},
    {1, 1, 1, 1, 0, 0},
    {1, 1000, 72, 0, 0, 0},
    {1000, 1, 72, 1, 0, 0},
    {100, 200, 65, 0, 0, 0},
    {257, 385, 129, 0, 0, 2},
    {257, 385, 129, 1, 0, 2},
    {640, 1152, 1000, 0, 512, 3},
    {640, 1152, 1000, 1, 0, 3},
    {4097, 507, 200, 0, 2048, 0},
    {507, 4097, 200, 0, 0, 0},
    {5000, 392, 64, 1, 1024, 5},
    {1536, 1536, 2048, 0, 512, 0},
    {1023, 1025, 513, 0, 256, 7},
};
const size_t gemm_case_count = sizeof gemm_cases / sizeof *gemm_cases;

const struct gemm_case gemm_toy_cases[] = {
    {512, 256, 192, 0, 0, 0}, {512, 256, 192, 1, 0, 2}, {300, 200, 72, 0, 256, 1},
    {301, 203, 72, 0, 0, 1},  {130, 131, 64, 1, 0, 2},
};
const size_t gemm_toy_case_count = sizeof gemm_toy_cases / sizeof *gemm_toy_cases;

enum { GUARD = 0x5a, LARGEST = 8 };

static uint32_t hash(uint32_t x) { /* a permutation of 32 bits with good mixing */
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}

static int8_t value(uint32_t seed, uint64_t i) {
  return (int8_t)(hash(seed ^ hash((uint32_t)i)) % (2 * LARGEST + 1)) - LARGEST;
}

static uint16_t bf16_of(float f) { /* rounds to nearest, ties to even */
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static int64_t padded(int64_t elements, int64_t unit) {
  return (elements + unit - 1) / unit * unit + unit;
}

/* Stores an operand of `lines` rows (columns of B) by `depth` as the shape wants it. */
static uint16_t *store(const int8_t *values, int64_t lines, int64_t depth, int mn_major,
                       int64_t *stride, size_t *bytes) {
  const int64_t rows = mn_major ? depth : lines, row = mn_major ? lines : depth;
  *stride = padded(row, 8);
  *bytes = (size_t)(rows * *stride) * 2;
  uint16_t *to = malloc(*bytes);
  if (!to) return NULL;
  memset(to, 0xff, *bytes); /* NaN */
  for (int64_t i = 0; i < lines; i++)
    for (int64_t k = 0; k < depth; k++)
      to[mn_major ? k * *stride + i : i * *stride + k] = bf16_of(values[i * depth + k]);
  return to;
}

int gemm_data_make(const struct gemm_shape *shape, const struct gemm_case *g,
                   struct gemm_data *data) {
  int status = -1;
  memset(data, 0, sizeof *data);
  int8_t *a = malloc((size_t)(g->rows * g->depth)), *b = malloc((size_t)(g->cols * g->depth));
  if (!a || !b) goto cleanup;
  for (int64_t i = 0; i < g->rows * g->depth; i++)
    a[i] = value(1, (uint64_t)i);
  for (int64_t i = 0; i < g->cols * g->depth; i++)
    b[i] = value(2, (uint64_t)i);
  data->a = store(a, g->rows, g->depth, shape->a_mn != 0, &data->a_stride, &data->a_bytes);
  data->b = store(b, g->cols, g->depth, shape->b_mn != 0, &data->b_stride, &data->b_bytes);

  const int64_t lines = shape->transposed ? g->cols : g->rows;
  const int64_t line = shape->transposed ? g->rows : g->cols;
  const int64_t element = g->f32_out ? 4 : 2;
  data->c_stride = padded(line, 16 / element);
  data->c_bytes = (size_t)((lines + 1) * data->c_stride * element); /* a guard row below */
  data->before = malloc(data->c_bytes);
  data->expected = malloc(data->c_bytes);
  if (!data->a || !data->b || !data->before || !data->expected) goto cleanup;
  memset(data->before, GUARD, data->c_bytes);
  memset(data->expected, GUARD, data->c_bytes);
  for (int64_t i = 0; i < g->rows; i++) {
    for (int64_t j = 0; j < g->cols; j++) {
      int32_t sum = 0; /* below 2^24 for any depth up to 2^18: exact in f32 in any order */
      for (int64_t k = 0; k < g->depth; k++)
        sum += a[i * g->depth + k] * b[j * g->depth + k];
      const float f = (float)sum;
      const uint16_t h = bf16_of(f);
      const int64_t at = shape->transposed ? j * data->c_stride + i : i * data->c_stride + j;
      memcpy(data->expected + at * element, g->f32_out ? (const void *)&f : &h, (size_t)element);
    }
  }
  status = 0;
cleanup:
  free(a);
  free(b);
  if (status) gemm_data_free(data);
  return status;
}

void gemm_data_free(struct gemm_data *data) {
  free(data->a);
  free(data->b);
  free(data->before);
  free(data->expected);
  memset(data, 0, sizeof *data);
}

struct gemm_problem gemm_data_problem(const struct gemm_case *g, const struct gemm_data *data,
                                      uint64_t a, uint64_t b, uint64_t c) {
  return (struct gemm_problem){.rows = g->rows,
                               .cols = g->cols,
                               .depth = g->depth,
                               .a = {a, data->a_stride},
                               .b = {b, data->b_stride},
                               .c = {c, data->c_stride},
                               .f32_out = g->f32_out,
                               .group_rows = g->group_rows};
}

int gemm_data_compare(const struct gemm_case *g, const struct gemm_data *data,
                      const unsigned char *c, char *why, size_t room) {
  const size_t element = g->f32_out ? 4 : 2, stride = (size_t)data->c_stride;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < data->c_bytes / element; i++) {
    if (memcmp(c + i * element, data->expected + i * element, element) == 0) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return 0;
  uint32_t got = 0, want = 0;
  memcpy(&got, c + first * element, element);
  memcpy(&want, data->expected + first * element, element);
  snprintf(why, room, "%zu elements differ, first [%zu][%zu]: %#x, expected %#x", wrong,
           first / stride, first % stride, got, want);
  return 1;
}
