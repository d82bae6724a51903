/* The yardstick: the three matrix products of a loss head, by the BLAS that the library uses. */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bare bare;

/* Opens the BLAS library that `description` (weft_system_info.blas) names. NULL, and words on
 * stderr, when it can't be. */
bare *bare_open(const char *description);
void bare_close(bare *bare);

/* z = X·Wᵀ [M,V], dX = z·W [M,H], dW = zᵀ·X [V,H], each on `threads` threads. */
void bare_products(bare *bare, int threads, int64_t tokens, int64_t hidden, int64_t vocab,
                   const float *x, const float *w, float *z, float *dx, float *dw);

#endif
