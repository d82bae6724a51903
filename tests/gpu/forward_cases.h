/* Cases of forward, their data, what f64 says of them, and the comparison: the same for a GPU and
 * for loom. Knows the public API and the oracle. */
#ifndef WEFT_TESTS_GPU_FORWARD_CASES_H
#define WEFT_TESTS_GPU_FORWARD_CASES_H

#include <stddef.h>
#include <stdint.h>
#include <weft/weft.h>

struct forward_case {
  const char *name;
  int64_t tokens, hidden, vocab;
  int64_t padding;          /* rows of W behind the vocabulary */
  int64_t x_extra, w_extra; /* elements between rows, filled with NaN */
  int32_t dtype;            /* WEFT_BF16 or WEFT_F16 */
  int32_t target_dtype;     /* WEFT_I32 or WEFT_I64 */
  int32_t entropy;          /* the plan wants it */
  float temperature;        /* 0: 1 */
  int32_t temperature_ptr;  /* T is given by pointer */
  float softcap;            /* 0: none */
  float amplitude;          /* of W; 0: 1/sqrt(H) */
  int32_t ignore_every;     /* every n-th row is ignored; 0: none, 1: all */
  int32_t bad_every;    /* every n-th row, from the second, has a target out of range; 0: none */
  int64_t ignore_index; /* 0: -100 */
  uint32_t pace;        /* in loom: steps that a cluster may be ahead; 0: any number */
  float shift;          /* added to W's first column, with X's first column 1; 0: none */
};

/* Outputs have guard elements on both ends, and hold poison before a run. */
enum { FORWARD_GUARD = 16 };

struct forward_data {
  const struct forward_case *c;
  size_t x_bytes, w_bytes, target_bytes;
  void *x, *w, *target;
  int64_t *ids; /* the targets as 64 bits */
  int64_t bad;  /* rows whose target is out of range */
  double *nll, *lse, *entropy, *largest, *z_target,
      *sum_ratio; /* f64; sum_ratio: entropy's t / s */
};

struct forward_outputs {
  float *nll, *lse, *entropy, *stats; /* [tokens + 2 guards], stats [4 · (tokens + 2 guards)] */
};

int forward_data_make(const struct forward_case *c, uint64_t seed, struct forward_data *out);
void forward_data_free(struct forward_data *data);
weft_ce_config forward_config(const struct forward_case *c);

int forward_outputs_make(int64_t tokens, struct forward_outputs *out); /* filled with poison */
void forward_outputs_free(struct forward_outputs *out);

/* 0, or 1 with the reason. */
int forward_compare(const struct forward_data *data, const struct forward_outputs *got, char *why,
                    size_t room);

extern const struct forward_case forward_toy_cases[]; /* for loom too */
extern const size_t forward_toy_case_count;
extern const struct forward_case forward_small_cases[];
extern const size_t forward_small_case_count;

#endif
