/* Opens CBLAS with dlopen. OpenBLAS chooses its kernels by a table of CPU models, and takes its
 * oldest (SSE3) ones for a model newer than itself, a factor of four in speed. So where OpenBLAS is
 * not in the process yet, and the user has not said otherwise, it is told the kernel by instruction
 * set through OPENBLAS_CORETYPE, for the moment of opening alone. */
#define _GNU_SOURCE
#include "cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* CBLAS's own values */

typedef void (*sgemm_fn)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                         float *c, int ldc);

static struct {
  sgemm_fn sgemm;
  void (*set_threads)(int);
  int (*get_threads)(void);
  char description[256];
} blas = {NULL, NULL, NULL, "not opened yet"};

static pthread_once_t open_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;
static int users, saved_threads;

static const char *kernel_for_this_cpu(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return NULL;
}

static void *open_library(const char *name) {
  void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != NULL) return handle;
  const char *kernel = kernel_for_this_cpu();
  const int ours = kernel != NULL && getenv("OPENBLAS_CORETYPE") == NULL &&
                   setenv("OPENBLAS_CORETYPE", kernel, 0) == 0;
  handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (ours) unsetenv("OPENBLAS_CORETYPE");
  return handle;
}

static void describe(const char *name, void *handle) {
  const char *(*config)(void) = (const char *(*)(void))dlsym(handle, "openblas_get_config");
  const char *(*core)(void) = (const char *(*)(void))dlsym(handle, "openblas_get_corename");
  int length = 0; /* the configuration starts with name and version: two words */
  if (config != NULL)
    for (int words = 0; config()[length] != '\0'; length++)
      if (config()[length] == ' ' && ++words == 2) break;
  if (config != NULL && core != NULL)
    snprintf(blas.description, sizeof blas.description, "%s: %.*s, %s kernels", name, length,
             config(), core());
  else
    snprintf(blas.description, sizeof blas.description, "%s", name);
  weft__log(WEFT_LOG_INFO, "BLAS: %s", blas.description);
}

static void open_any(void) {
  const char *asked = getenv("WEFT_BLAS");
  const char *const names[] = {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2",
                               "libblis.so.4",     "libcblas.so.3",  "libblas.so.3"};
  const size_t count = asked != NULL ? 1 : sizeof names / sizeof names[0];
  for (size_t i = 0; i < count; i++) {
    const char *name = asked != NULL ? asked : names[i];
    void *handle = open_library(name);
    if (handle == NULL) continue;
    blas.sgemm = (sgemm_fn)dlsym(handle, "cblas_sgemm");
    if (blas.sgemm == NULL) {
      dlclose(handle);
      continue;
    }
    blas.set_threads = (void (*)(int))dlsym(handle, "openblas_set_num_threads");
    blas.get_threads = (int (*)(void))dlsym(handle, "openblas_get_num_threads");
    describe(name, handle);
    return;
  }
  if (asked != NULL)
    snprintf(blas.description, sizeof blas.description, "none: WEFT_BLAS=%s has no cblas_sgemm",
             asked);
  else
    snprintf(blas.description, sizeof blas.description,
             "none: libopenblas.so.0, libmkl_rt.so.2, libblis.so.4, libcblas.so.3 and libblas.so.3 "
             "were tried (Debian: apt-get install libopenblas0-pthread)");
}

weft_status weft__blas_open(void) {
  pthread_once(&open_once, open_any);
  if (blas.sgemm != NULL) return WEFT_OK;
  return weft__fail(WEFT_ERR_UNSUPPORTED, "the CPU backend needs a CBLAS library; %s",
                    blas.description);
}

const char *weft__blas_description(void) {
  pthread_once(&open_once, open_any);
  return blas.description;
}

void weft__blas_enter(void) {
  if (blas.set_threads == NULL || blas.get_threads == NULL) return;
  pthread_mutex_lock(&thread_lock);
  if (users++ == 0) {
    saved_threads = blas.get_threads();
    if (saved_threads != 1) blas.set_threads(1);
  }
  pthread_mutex_unlock(&thread_lock);
}

void weft__blas_leave(void) {
  if (blas.set_threads == NULL || blas.get_threads == NULL) return;
  pthread_mutex_lock(&thread_lock);
  if (--users == 0 && saved_threads != 1) blas.set_threads(saved_threads);
  pthread_mutex_unlock(&thread_lock);
}

void weft__sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                 const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                 int64_t ldc) {
  blas.sgemm(ROW_MAJOR, transpose_a ? TRANS : NO_TRANS, transpose_b ? TRANS : NO_TRANS, (int)m,
             (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}
