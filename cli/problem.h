/* The inputs of one run of ce: shapes, X, W, targets and upstream gradients, synthetic or from
 * files. */
#ifndef CLI_PROBLEM_H
#define CLI_PROBLEM_H

#include "ce_options.h"
#include "tensor.h"

typedef struct problem {
  int64_t tokens, hidden, vocab;
  weft_dtype dtype;                 /* of X; W has its own in w.dtype */
  tensor x, w, target;              /* [M,H], [V,H], [M] I32 or I64 */
  float *g_nll, *g_entropy, *g_lse; /* [M]; g_entropy is NULL without --entropy */
  float temperature, softcap;       /* as the library gets them; 0: no cap */
  int64_t ignore_index;
  int64_t counted; /* tokens whose target is not ignore_index */
} problem;

/* Fills `problem`, taking shapes from files where there are some and from `options` (whose sizes
 * and dtype are updated) elsewhere. Returns an exit code; on EXIT_RIGHT the problem is the caller's
 * to free. */
int problem_load(problem *problem, ce_options *options, error *error);
void problem_free(problem *problem);

bool problem_counts(const problem *problem, int64_t token);

/* The vocabulary rows of a rank: the first ranks have one more where it does not divide. */
void vocab_range(int64_t vocab, int64_t ranks, int64_t rank, int64_t *start, int64_t *rows);

#endif
