/* The courier probe between two processes, by NVSHMEM: post, put with signal, signal seen by the
 * peer. On one GPU it needs MPS, or the processes take turns.
 *
 *   gpu_nvshmem CUBIN     the linked courier */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../gpu.h"
#include "../probes/probe_args.h"
#include "shim.h"

enum { RANKS = 2, LATE_MS = 10000, LARGEST = 64 << 20, SYMMETRIC_WORDS = 64 };

struct shared {
  pthread_barrier_t barrier;
  unsigned char id[SHIM_ID_BYTES];
};

static const struct cuda_driver *driver;

static void *driver_function(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "no %s\n", name);
    exit(4);
  }
  return function;
}

static cuda_function load_courier(const char *path) {
  int (*load)(void **module, const char *path), (*get)(cuda_function *, void *, const char *);
  void *function = driver_function("cuModuleLoad");
  memcpy(&load, &function, sizeof load);
  function = driver_function("cuModuleGetFunction");
  memcpy(&get, &function, sizeof get);
  void *module = NULL;
  cuda_function courier = NULL;
  gpu_require(load(&module, path), "cuModuleLoad");
  if (shim_module_init(module)) {
    fprintf(stderr, "nvshmemx_cumodule_init failed\n");
    exit(4);
  }
  gpu_require(get(&courier, module, "probe_courier_nvshmem"), "cuModuleGetFunction");
  return courier;
}

struct rank {
  uint32_t index;
  struct shared *shared;
  struct cuda_kernel courier, player;
  cuda_address source, destination, signal; /* the latter two symmetric */
  cuda_address slots, words;                /* words: posted, error, ns */
  cuda_stream streams[2];
};

/* Nanoseconds a hop. */
static double play(struct rank *r, uint64_t bytes, uint32_t rounds) {
  static const char zero[SYMMETRIC_WORDS];
  gpu_require(driver->cuMemcpyHtoD(r->signal, zero, sizeof zero), "clear");
  gpu_require(driver->cuMemcpyHtoD(r->words, zero, sizeof zero), "clear");
  pthread_barrier_wait(&r->shared->barrier);
  const struct courier_ring ring = {{r->slots}, {r->words}};
  struct courier_args courier = {
      .ring = ring, .error = {r->words + 8}, .timeout_ns = LATE_MS * UINT64_C(1000000)};
  struct player_args player = {.ring = ring,
                               .source = {r->source},
                               .destination = {r->destination},
                               .signal_there = {r->signal},
                               .signal_here = {r->signal},
                               .ns = {r->words + 16},
                               .error = {r->words + 8},
                               .bytes = bytes,
                               .timeout_ns = LATE_MS * UINT64_C(1000000),
                               .rounds = rounds,
                               .second = r->index};
  const struct cuda_launch of_courier = {
      .ctas = 1, .threads = COURIER_THREADS, .cluster = 1, .stream = r->streams[0]};
  const struct cuda_launch of_player = {
      .ctas = 1, .threads = 32, .cluster = 1, .stream = r->streams[1]};
  gpu_require_status(weft__cuda_launch(&r->courier, &of_courier, &courier), "courier");
  gpu_require_status(weft__cuda_launch(&r->player, &of_player, &player), "player");
  gpu_require(driver->cuStreamSynchronize(r->streams[1]), "player");
  pthread_barrier_wait(&r->shared->barrier); /* the last hop has arrived on both sides */
  const struct courier_slot home = {0};
  const uint32_t n = rounds + 1;
  gpu_require(driver->cuMemcpyHtoD(r->slots + n % COURIER_SLOTS * sizeof home, &home, sizeof home),
              "go home");
  gpu_require(driver->cuMemcpyHtoD(r->words, &n, sizeof n), "go home");
  gpu_require(driver->cuStreamSynchronize(r->streams[0]), "courier");
  uint64_t words[3];
  gpu_download(words, r->words, sizeof words);
  if (words[1]) {
    fprintf(stderr, "rank %u: a wait ran out\n", r->index);
    exit(1);
  }
  unsigned char *got = malloc(bytes);
  if (!got) exit(4);
  gpu_download(got, r->destination, bytes);
  for (uint64_t i = 0; i < bytes; i++)
    if (got[i] != 0x40 + (r->index ^ 1)) {
      fprintf(stderr, "rank %u: byte %llu is %#x\n", r->index, (unsigned long long)i, got[i]);
      exit(1);
    }
  free(got);
  return (double)words[2] / (2.0 * (rounds - 1));
}

static int rank_main(struct shared *shared, uint32_t index, const char *cubin) {
  alarm(60); /* a process that fails leaves the other at a barrier */
  setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  struct cuda_device_info info;
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) return GPU_SKIPPED;
  if (index == 0 && shim_unique_id(shared->id)) return 4;
  pthread_barrier_wait(&shared->barrier);
  if (shim_init(shared->id, (int)index, RANKS)) {
    fprintf(stderr, "rank %u: nvshmemx_hostlib_init_attr failed\n", index);
    return 4;
  }
  struct rank r = {.index = index, .shared = shared};
  r.destination = (cuda_address)(uintptr_t)shim_malloc(LARGEST);
  r.signal = (cuda_address)(uintptr_t)shim_malloc(SYMMETRIC_WORDS);
  if (!r.destination || !r.signal) return 4;
  r.source = gpu_allocate(LARGEST);
  r.slots = gpu_allocate(COURIER_SLOTS * sizeof(struct courier_slot));
  r.words = gpu_allocate(SYMMETRIC_WORDS);
  gpu_require(driver->cuMemsetD8Async(r.source, (unsigned char)(0x40 + index), LARGEST, NULL),
              "memset");
  gpu_require(driver->cuCtxSynchronize(), "memset");
  r.courier.function = load_courier(cubin);
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, "sm90_probes_courier",
                                            "probe_player", 0, 0, &r.player),
                     "probe_player");
  for (int i = 0; i < 2; i++)
    gpu_require(driver->cuStreamCreate(&r.streams[i], GPU_NON_BLOCKING), "stream");
  const double hop = play(&r, 16, 2000), hop_16k = play(&r, 16384, 2000);
  const double mib = play(&r, 1 << 20, 200), large = play(&r, LARGEST, 10);
  if (index == 0) {
    int major = 0, minor = 0, patch = 0;
    shim_version(&major, &minor, &patch);
    printf("courier  NVSHMEM %d.%d.%d, 2 processes: post to signal seen %.0f ns (16 B) %.0f ns "
           "(16 KiB); %.1f GB/s (1 MiB) %.1f GB/s (64 MiB)\n",
           major, minor, patch, hop, hop_16k, (1 << 20) / mib, LARGEST / large);
  }
  pthread_barrier_wait(&shared->barrier);
  shim_finalize();
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: gpu_nvshmem CUBIN\n");
    return 2;
  }
  struct shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 4;
  pthread_barrierattr_t attribute;
  pthread_barrierattr_init(&attribute);
  pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attribute, RANKS);
  pid_t children[RANKS];
  int worst = 0;
  for (uint32_t i = 0; i < RANKS; i++) {
    children[i] = fork();
    if (children[i] == 0) exit(rank_main(shared, i, argv[1]));
  }
  for (uint32_t i = 0; i < RANKS; i++) {
    int status = 0;
    waitpid(children[i], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    if (code > worst) worst = code;
  }
  if (worst != GPU_SKIPPED) printf("%d passed, %d failed\n", worst == 0, worst != 0);
  return worst;
}
