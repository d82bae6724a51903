/* Synthetic problems. Every value depends on the seed, its array and its global index alone, so
 * that every split over ranks, and every machine, sees the same numbers. */
#ifndef CLI_SYNTH_H
#define CLI_SYNTH_H

#include "tensor.h"

/* Which array of a problem: each has its own stream of random numbers. */
typedef enum synth_array {
  SYNTH_X = 1,
  SYNTH_W = 2,
  SYNTH_TARGET = 3,
  SYNTH_IGNORE = 4,
  SYNTH_G_NLL = 5,
  SYNTH_G_ENTROPY = 6,
  SYNTH_G_LSE = 7,
  SYNTH_SAMPLE = 8
} synth_array;

/* The 64 random bits of an index. */
uint64_t synth_bits(uint64_t seed, synth_array array, int64_t index);

/* A whole number uniform over [0, bound), bound ≥ 1. */
int64_t synth_below(uint64_t seed, synth_array array, int64_t index, int64_t bound);

/* Fills a tensor of F32, BF16 or F16 with normal numbers of mean 0 and deviation `scale`. */
void synth_normal(tensor *tensor, uint64_t seed, synth_array array, float scale);

/* Fills `count` upstream gradients, uniform in [0.25, 1.25). */
void synth_gradient(float *to, int64_t count, uint64_t seed, synth_array array);

/* Fills an I64 tensor with targets uniform over [0, vocab), each replaced by `ignore_index` with
 * probability `ignored`. */
void synth_targets(tensor *tensor, uint64_t seed, int64_t vocab, double ignored,
                   int64_t ignore_index);

#endif
