/* Opens CBLAS with dlopen. OpenBLAS chooses its kernels by a table of CPU models, and takes its
 * oldest (SSE3) ones for a model newer than itself, a factor of four in speed. So where OpenBLAS is
 * not in the process yet, and the user has not said otherwise, it is told the kernel by instruction
 * set through OPENBLAS_CORETYPE, for the moment of opening alone.
 *
 * Three faults of OpenBLAS (seen in 0.3.21) are kept away from callers here. A buffer of 128 MiB
 * that mmap refuses is asked for again without end, by callers and by the threads that it starts
 * when it is opened; a thread that can't be started raises SIGINT; and with more than 639 callers
 * at once it runs out of buffers and crashes. */
#define _GNU_SOURCE
#include "cpu/blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "cpu/room.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* CBLAS's own values */

enum {
  LIBRARY_MIB = 48, /* code and data of OpenBLAS 0.3.21 for all CPUs: 40 */
  BUFFER_MIB = 128, /* what it maps for a caller, on x86-64 and AArch64 */
  FEWEST_AT_ONCE =
      64,            /* callers of sgemm at once: these, or as many as cores, but never more than */
  MOST_AT_ONCE = 512 /* its buffers; those who wait for their turn would share a core anyway */
};

typedef void (*sgemm_fn)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                         float *c, int ldc);

static struct {
  sgemm_fn sgemm;
  void (*set_threads)(int);
  int (*get_threads)(void);
  void *(*map_buffer)(int); /* OpenBLAS's own; NULL where they are hidden */
  void (*free_buffer)(void *);
  char description[256];
  bool tried; /* the answer is final */
} blas = {.description = "not opened yet"};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;
static int users, saved_threads;

/* Callers of sgemm: those announced, the buffers known to be mapped, and turns. */
static pthread_mutex_t room_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t callers, mapped;
static int at_once;
static sem_t turns;

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

/* An environment variable set for the moment of opening. */
typedef struct loan {
  const char *name;
  char *before; /* NULL: it was not set */
  bool lent;
} loan;

static loan lend(const char *name, const char *value, bool even_if_set) {
  const char *before = getenv(name);
  loan l = {name, NULL, false};
  if (value == NULL || (before != NULL && !even_if_set)) return l;
  if (before != NULL && (l.before = strdup(before)) == NULL) return l;
  l.lent = setenv(name, value, 1) == 0;
  return l;
}

static void take_back(loan *l) {
  if (l->lent && l->before != NULL)
    setenv(l->name, l->before, 1);
  else if (l->lent)
    unsetenv(l->name);
  free(l->before);
}

/* *handle is NULL where there is no such library. Where the address space is limited, OpenBLAS
 * starts no threads of its own: each would map a buffer, some time later. */
static weft_status open_library(const char *name, void **handle) {
  *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (*handle != NULL) return WEFT_OK;
  const bool limited = weft__room_limited();
  if (limited)
    WEFT__TRY(weft__room_try((int64_t)(LIBRARY_MIB + BUFFER_MIB) << 20, "opening the BLAS", ""));
  loan core = lend("OPENBLAS_CORETYPE", kernel_for_this_cpu(), false);
  loan threads = lend("OPENBLAS_NUM_THREADS", limited ? "1" : NULL, true);
  *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  take_back(&threads);
  take_back(&core);
  return WEFT_OK;
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

static void set_turns(void) {
  const int64_t cores = weft__cores();
  at_once = cores < FEWEST_AT_ONCE ? FEWEST_AT_ONCE
            : cores > MOST_AT_ONCE ? MOST_AT_ONCE
                                   : (int)cores;
  sem_init(&turns, 0, (unsigned)at_once);
}

static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2",
                                    "libblis.so.4",     "libcblas.so.3",  "libblas.so.3"};

static weft_status open_any(void) {
  const char *asked = getenv("WEFT_BLAS");
  if (asked != NULL && *asked == '\0') asked = NULL;
  const size_t count = asked != NULL ? 1 : sizeof names / sizeof names[0];
  const char *why = NULL;
  for (size_t i = 0; i < count; i++) {
    const char *name = asked != NULL ? asked : names[i];
    void *handle = NULL;
    WEFT__TRY(open_library(name, &handle));
    if (handle == NULL) {
      why = dlerror();
      continue;
    }
    blas.sgemm = (sgemm_fn)dlsym(handle, "cblas_sgemm");
    if (blas.sgemm == NULL) {
      dlclose(handle);
      why = "it has no cblas_sgemm";
      continue;
    }
    blas.set_threads = (void (*)(int))dlsym(handle, "openblas_set_num_threads");
    blas.get_threads = (int (*)(void))dlsym(handle, "openblas_get_num_threads");
    if (blas.set_threads != NULL) {
      blas.map_buffer = (void *(*)(int))dlsym(handle, "blas_memory_alloc");
      blas.free_buffer = (void (*)(void *))dlsym(handle, "blas_memory_free");
    }
    set_turns();
    describe(name, handle);
    return WEFT_OK;
  }
  if (asked != NULL)
    snprintf(blas.description, sizeof blas.description,
             "none: WEFT_BLAS is \"%s\", expected a library with cblas_sgemm: %s", asked,
             why != NULL ? why : "it can't be opened");
  else
    snprintf(blas.description, sizeof blas.description,
             "none: libopenblas.so.0, libmkl_rt.so.2, libblis.so.4, libcblas.so.3 and libblas.so.3 "
             "were tried (Debian: apt-get install libopenblas0-pthread)");
  return WEFT_OK;
}

weft_status weft__blas_open(void) {
  weft_status status = WEFT_OK;
  pthread_mutex_lock(&open_lock);
  if (!blas.tried) {
    status = open_any();
    blas.tried = status == WEFT_OK;
  }
  pthread_mutex_unlock(&open_lock);
  if (status != WEFT_OK || blas.sgemm != NULL) return status;
  return weft__fail(WEFT_ERR_UNSUPPORTED, "the CPU backend needs a CBLAS library; %s",
                    blas.description);
}

const char *weft__blas_description(void) {
  return weft__blas_open() == WEFT_ERR_MEMORY
             ? "not opened: a limit on address space (ulimit -v or -d) leaves no room for it"
             : blas.description;
}

/* ---- Room for those who call ---- */

/* Maps `count` buffers, which OpenBLAS keeps from now on: it never unmaps any. */
static weft_status map_buffers(int64_t count) {
  void **buffers = NULL;
  WEFT__TRY(weft__alloc((void **)&buffers, (size_t)count * sizeof(void *), "BLAS buffers"));
  for (int64_t i = 0; i < count; i++)
    buffers[i] = blas.map_buffer(0);
  for (int64_t i = 0; i < count; i++)
    if (buffers[i] != NULL) blas.free_buffer(buffers[i]);
  weft__free(buffers);
  return WEFT_OK;
}

weft_status weft__blas_take(int threads) {
  weft_status status = WEFT_OK;
  pthread_mutex_lock(&room_lock);
  const int64_t all = callers + threads, needed = all < at_once ? all : at_once;
  if (blas.map_buffer != NULL && needed > mapped && weft__room_limited()) {
    char what[96];
    snprintf(what, sizeof what, "OpenBLAS's buffers, %d MiB for each thread at once, %d threads",
             BUFFER_MIB, (int)needed);
    status = weft__room_try((needed - mapped) * (BUFFER_MIB + 1) << 20, what,
                            "use fewer threads (WEFT_NUM_THREADS) or ranks");
    if (status == WEFT_OK) status = map_buffers(needed);
    if (status == WEFT_OK) mapped = needed;
  }
  if (status == WEFT_OK) callers = all;
  pthread_mutex_unlock(&room_lock);
  return status;
}

void weft__blas_give(int threads) {
  pthread_mutex_lock(&room_lock);
  callers -= threads;
  pthread_mutex_unlock(&room_lock);
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
  while (sem_wait(&turns) != 0 && errno == EINTR)
    continue;
  blas.sgemm(ROW_MAJOR, transpose_a ? TRANS : NO_TRANS, transpose_b ? TRANS : NO_TRANS, (int)m,
             (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
  sem_post(&turns);
}
