/* See bare.h. The library has been opened by weft already; opening it again gives the same one. */
#include "bare.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the CBLAS interface */

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

struct bare {
  void *library;
  sgemm_fn sgemm;
  void (*set_threads)(int);
};

bare *bare_open(const char *description) {
  char name[200];
  const char *colon = description != NULL ? strchr(description, ':') : NULL;
  if (colon == NULL || (size_t)(colon - description) >= sizeof name) {
    fprintf(stderr, "no BLAS library: %s\n", description != NULL ? description : "none");
    return NULL;
  }
  memcpy(name, description, (size_t)(colon - description));
  name[colon - description] = '\0';
  bare *bare = calloc(1, sizeof *bare);
  if (bare == NULL) return NULL;
  bare->library = dlopen(name, RTLD_NOW);
  if (bare->library != NULL) {
    *(void **)&bare->sgemm = dlsym(bare->library, "cblas_sgemm");
    *(void **)&bare->set_threads = dlsym(bare->library, "openblas_set_num_threads");
  }
  if (bare->sgemm == NULL || bare->set_threads == NULL) {
    fprintf(stderr, "%s: no cblas_sgemm or openblas_set_num_threads\n", name);
    bare_close(bare);
    return NULL;
  }
  return bare;
}

void bare_close(bare *bare) {
  if (bare == NULL) return;
  if (bare->library != NULL) dlclose(bare->library);
  free(bare);
}

void bare_products(bare *bare, int threads, int64_t tokens, int64_t hidden, int64_t vocab,
                   const float *x, const float *w, float *z, float *dx, float *dw) {
  const int M = (int)tokens, H = (int)hidden, V = (int)vocab;
  bare->set_threads(threads);
  bare->sgemm(ROW_MAJOR, NO_TRANS, TRANS, M, V, H, 1, x, H, w, H, 0, z, V);
  bare->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, M, H, V, 1, z, V, w, H, 0, dx, H);
  bare->sgemm(ROW_MAJOR, TRANS, NO_TRANS, V, H, M, 1, z, V, x, H, 0, dw, H);
}
