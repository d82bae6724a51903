/* cuBLAS, opened at run time, as the benchmark's yardstick. The library itself never uses it. */
#ifndef WEFT_TESTS_GPU_CUBLAS_H
#define WEFT_TESTS_GPU_CUBLAS_H

#include <stdint.h>

/* Row-major C [rows, cols] = op(A) * op(B) in bf16 with f32 sums. `a_trans`: A is stored [depth,
 * rows]; `b_trans`: B is stored [cols, depth]. Dense rows. */
struct cublas_problem {
  int64_t rows, cols, depth;
  uint64_t a, b, c;
  int a_trans, b_trans;
};

/* Opens the library at $WEFT_CUBLAS, else by its usual names, for the current context; 0, or -1
 * with a message. */
int cublas_open(char *why, unsigned room);
int cublas_version(void);
/* On the legacy default stream; 0 or cuBLAS's status. */
int cublas_run(const struct cublas_problem *problem);

#endif
