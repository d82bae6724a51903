/* Probes of what a team in one process relies on: kernels of several ranks that are on the GPU
 * together, couriers that carry messages between them, and couriers that wait beside a GEMM. Prints
 * figures; fails where a result is wrong, a wait runs out, or ranks do not meet. */
#define _GNU_SOURCE
#include <string.h>

#include "../bench_kernels.h"
#include "meeting.h"

enum { RANKS_MAX = 16, LATE_MS = 5000 };

static const struct cuda_driver *driver;
static struct cuda_device_info device;
static int passed, failed;

static void judge(int good, const char *what) {
  passed += good != 0;
  failed += good == 0;
  if (!good) printf("FAILED %s\n", what);
}

static cuda_stream new_stream(void) {
  cuda_stream stream;
  gpu_require(driver->cuStreamCreate(&stream, GPU_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

static cuda_address zeros(size_t bytes) {
  void *zero = calloc(1, bytes);
  if (!zero) exit(4);
  const cuda_address to = gpu_upload(zero, bytes);
  free(zero);
  return to;
}

static uint32_t word_at(cuda_address at) {
  uint32_t word;
  gpu_download(&word, at, sizeof word);
  return word;
}

/* ---- ranks that meet ------------------------------------------------------------------------- */

static void probe_meeting(uint32_t ranks, int cooperative) {
  const uint32_t ctas = (uint32_t)device.sm_count / ranks / GEMM_CLUSTER * GEMM_CLUSTER;
  const cuda_address words = zeros(MEETING_WORDS);
  static struct meeting_rank rank[RANKS_MAX];
  for (uint32_t r = 0; r < ranks; r++)
    meeting_prepare(&rank[r], ctas, ranks, cooperative, words);
  for (uint32_t r = 0; r < ranks; r++)
    meeting_start(&rank[r]);
  int good = 1;
  for (uint32_t r = 0; r < ranks; r++)
    good &= meeting_finish(&rank[r], words);
  for (uint32_t r = 0; r < ranks; r++)
    meeting_free(&rank[r]);
  gpu_free(words);
  printf("meeting  ranks %2u x %3u CTAs, %s: %s\n", ranks, ctas,
         cooperative ? "cooperative" : "not cooperative",
         good ? "met, results right" : "DID NOT MEET, or wrong");
  judge(good, "meeting");
}

/* ---- couriers -------------------------------------------------------------------------------- */

struct courier_kind {
  const char *kernel;
  uint32_t threads, buffer_bytes;
};
static const struct courier_kind plain = {"probe_courier_plain", COURIER_THREADS, 0};
static const struct courier_kind bulk = {"probe_courier_bulk", 32, 16384};
static const struct courier_kind small = {"probe_courier_bulk", 32, 256};

struct courier {
  const struct courier_kind *kind;
  struct cuda_kernel kernel;
  cuda_stream stream;
  cuda_address slots, posted, error;
};

static uint32_t courier_shared(const struct courier_kind *kind) {
  return kind->buffer_bytes ? COURIER_HEADER_BYTES + COURIER_BUFFERS * kind->buffer_bytes : 16;
}

/* The driver may wait for running kernels when it allocates, frees or loads, and a courier runs
 * until it is told to stop: so all of that is done before the first launch, or after the last end.
 */
static struct courier courier_make(const struct courier_kind *kind) {
  struct courier c = {.kind = kind,
                      .stream = new_stream(),
                      .slots = zeros(COURIER_SLOTS * sizeof(struct courier_slot)),
                      .posted = zeros(16)};
  c.error = c.posted + 8;
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, "sm90_probes_courier",
                                            kind->kernel, 0, courier_shared(kind), &c.kernel),
                     kind->kernel);
  return c;
}

static void courier_launch(const struct courier *c) {
  struct courier_args args = {.ring = {{c->slots}, {c->posted}},
                              .error = {c->error},
                              .timeout_ns = 4 * LATE_MS * UINT64_C(1000000),
                              .buffer_bytes = c->kind->buffer_bytes};
  const struct cuda_launch launch = {.ctas = 1,
                                     .threads = c->kind->threads,
                                     .cluster = 1,
                                     .shared_bytes = courier_shared(c->kind),
                                     .stream = c->stream};
  gpu_require_status(weft__cuda_launch(&c->kernel, &launch, &args), c->kind->kernel);
}

/* Posts "go home" after `posted` requests, and waits until it has. */
static void courier_stop(struct courier *c, uint32_t posted) {
  const struct courier_slot home = {0};
  const uint32_t n = posted + 1;
  gpu_require(driver->cuMemcpyHtoD(c->slots + n % COURIER_SLOTS * sizeof home, &home, sizeof home),
              "go home");
  gpu_require(driver->cuMemcpyHtoD(c->posted, &n, sizeof n), "go home");
  gpu_require(driver->cuStreamSynchronize(c->stream), "courier");
  judge(word_at(c->error) == 0, "a courier's wait ran out");
}

static void courier_free(struct courier *c) {
  gpu_require(driver->cuStreamDestroy(c->stream), "cuStreamDestroy");
  gpu_free(c->slots);
  gpu_free(c->posted);
}

struct game {
  struct courier couriers[2];
  cuda_stream streams[2];
  cuda_address source, destination, words; /* words: two signals, two times, error */
  uint32_t rounds, players;
  uint64_t bytes;
};

static struct game game_start(const struct courier_kind *kind, uint32_t players, uint64_t bytes,
                              uint32_t rounds) {
  struct game g = {.players = players, .rounds = rounds, .bytes = bytes};
  g.source = gpu_allocate(bytes);
  g.destination = gpu_allocate(bytes * 2);
  g.words = zeros(64);
  gpu_require(driver->cuMemsetD8Async(g.source, 0x3c, bytes, NULL), "memset");
  gpu_require(driver->cuMemsetD8Async(g.destination, 0, bytes * 2, NULL), "memset");
  gpu_require(driver->cuCtxSynchronize(), "memset");
  for (uint32_t p = 0; p < players; p++) {
    g.couriers[p] = courier_make(kind);
    g.streams[p] = new_stream();
  }
  struct cuda_kernel kernel;
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, "sm90_probes_courier",
                                            "probe_player", 0, 0, &kernel),
                     "probe_player");
  for (uint32_t p = 0; p < players; p++)
    courier_launch(&g.couriers[p]);
  for (uint32_t p = 0; p < players; p++) {
    const uint32_t other = players == 2 ? p ^ 1 : 0;
    struct player_args args = {.ring = {{g.couriers[p].slots}, {g.couriers[p].posted}},
                               .source = {g.source},
                               .destination = {g.destination + p * bytes},
                               .signal_there = {g.words + other * 4},
                               .signal_here = {g.words + p * 4},
                               .ns = {g.words + 16 + p * 8},
                               .error = {g.words + 32},
                               .bytes = bytes,
                               .timeout_ns = LATE_MS * UINT64_C(1000000),
                               .rounds = rounds,
                               .second = p,
                               .alone = players == 1};
    const struct cuda_launch launch = {
        .ctas = 1, .threads = 32, .cluster = 1, .stream = g.streams[p]};
    gpu_require_status(weft__cuda_launch(&kernel, &launch, &args), "probe_player");
  }
  return g;
}

/* Nanoseconds of player 0, all rounds. */
static double game_end(struct game *g, const char *what) {
  for (uint32_t p = 0; p < g->players; p++)
    gpu_require(driver->cuStreamSynchronize(g->streams[p]), what);
  for (uint32_t p = 0; p < g->players; p++)
    courier_stop(&g->couriers[p], g->rounds);
  judge(word_at(g->words + 32) == 0, "a player's wait ran out");
  for (uint32_t p = 0; p < g->players; p++)
    courier_stop(&g->couriers[p], g->rounds);
  unsigned char *got = malloc(g->bytes);
  if (!got) exit(4);
  int right = 1;
  for (uint32_t p = 0; p < g->players; p++) {
    gpu_download(got, g->destination + p * g->bytes, g->bytes);
    for (uint64_t i = 0; i < g->bytes; i++)
      right &= got[i] == 0x3c;
  }
  judge(right, "a courier's copy");
  free(got);
  uint64_t ns = 0;
  gpu_download(&ns, g->words + 16, sizeof ns);
  gpu_free(g->source);
  gpu_free(g->destination);
  gpu_free(g->words);
  return (double)ns;
}

static void probe_courier(const struct courier_kind *kind) {
  struct game g = game_start(kind, 2, 16, 2000);
  const double hop = game_end(&g, "ping-pong") / (2.0 * 1999);
  g = game_start(kind, 2, 16384, 2000);
  const double hop_16k = game_end(&g, "ping-pong of 16 KiB") / (2.0 * 1999);
  g = game_start(kind, 1, 1 << 20, 256);
  const double mib = 256.0 * (1 << 20) / game_end(&g, "1 MiB posts");
  g = game_start(kind, 1, 64 << 20, 16);
  const double large = 16.0 * (64 << 20) / game_end(&g, "64 MiB posts");
  printf("courier  %-20s %5u B buffers: post to signal seen %5.0f ns (16 B) %5.0f ns (16 KiB); "
         "%6.1f GB/s (1 MiB) %6.1f GB/s (64 MiB)\n",
         kind->kernel, kind->buffer_bytes, hop, hop_16k, mib, large);
}

/* ---- couriers beside a GEMM ------------------------------------------------------------------ */

struct beside {
  struct gemm_kernel kernel;
  struct gemm_launch launch;
  cuda_stream stream;
  cuda_event start, stop;
};

static double time_gemm(struct beside *b, uint32_t clusters, int launches) {
  float ms = 0;
  b->launch.launch.ctas = clusters * GEMM_CLUSTER;
  gpu_require(driver->cuEventRecord(b->start, b->stream), "event");
  for (int i = 0; i < launches; i++)
    gpu_require_status(weft__gemm_run(&b->kernel, &b->launch, b->stream), "gemm");
  gpu_require(driver->cuEventRecord(b->stop, b->stream), "event");
  gpu_require(driver->cuEventSynchronize(b->stop), "event");
  gpu_require(driver->cuEventElapsedTime(&ms, b->start, b->stop), "event");
  return ms / launches;
}

static void probe_beside(const char *name, struct gemm_shape shape) {
  enum { M = 4096, N = 32768, K = 4096, LAUNCHES = 20 };
  struct beside b = {.stream = new_stream()};
  gpu_require(driver->cuEventCreate(&b.start, 0), "event");
  gpu_require(driver->cuEventCreate(&b.stop, 0), "event");
  gpu_require_status(weft__gemm_load(&test_device_images, name, &shape, 0, &b.kernel), name);
  struct cuda_kernel fill;
  gpu_require_status(
      weft__cuda_kernel_load(&test_device_images, "smxx_bench_data", "bench_fill", 0, 0, &fill),
      "bench_fill");
  cuda_address operands[2];
  for (int i = 0; i < 2; i++) {
    const uint64_t count = (uint64_t)(i ? N : M) * K;
    operands[i] = gpu_allocate(count * 2);
    struct fill_args args = {
        .to = {operands[i]}, .count = count, .seed = 11 + (uint32_t)i, .scale = 1};
    const struct cuda_launch launch = {.ctas = 1024, .threads = BENCH_THREADS, .cluster = 1};
    gpu_require_status(weft__cuda_launch(&fill, &launch, &args), "bench_fill");
  }
  const cuda_address c = gpu_allocate((size_t)M * N * 2);
  const struct gemm_problem problem = {.rows = M,
                                       .cols = N,
                                       .depth = K,
                                       .a = {operands[0], shape.a_mn ? M : K},
                                       .b = {operands[1], shape.b_mn ? N : K},
                                       .c = {c, shape.transposed ? M : N},
                                       .group_rows = 2048};
  gpu_require_status(weft__gemm_prepare(&b.kernel, &problem, &b.launch), name);
  gpu_require(driver->cuCtxSynchronize(), "fill");
  const uint32_t full = b.kernel.clusters_max;
  time_gemm(&b, full, LAUNCHES);
  printf("beside   %s, %dx%d over %d, ms a launch with %u and %u clusters, alone: %.3f %.3f\n",
         name, M, N, K, full, full - 1, time_gemm(&b, full, LAUNCHES),
         time_gemm(&b, full - 1, LAUNCHES));
  const struct courier_kind *kinds[] = {&small, &bulk, &plain};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct courier waiting = courier_make(kinds[k]);
    courier_launch(&waiting);
    const double one = time_gemm(&b, full, LAUNCHES), less = time_gemm(&b, full - 1, LAUNCHES);
    courier_stop(&waiting, 0);
    courier_free(&waiting);
    printf("beside   %-20s %5u B buffers, waiting: %.3f %.3f", kinds[k]->kernel,
           kinds[k]->buffer_bytes, one, less);
    /* two couriers and two players that work all the while: some 100 ms of ping-pong */
    const uint32_t rounds = 12000;
    struct game g = game_start(kinds[k], 2, 16, rounds);
    const double busy = time_gemm(&b, full, LAUNCHES);
    const double hop = game_end(&g, "ping-pong beside a GEMM") / (2.0 * (rounds - 1));
    printf("; playing: %.3f, %.0f ns a hop\n", busy, hop);
  }
  gpu_free(operands[0]);
  gpu_free(operands[1]);
  gpu_free(c);
}

int main(void) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* one hardware queue a stream */
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);      /* a lazy load may wait for a kernel that waits */
  driver = gpu_open(&device);
  printf("# probes on %s, %d SMs\n", device.name, device.sm_count);
  if (device.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  for (int cooperative = 1; cooperative >= 0; cooperative--)
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks *= 2)
      probe_meeting(ranks, cooperative);
  probe_courier(&plain);
  probe_courier(&bulk);
  probe_courier(&small);
  probe_beside("sm90_gemm_logits", (struct gemm_shape){SM90_GEMM_LOGITS});
  probe_beside("sm90_gemm_dx", (struct gemm_shape){SM90_GEMM_DX});
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
