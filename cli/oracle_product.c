/* One body, compiled for the vector widths of x86-64 where that is the machine. */
#include "oracle_product.h"

#include <string.h>

typedef double lanes __attribute__((vector_size(64), aligned(8)));

enum { LANES = 8, VECTORS = PRODUCT_COLUMNS / LANES };

static inline __attribute__((always_inline)) void
product(double *c, int64_t c_stride, const double *a, int64_t a_stride, const double *b,
        int64_t b_stride, int64_t rows, int64_t columns, int64_t depth) {
  for (int64_t j = 0; j < columns; j += PRODUCT_COLUMNS)
    for (int64_t i = 0; i < rows; i += PRODUCT_ROWS) {
      lanes sum[PRODUCT_ROWS][VECTORS];
      for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
          memcpy(&sum[r][v], &c[(i + r) * c_stride + j + v * LANES], sizeof sum[r][v]);
      for (int64_t k = 0; k < depth; k++) {
        lanes row[VECTORS];
        memcpy(row, &b[k * b_stride + j], sizeof row);
        for (int r = 0; r < PRODUCT_ROWS; r++)
          for (int v = 0; v < VECTORS; v++)
            sum[r][v] += a[(i + r) * a_stride + k] * row[v];
      }
      for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
          memcpy(&c[(i + r) * c_stride + j + v * LANES], &sum[r][v], sizeof sum[r][v]);
    }
}

#define DEFINE(name, attribute)                                                                    \
  attribute static void name(double *c, int64_t c_stride, const double *a, int64_t a_stride,       \
                             const double *b, int64_t b_stride, int64_t rows, int64_t columns,     \
                             int64_t depth) {                                                      \
    product(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);                          \
  }

DEFINE(product_baseline, )

#if defined(__x86_64__)
DEFINE(product_avx2, __attribute__((target("avx2,fma"))))
DEFINE(product_avx512, __attribute__((target("avx512f"))))
#endif

void oracle_product(double *c, int64_t c_stride, const double *a, int64_t a_stride, const double *b,
                    int64_t b_stride, int64_t rows, int64_t columns, int64_t depth) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    product_avx512(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);
    return;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    product_avx2(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);
    return;
  }
#endif
  product_baseline(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);
}
