/* Small problems of the backward pass with their right results in f64. Runs nothing, so that the
 * GPU and loom share it. */
#ifndef WEFT_TESTS_GPU_CE_BACKWARD_CASES_H
#define WEFT_TESTS_GPU_CE_BACKWARD_CASES_H

#include <stddef.h>

#include "cuda/backward.h"

enum {
  CE_F16 = 1,
  CE_DX_F32 = 2,
  CE_DW_F32 = 4,
  CE_ACCUMULATE = 8,
  CE_ENTROPY = 16,
  CE_LSE = 32,
  CE_NO_NLL = 64,
  CE_I32 = 128,
  CE_IGNORE = 256, /* every third row, with NaN upstream */
  CE_BAD = 512,    /* some targets outside the vocabulary */
  CE_SHARD = 1024, /* rows are the second part of a larger vocabulary */
  CE_NO_DX = 2048,
  CE_NO_DW = 4096,
  CE_ODD_OUT = 8192, /* outputs that tensor stores can't write: an odd row stride */
  CE_ALL_IGNORED = 16384,
  CE_T_POINTER = 32768,
  CE_ODD_IN = 1 << 16,  /* rows of X and W start at odd elements */
  CE_UNCLEAN = 1 << 17, /* some rows of X that do not count hold values that are not finite */
  CE_W_NAN = 1 << 18,   /* one element of W is NaN: so is all that has to do with rows that count */
  CE_STEP = 1 << 19,    /* the loss as well, in one pass */
  CE_WANTS_ENTROPY = 1 << 20 /* of a step: the entropy too */
};

struct ce_backward_case {
  int64_t tokens, hidden, rows;
  uint32_t wave_cols; /* tiles of a wave */
  uint32_t flags;
  float temperature, softcap;
  double logits;     /* about the standard deviation of the logits before the temperature */
  uint32_t clusters; /* at most so many, 0 for all that fit */
};

struct ce_backward_data {
  const struct ce_backward_case *c;
  int64_t x_stride, w_stride, dx_stride, dw_stride, vocab, vocab_start;
  size_t x_bytes, w_bytes, target_bytes, row_bytes, stats_bytes, dx_bytes, dw_bytes;
  uint16_t *x, *w;
  void *target;
  float *stats, *g_nll, *g_entropy, *g_lse;
  unsigned char *dx_before, *dw_before;
  double *dx, *dw; /* [tokens, hidden], [rows, hidden] */
  double *loss;    /* [tokens, 4]: nll, lse, entropy, largest |logit| */
  uint32_t bad;    /* targets outside the vocabulary */
  unsigned char *live;
};

int ce_backward_data_make(const struct ce_backward_case *c, struct ce_backward_data *data);
void ce_backward_data_free(struct ce_backward_data *data);

/* Where the arrays are; results and workspace are not set. */
struct ce_backward_problem ce_backward_data_problem(const struct ce_backward_data *data);

/* The workspace of the case: the waves it asks for, or a step's. */
weft_status ce_backward_case_layout(const struct ce_backward_case *c,
                                    struct ce_backward_layout *layout);

/* 0 where both results are right, and untouched around their elements; else says why. */
int ce_backward_data_compare(const struct ce_backward_data *data, const unsigned char *dx,
                             const unsigned char *dw, char *why, size_t room);
/* The same for the loss of a step; `entropy` may be NULL. */
int ce_backward_data_compare_loss(const struct ce_backward_data *data, const float *nll,
                                  const float *lse, const float *entropy, char *why, size_t room);
void ce_backward_case_name(const struct ce_backward_case *c, char *text, size_t room);

/* The relative errors that the last comparison saw. */
extern double ce_backward_dx_error, ce_backward_dw_error;

extern const struct ce_backward_case ce_backward_cases[], ce_backward_toy_cases[];
extern const size_t ce_backward_case_count, ce_backward_toy_case_count;

#endif
