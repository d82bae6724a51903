/* Guarded matrices of any dtype for tests: values go in and come out as f64, rows may be strided,
 * and every byte that does not belong to an element is watched. Uses no code of the library. */
#ifndef WEFT_TESTS_CE_MATRIX_H
#define WEFT_TESTS_CE_MATRIX_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

typedef struct matrix {
  int dtype;
  int64_t rows, columns, stride, bytes; /* stride in elements; bytes of an element */
  unsigned char *memory, *data;
  int64_t size; /* of memory */
} matrix;

/* Elements are NaN (or −1 for integers) until set. `offset` elements of misalignment shift the data
 * from a 64-byte boundary. */
matrix matrix_new(int dtype, int64_t rows, int64_t columns, int64_t stride, int64_t offset);
void matrix_free(matrix *m);

/* Sets every element back to NaN and every watched byte to its mark. */
void matrix_poison(matrix *m);

/* True when the guards and the gaps between rows hold their mark. */
bool matrix_intact(const matrix *m);

/* True when all elements have the same bits. Shapes and dtypes must be the same. */
bool matrix_equal(const matrix *a, const matrix *b);
bool matrix_rows_equal(const matrix *a, int64_t row_a, const matrix *b, int64_t row_b);

double matrix_get(const matrix *m, int64_t row, int64_t column);
/* Rounds to nearest even. */
void matrix_set(matrix *m, int64_t row, int64_t column, double value);
/* The data of a row; NULL for a matrix without rows. */
void *matrix_row(const matrix *m, int64_t row);

/* A value rounded to the dtype. */
double matrix_rounded(int dtype, double value);

/* Uniform in [0, 1) and N(0, 1), from a seed and an index alone. */
double noise_uniform(uint64_t seed, uint64_t index);
double noise_normal(uint64_t seed, uint64_t index);

#endif
