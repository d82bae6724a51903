/* One problem of dispatch and combine, whose data every rank can make of every rank, and the laws
 * that a rank's results must keep, by brute force over all tokens. Shares nothing with the
 * library. */
#ifndef WEFT_TESTS_EP_CASE_H
#define WEFT_TESTS_EP_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

enum { EP_RANKS = 16 };

typedef struct ep_case {
  int64_t ranks, tokens_max, hidden, experts, topk;
  int64_t tokens[EP_RANKS]; /* n of each rank */
  int32_t layout, alignment, dtype, scale_format, scale_order, topk_dtype;
  uint64_t seed;
  bool zero_copy, ones; /* ones: x in {0, 1} */
  double none;          /* share of slots that are −1 */
} ep_case;

/* A case of bf16 in slabs with n = tokens_max on all ranks. */
ep_case ep_case_of(int64_t ranks, int64_t tokens, int64_t hidden, int64_t experts, int64_t topk);

weft_ep_config ep_config(const ep_case *c);

/* What a rank passes. */
typedef struct ep_inputs {
  uint16_t *x;    /* [n, H] */
  void *topk_idx; /* [n, K] of the case's dtype */
  int64_t *topk;  /* [n, K] */
  float *weights; /* [n, K] */
} ep_inputs;

ep_inputs ep_inputs_make(const ep_case *c, int64_t rank, uint64_t seed);
void ep_inputs_free(ep_inputs *in);

/* What a rank receives. */
typedef struct ep_received {
  void *x, *scales;
  float *weights;
  int64_t *counts, *offsets, *source_counts;
} ep_received;

ep_received ep_received_make(const weft_ep_plan_info *info, const ep_case *c);
void ep_received_free(ep_received *got);
weft_ep_dispatch_args ep_dispatch_args(const ep_case *c, int64_t rank, const ep_inputs *in,
                                       const ep_received *got);

/* Checks all that a rank received of inputs made with `seed`, and with `x_seed` for x (which
 * differs from `seed` where the routing was used again). Returns 0, or 1 with words in `why`. */
int ep_check_received(const ep_case *c, const weft_ep_plan_info *info, int64_t rank, uint64_t seed,
                      uint64_t x_seed, const ep_received *got, char why[256]);

/* The row, and the value beside it, that rank `rank` hands to combine for its row `row`. */
void ep_fill_rows(const ep_case *c, const weft_ep_plan_info *info, int64_t rank,
                  const ep_received *got, uint16_t *y, float *values);

/* Checks out [n, H] and the values [n, K] that came back, bit for bit. `weighted`: with weights.
 * `dead`: a rank whose rows are missing, or −1. */
int ep_check_combined(const ep_case *c, int64_t rank, uint64_t seed, bool weighted, int64_t dead,
                      const uint16_t *out, const float *values, char why[256]);

/* Everything once on one rank: dispatch, combine with and without weights, dispatch again. */
weft_status ep_everything(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]);

#endif
