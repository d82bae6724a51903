/* The oracle's one matrix product, over padded f64 tiles. */
#ifndef CLI_ORACLE_PRODUCT_H
#define CLI_ORACLE_PRODUCT_H

#include <stdint.h>

/* rows are padded to multiples of PRODUCT_ROWS, columns to multiples of PRODUCT_COLUMNS */
enum { PRODUCT_ROWS = 4, PRODUCT_COLUMNS = 16 };

/* c[rows, columns] += a[rows, depth] · b[depth, columns], each with its row stride. */
void oracle_product(double *c, int64_t c_stride, const double *a, int64_t a_stride, const double *b,
                    int64_t b_stride, int64_t rows, int64_t columns, int64_t depth);

#endif
