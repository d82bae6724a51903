/* The meeting probe with a process a rank, for a GPU that is shared through MPS: every CTA of every
 * process meets at one barrier in memory that the first exports. Without MPS the processes take
 * turns and do not meet.
 *
 *   gpu_processes [RANKS...] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meeting.h"

enum { RANKS_MAX = 16, EXPORTED_BYTES = 2 << 20, LAZY_PEER_ACCESS = 1 };

struct ipc_handle {
  char bytes[64];
};
struct shared {
  pthread_barrier_t barrier;
  struct ipc_handle handle;
};

static void *driver_function(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "no %s\n", name);
    exit(4);
  }
  return function;
}

static cuda_address export_words(struct shared *shared) {
  int (*get)(struct ipc_handle *, cuda_address);
  void *function = driver_function("cuIpcGetMemHandle");
  memcpy(&get, &function, sizeof get);
  void *zero = calloc(1, EXPORTED_BYTES);
  if (!zero) exit(4);
  const cuda_address words = gpu_upload(zero, EXPORTED_BYTES);
  free(zero);
  gpu_require(get(&shared->handle, words), "cuIpcGetMemHandle");
  return words;
}

static cuda_address import_words(const struct shared *shared) {
  int (*open)(cuda_address *, struct ipc_handle, unsigned);
  void *function = driver_function("cuIpcOpenMemHandle_v2");
  memcpy(&open, &function, sizeof open);
  cuda_address words = 0;
  gpu_require(open(&words, shared->handle, LAZY_PEER_ACCESS), "cuIpcOpenMemHandle");
  return words;
}

static int rank_main(struct shared *shared, uint32_t index, uint32_t ranks) {
  alarm(40); /* a process that fails leaves the others at a barrier */
  struct cuda_device_info info;
  gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) return GPU_SKIPPED;
  cuda_address words = 0;
  if (index == 0) words = export_words(shared);
  pthread_barrier_wait(&shared->barrier);
  if (index != 0) words = import_words(shared);
  struct meeting_rank rank;
  const uint32_t ctas = (uint32_t)info.sm_count / ranks / GEMM_CLUSTER * GEMM_CLUSTER;
  meeting_prepare(&rank, ctas, ranks, 1, words);
  pthread_barrier_wait(&shared->barrier);
  meeting_start(&rank);
  const int good = meeting_finish(&rank, words);
  pthread_barrier_wait(&shared->barrier); /* the exporter leaves last */
  return good ? 0 : 1;
}

static int probe(uint32_t ranks) {
  struct shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 4;
  pthread_barrierattr_t attribute;
  pthread_barrierattr_init(&attribute);
  pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attribute, ranks);
  fflush(stdout);
  pid_t children[RANKS_MAX];
  int worst = 0;
  for (uint32_t i = 0; i < ranks; i++) {
    children[i] = fork();
    if (children[i] == 0) exit(rank_main(shared, i, ranks));
  }
  for (uint32_t i = 0; i < ranks; i++) {
    int status = 0;
    waitpid(children[i], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    if (code > worst) worst = code;
  }
  munmap(shared, sizeof *shared);
  return worst;
}

int main(int argc, char **argv) {
  static const uint32_t usual[] = {2, 4, 8, 16};
  const int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
  int passed = 0, failed = 0;
  for (int i = 0; i < count; i++) {
    const uint32_t ranks = argc > 1 ? (uint32_t)atoi(argv[i + 1]) : usual[i];
    if (ranks < 1 || ranks > RANKS_MAX) {
      fprintf(stderr, "usage: gpu_processes [RANKS...], each 1 to %d\n", RANKS_MAX);
      return 2;
    }
    const int status = probe(ranks);
    if (status == GPU_SKIPPED) return GPU_SKIPPED;
    printf("meeting  processes %2u: %s\n", ranks, status ? "DID NOT MEET" : "met, results right");
    passed += status == 0;
    failed += status != 0;
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
