/* See cublas.h. Declares by itself the few entries of cuBLAS's C interface that it calls. */
#define _GNU_SOURCE
#include "cublas.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*create)(void **handle);
static int (*get_version)(void *handle, int *version);
static int (*gemm_ex)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                      const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                      const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
static void *handle;

static int find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

int cublas_open(char *why, unsigned room) {
  const char *names[] = {getenv("WEFT_CUBLAS"), "libcublas.so.13", "libcublas.so.12",
                         "libcublas.so"};
  void *library = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
    if (names[i] && *names[i]) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, room, "%s", dlerror());
    return -1;
  }
  if (!find(library, "cublasCreate_v2", &create) ||
      !find(library, "cublasGetVersion_v2", &get_version) ||
      !find(library, "cublasGemmEx", &gemm_ex)) {
    snprintf(why, room, "not cuBLAS's interface");
    return -1;
  }
  const int status = create(&handle);
  if (status) snprintf(why, room, "cublasCreate: status %d", status);
  return status ? -1 : 0;
}

int cublas_version(void) {
  int version = 0;
  get_version(handle, &version);
  return version;
}

int cublas_run(const struct cublas_problem *p) {
  enum { OP_N = 0, OP_T = 1, R_16BF = 14, COMPUTE_32F = 68, ALGORITHM_DEFAULT = -1 };
  const float one = 1.0f, zero = 0.0f;
  const int rows = (int)p->rows, cols = (int)p->cols, depth = (int)p->depth;
  /* cuBLAS is column-major: it sees the transposes of all three, so it computes B^T * A^T. */
  return gemm_ex(handle, p->b_trans ? OP_T : OP_N, p->a_trans ? OP_T : OP_N, cols, rows, depth,
                 &one, (const void *)(uintptr_t)p->b, R_16BF, p->b_trans ? depth : cols,
                 (const void *)(uintptr_t)p->a, R_16BF, p->a_trans ? rows : depth, &zero,
                 (void *)(uintptr_t)p->c, R_16BF, cols, COMPUTE_32F, ALGORITHM_DEFAULT);
}
