/* The CBLAS library: found and opened at run time, so that one binary runs with any of them. Knows
 * only sgemm and how to keep OpenBLAS from making threads of its own inside weft's. */
#ifndef WEFT_CPU_BLAS_H
#define WEFT_CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

/* Opens the library once. UNSUPPORTED says which names were tried; MEMORY, that a limit on address
 * space leaves no room for it (the next call tries again). Thread-safe. */
weft_status weft__blas_open(void);

/* Announces `threads` more that will call weft__sgemm, and takes them back. OpenBLAS maps a buffer
 * for each caller when it comes, and where it gets none it asks for ever: so where the address
 * space is limited, the buffers are mapped now, or MEMORY says that there is no room. */
weft_status weft__blas_take(int threads);
void weft__blas_give(int threads);

/* Name, version and kernel of the open library, or why there is none. Static storage. */
const char *weft__blas_description(void);

/* Between these two, the library runs one thread a call. Nested and concurrent uses are counted:
 * the first sets one thread, the last restores what the host program had. */
void weft__blas_enter(void);
void weft__blas_leave(void);

/* Row-major C[m,n] = op(A)·op(B) + beta·C in f32, where op transposes if asked; k is the inner
 * size. */
void weft__sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                 const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                 int64_t ldc);

#endif
