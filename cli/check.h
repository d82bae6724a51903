/* Compares a phase's outputs with the oracle, by the rule of `#wrong`: rows of nll, lse and entropy
 * outside 2e-5·(1 + max|z|), and rows of dX and dW off by more than 4 × the bound of their own norm
 * + 1e-3 of the mean row norm. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "oracle.h"

/* What a phase wrote; NULL where it wrote nothing. dX may be the sum of several ranks' parts. */
typedef struct outputs {
  const float *nll, *lse, *entropy; /* [M] */
  const void *const *dx;            /* dx_parts arrays [M,H] */
  int64_t dx_parts;
  const void *dw;   /* [V,H] */
  weft_dtype dtype; /* of dx and dw */
} outputs;

enum { CHECK_NLL, CHECK_LSE, CHECK_ENTROPY, CHECK_DX, CHECK_DW, CHECK_COUNT };

typedef struct check {
  double error[CHECK_COUNT]; /* largest |error| / (1 + max|z|), and ‖error‖ / ‖right‖ over the rows
                                checked; NAN: not checked */
  int64_t wrong;             /* rows */
  bool within;               /* no row is wrong, and dX and dW are within their bound as a whole */
} check;

bool check_outputs(check *check, const outputs *outputs, const oracle *oracle,
                   const problem *problem, error *error);

/* Rows of [rows, bytes_each] that differ in any bit. */
int64_t check_same_bits(const void *a, const void *b, int64_t rows, int64_t bytes_each);

#endif
