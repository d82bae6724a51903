/* Finds out whether the BLAS in use keeps the forward batch-invariant: a GEMM of equal rows must
 * give equal rows, whatever their number. OpenBLAS's Haswell and Zen kernels do not (0.3.21: a
 * row's last bit depends on its place), its SkylakeX, Sandybridge and Nehalem kernels do. */
#include <pthread.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "cpu/blas.h"
#include "cpu/ce.h"

enum { COLUMNS = 128, LONGEST = 1040 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool known, invariant;

/* Numbers in [−1, 1) that need all their bits. */
static float number(uint32_t i) {
  uint32_t h = i * 2654435769u + 12345u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return (float)(h >> 8) * 0x1p-23f - 1.0f;
}

static bool equal_rows(int64_t k, const float *x, const float *w, float *z) {
  static const int64_t counts[] = {WEFT__ROW_GROUP, 2 * WEFT__ROW_GROUP, WEFT__BLOCK_ROWS};
  float first[COLUMNS];
  for (int i = 0; i < 3; i++) {
    weft__sgemm(false, true, counts[i], COLUMNS, k, x, LONGEST, w, LONGEST, 0.0f, z, COLUMNS);
    if (i == 0) memcpy(first, z, sizeof first);
    for (int64_t row = 0; row < counts[i]; row++)
      if (memcmp(z + row * COLUMNS, first, sizeof first) != 0) return false;
  }
  return true;
}

static weft_status find_out(void) {
  static const int64_t lengths[] = {96, 400, LONGEST};
  float *x = NULL;
  const int64_t rows = WEFT__BLOCK_ROWS + COLUMNS;
  WEFT__TRY(weft__alloc((void **)&x, (size_t)(rows * LONGEST + WEFT__BLOCK_ROWS * COLUMNS) * 4,
                        "invariance check"));
  float *w = x + WEFT__BLOCK_ROWS * LONGEST, *z = x + rows * LONGEST;
  for (int64_t i = 0; i < LONGEST; i++)
    for (int64_t row = 0; row < WEFT__BLOCK_ROWS; row++)
      x[row * LONGEST + i] = number((uint32_t)i);
  for (int64_t i = 0; i < COLUMNS * LONGEST; i++)
    w[i] = number((uint32_t)(i + LONGEST));
  weft__blas_enter();
  invariant = true;
  for (int i = 0; i < 3; i++)
    invariant = invariant && equal_rows(lengths[i], x, w, z);
  weft__blas_leave();
  weft__free(x);
  if (!invariant)
    weft__log(WEFT_LOG_INFO, "this BLAS is not batch-invariant: logits come from weft's own loop");
  known = true;
  return WEFT_OK;
}

weft_status weft__cpu_invariant_blas(bool *yes) {
  pthread_mutex_lock(&lock);
  const weft_status status = known ? WEFT_OK : find_out();
  *yes = invariant;
  pthread_mutex_unlock(&lock);
  return status;
}
