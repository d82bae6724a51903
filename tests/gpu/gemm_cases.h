/* GEMM problems whose every sum is exact in f32, so that any correct kernel gives the same bits,
 * with the right bits from plain C. Knows how a shape stores its matrices; runs nothing, so that
 * the GPU and loom share it. */
#ifndef WEFT_TESTS_GPU_GEMM_CASES_H
#define WEFT_TESTS_GPU_GEMM_CASES_H

#include <stddef.h>

#include "cuda/gemm.h"

struct gemm_case {
  int64_t rows, cols, depth;
  int f32_out;
  int64_t group_rows;
  uint32_t clusters; /* at most so many, 0 for all that fit */
};

/* Host copies. Operand padding is NaN: a kernel that reads it shows. C is surrounded by guard
 * bytes. */
struct gemm_data {
  size_t a_bytes, b_bytes, c_bytes;
  int64_t a_stride, b_stride, c_stride;
  uint16_t *a, *b;
  unsigned char *before, *expected; /* C, before the kernel and after it */
};

int gemm_data_make(const struct gemm_shape *shape, const struct gemm_case *gemm,
                   struct gemm_data *data); /* 0, or -1 without memory */
void gemm_data_free(struct gemm_data *data);

/* The problem, once the three matrices have addresses. */
struct gemm_problem gemm_data_problem(const struct gemm_case *gemm, const struct gemm_data *data,
                                      uint64_t a, uint64_t b, uint64_t c);

/* Compares all of C, guards included, to the bit: 0, or 1 with the first difference in `why`. */
int gemm_data_compare(const struct gemm_case *gemm, const struct gemm_data *data,
                      const unsigned char *c, char *why, size_t room);

/* The list that the tests run, and a shorter one for loom. */
extern const struct gemm_case gemm_cases[], gemm_toy_cases[];
extern const size_t gemm_case_count, gemm_toy_case_count;

#endif
