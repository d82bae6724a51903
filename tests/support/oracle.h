/* The loss head in f64 for small problems: the formulas of the contract, with whole matrices and
 * plain loops. Shares nothing with the library. */
#ifndef WEFT_TESTS_ORACLE_H
#define WEFT_TESTS_ORACLE_H

#include <stdint.h>

typedef struct oracle {
  /* in */
  int64_t tokens, hidden, vocab;
  const double *x, *w; /* [tokens, hidden], [vocab, hidden] */
  const int64_t *target;
  int64_t ignore_index;
  double temperature, cap; /* cap 0: none */
  const double *g_nll, *g_entropy, *g_lse;
  int wants_dz; /* keep the gradients of the products X·Wᵀ as well */
  /* out, allocated by oracle_run */
  double *nll, *lse, *entropy, *largest; /* [tokens]; largest |z| of the row */
  double *dx, *dw;
  double *dz; /* [tokens, vocab], or NULL */
} oracle;

void oracle_run(oracle *o);
void oracle_free(oracle *o);

#endif
