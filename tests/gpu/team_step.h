/* A problem of backward and step for teams, with made-up data and what f64 says of it. Knows the
 * public API and the oracle. */
#ifndef WEFT_TESTS_GPU_TEAM_STEP_H
#define WEFT_TESTS_GPU_TEAM_STEP_H

#include <weft/weft.h>

#include "support/oracle.h"

struct team_step_case {
  const char *name;
  int64_t max_tokens, tokens, hidden, vocab, padding;
  int32_t dtype, dx_dtype, dw_dtype, entropy, ignore_every;
  float temperature;
  int32_t uneven;       /* the ranks' ranges; every third rank has no rows */
  int32_t targets_last; /* all targets belong to the last rows of the vocabulary */
  int32_t least, accumulate, dx_mode;
};

struct team_step_data {
  uint16_t *x, *w; /* bits of the dtype */
  int64_t *target;
  float *g[3], *dw0; /* dw0: what dW holds before, of an accumulating call */
  oracle right;
  double *doubles;
};

extern const struct team_step_case team_step_cases[];
extern const size_t team_step_case_count;

void team_step_make(const struct team_step_case *c, uint32_t seed, struct team_step_data *d);
void team_step_free(struct team_step_data *d);

/* Rows of W, padding included, of a rank. */
void team_step_range(const struct team_step_case *c, int64_t ranks, int64_t rank, int64_t *start,
                     int64_t *rows);
weft_ce_config team_step_config(const struct team_step_case *c, int64_t ranks, int64_t rank);

/* An element of an output. */
double team_step_value(const void *p, int64_t at, int32_t dtype);

#endif
