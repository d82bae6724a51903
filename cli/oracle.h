/* The contract of ce computed in f64, to judge the library by: plainly, from the formulas, and
 * sharing no code with it. */
#ifndef CLI_ORACLE_H
#define CLI_ORACLE_H

#include "problem.h"

/* An index list is NULL when it stands for 0, 1, …, count − 1. */
typedef struct oracle {
  int64_t hidden;
  bool sampled; /* 64 tokens and 64 vocabulary rows only */
  /* Losses are known for all tokens, or, when sampled without gradients, for `tokens` alone; each
   * is stored at its token. `size` is the row's max |z|. */
  double *nll, *lse, *entropy, *size;
  int64_t *tokens; /* tokens whose dX (and, sampled, losses) are checked */
  int64_t tokens_count;
  double *dx;    /* [tokens_count, H] */
  int64_t *rows; /* vocabulary rows whose dW is checked */
  int64_t rows_count;
  double *dw; /* [rows_count, H] */
} oracle;

/* 2^36 multiply-adds: beyond, the oracle samples. */
extern const int64_t ORACLE_FULL;

/* Computes losses, and, where `gradients`, dX and dW. `seed` picks the sample. More than `full`
 * multiply-adds (M·H·V) are sampled. */
bool oracle_compute(oracle *oracle, const problem *problem, bool gradients, int64_t full,
                    uint64_t seed, error *error);
void oracle_free(oracle *oracle);

#endif
