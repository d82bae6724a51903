/* Times dispatch and combine of several ranks of one process on GPU 0 against a plain device copy
 * of the same bytes read and written, in the same run. Each rank replays a graph of ITERATIONS
 * calls in a stream of its own; a time is a call's, of the slowest rank, median of rounds; the
 * three fence modes take turns within a round.
 *
 *   ep_bench [--quick] [--fp8-only | --bf16-only] [--json FILE] [--soak COMBINES] */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_kernels.h"
#include "gpu.h"
#include "graph.h"

enum { ON, OFF, WIDE }; /* weft_ep_fence */
enum { HOLD_COPIES = 12, HOLD_BYTES = 256 << 20 };
enum { RANKS_MAX = 16, MODES = 3, PHASES = 2, ITERATIONS = 40, ROUNDS_MAX = 15 };

static const char *const phases[] = {"dispatch", "combine"};
static const char *const strategies[] = {"random", "random-same", "local-rand", "local-same",
                                         "remote-rand"};

struct shape {
  int64_t tokens, ranks, hidden, experts, topk;
  double ratio, slack_us; /* the goal */
};

struct rank {
  weft_comm *comm;
  weft_ep_plan *plan[MODES];
  weft_ep_handle *handle[MODES];
  cuda_stream stream;
  cuda_event start, end;
  struct gpu_graph graph[MODES][PHASES];
  cuda_address x, topk, weights, recv_x, scales, counts, offsets, out;
};

extern struct device_images bench_device_images;

static const struct cuda_driver *driver;
static FILE *json;
static int results;
static struct rank ranks[RANKS_MAX];
static int rounds = 9, modes_open = MODES;
static cuda_stream hold_stream;
static cuda_event hold_end;
static cuda_address hold_from, hold_to;

static int ascending(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median(double *of, int count) {
  qsort(of, (size_t)count, sizeof *of, ascending);
  return of[count / 2];
}

static uint64_t next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

/* K different experts out of the strategy's choice. */
static void draw(const struct shape *s, int strategy, int64_t rank, uint64_t *state,
                 int64_t *topk) {
  const int64_t own = s->experts / s->ranks;
  const int local = strategy == 2 || strategy == 3, remote = strategy == 4;
  const int64_t choice = local ? own : remote ? s->experts - own : s->experts;
  for (int64_t k = 0; k < s->topk; k++)
    for (int again = 1; again;) {
      const int64_t drawn = (int64_t)(next(state) % (uint64_t)choice);
      topk[k] = local ? rank * own + drawn : remote && drawn >= rank * own ? drawn + own : drawn;
      again = 0;
      for (int64_t j = 0; j < k; j++)
        again |= topk[j] == topk[k];
    }
}

static void set_topk(const struct shape *s, int strategy) {
  const size_t slots = (size_t)(s->tokens * s->topk);
  int64_t *topk = (int64_t *)malloc(slots * 8);
  if (topk == NULL) exit(4);
  for (int64_t r = 0; r < s->ranks; r++) {
    uint64_t state = 77 + (strategy == 1 ? 0 : (uint64_t)r);
    for (int64_t t = 0; t < s->tokens; t++) {
      if (t > 0 && (strategy == 1 || strategy == 3))
        memcpy(topk + t * s->topk, topk, (size_t)s->topk * 8);
      else
        draw(s, strategy, r, &state, topk + t * s->topk);
    }
    gpu_require(driver->cuMemcpyHtoD(ranks[r].topk, topk, slots * 8), "topk");
  }
  free(topk);
}

static struct cuda_kernel kernel_of(const char *name) {
  struct cuda_kernel kernel;
  gpu_require_status(
      weft__cuda_kernel_load(&bench_device_images, "smxx_bench_data", name, 0, 0, &kernel), name);
  return kernel;
}

/* Random bf16: the power that data draw depends on them. */
static void fill(cuda_address to, uint64_t count, uint32_t seed) {
  struct fill_args args = {{to}, count, seed, 1.0f};
  const struct cuda_kernel kernel = kernel_of("bench_fill");
  const struct cuda_launch launch = {.ctas = 1024, .threads = BENCH_THREADS, .cluster = 1};
  gpu_require_status(weft__cuda_launch(&kernel, &launch, &args), "bench_fill");
}

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
}

static weft_status issue(const struct shape *s, struct rank *r, int mode, int phase, void *stream) {
  if (phase == 0) {
    weft_ep_dispatch_args a = WEFT_EP_DISPATCH_ARGS_INIT;
    a.tokens = s->tokens;
    a.x = pointer(r->x);
    a.topk_idx = pointer(r->topk);
    a.recv_x = pointer(r->recv_x);
    a.recv_scales = pointer(r->scales);
    a.counts = (int64_t *)pointer(r->counts);
    a.offsets = (int64_t *)pointer(r->offsets);
    return weft_ep_dispatch(r->handle[mode], &a, stream);
  }
  weft_ep_combine_args a = WEFT_EP_COMBINE_ARGS_INIT;
  gpu_require_status(weft_ep_combine_buffer(r->plan[mode], (void **)&a.y), "buffer");
  a.topk_weights = (const float *)pointer(r->weights);
  a.out = pointer(r->out);
  return weft_ep_combine(r->handle[mode], &a, stream);
}

static void open_shape(const struct shape *s, int fp8) {
  static const int32_t gpus[RANKS_MAX] = {0};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  weft_comm *comms[RANKS_MAX];
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  world.ranks = s->ranks;
  world.device = WEFT_DEVICE_CUDA;
  world.gpus = gpus;
  world.timeout_ms = 3000;
  gpu_require_status(weft_comm_create_inproc(&world, comms), "world");
  for (int mode = 0; mode < modes_open; mode++) {
    gpu_require_status(weft_group_start(), "group");
    for (int64_t r = 0; r < s->ranks; r++) {
      weft_ep_config config = WEFT_EP_CONFIG_INIT;
      config.tokens_max = s->tokens;
      config.hidden = s->hidden;
      config.experts = s->experts;
      config.topk = s->topk;
      config.dtype = fp8 ? WEFT_E4M3 : WEFT_BF16;
      config.zero_copy = 1;
      config.fence = mode;
      if (modes_open == 1) config.layout = WEFT_EP_PACKED, config.alignment = 128;
      gpu_require_status(weft_ep_plan_create(comms[r], &config, &ranks[r].plan[mode]), "plan");
    }
    gpu_require_status(weft_group_end(), "plans");
  }
  gpu_require_status(weft_ep_plan_info_get(ranks[0].plan[0], &info), "info");
  for (int64_t i = 0; i < s->ranks; i++) {
    struct rank *r = &ranks[i];
    void *buffer;
    r->comm = comms[i];
    gpu_require(driver->cuStreamCreate(&r->stream, GPU_NON_BLOCKING), "stream");
    gpu_require(driver->cuEventCreate(&r->start, 0), "event");
    gpu_require(driver->cuEventCreate(&r->end, 0), "event");
    const size_t bytes = (size_t)(s->tokens * s->hidden) * 2;
    r->x = gpu_allocate(bytes);
    fill(r->x, (uint64_t)(s->tokens * s->hidden), (uint32_t)i);
    r->topk = gpu_allocate((size_t)(s->tokens * s->topk) * 8);
    r->weights = gpu_allocate((size_t)(s->tokens * s->topk) * 4);
    gpu_require(driver->cuMemsetD8Async(r->weights, 0x3c, (size_t)(s->tokens * s->topk) * 4, NULL),
                "weights");
    r->recv_x = gpu_allocate((size_t)info.recv_bytes);
    r->scales = gpu_allocate((size_t)info.scale_bytes + 4);
    r->counts = gpu_allocate((size_t)info.experts_local * 8);
    r->offsets = gpu_allocate((size_t)info.experts_local * 8 + 8);
    r->out = gpu_allocate(bytes);
    for (int mode = 0; mode < modes_open; mode++) {
      gpu_require_status(weft_ep_handle_create(r->plan[mode], &r->handle[mode]), "handle");
      gpu_require_status(weft_ep_combine_buffer(r->plan[mode], &buffer), "buffer");
      fill((cuda_address)(uintptr_t)buffer, (uint64_t)info.buffer_bytes / 2, 100 + (uint32_t)i);
    }
  }
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  set_topk(s, 0);
  for (int mode = 0; mode < modes_open; mode++)
    for (int phase = 0; phase < PHASES; phase++)
      for (int64_t i = 0; i < s->ranks; i++) {
        gpu_graph_begin(ranks[i].stream);
        for (int n = 0; n < ITERATIONS; n++)
          gpu_require_status(issue(s, &ranks[i], mode, phase, ranks[i].stream), "capture");
        ranks[i].graph[mode][phase] = gpu_graph_end(ranks[i].stream);
      }
}

static void close_shape(const struct shape *s) {
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  for (int64_t i = 0; i < s->ranks; i++) {
    struct rank *r = &ranks[i];
    const cuda_address all[] = {r->x,      r->topk,   r->weights, r->recv_x,
                                r->scales, r->counts, r->offsets, r->out};
    for (size_t a = 0; a < sizeof all / sizeof all[0]; a++)
      gpu_free(all[a]);
    for (int mode = 0; mode < modes_open; mode++) {
      for (int phase = 0; phase < PHASES; phase++)
        gpu_graph_free(r->graph[mode][phase]);
      gpu_require_status(weft_ep_handle_destroy(r->handle[mode]), "handle");
      gpu_require_status(weft_ep_plan_destroy(r->plan[mode]), "plan");
    }
    driver->cuEventDestroy(r->start);
    driver->cuEventDestroy(r->end);
    driver->cuStreamDestroy(r->stream);
  }
  for (int64_t i = 0; i < s->ranks; i++)
    gpu_require_status(weft_comm_destroy(ranks[i].comm), "comm");
}

/* Keeps the GPU busy while the host enqueues the graphs of all ranks, so that they start at once.
 */
static void hold(const struct shape *s) {
  for (int n = 0; n < HOLD_COPIES; n++)
    gpu_require(driver->cuMemcpyAsync(hold_to, hold_from, HOLD_BYTES, hold_stream), "hold");
  gpu_require(driver->cuEventRecord(hold_end, hold_stream), "record");
  for (int64_t i = 0; i < s->ranks; i++)
    gpu_require(driver->cuStreamWaitEvent(ranks[i].stream, hold_end, 0), "wait");
}

/* Microseconds of a call, of the slowest rank. */
static double replay(const struct shape *s, int mode, int phase) {
  double slowest = 0;
  hold(s);
  for (int64_t i = 0; i < s->ranks; i++) {
    gpu_require(driver->cuEventRecord(ranks[i].start, ranks[i].stream), "record");
    gpu_graph_launch(ranks[i].graph[mode][phase], ranks[i].stream);
    gpu_require(driver->cuEventRecord(ranks[i].end, ranks[i].stream), "record");
  }
  for (int64_t i = 0; i < s->ranks; i++) {
    float ms = 0;
    gpu_require(driver->cuEventSynchronize(ranks[i].end), "a graph");
    gpu_require(driver->cuEventElapsedTime(&ms, ranks[i].start, ranks[i].end), "elapsed");
    if (ms > slowest) slowest = ms;
  }
  return 1e3 * slowest / ITERATIONS;
}

/* A call without tokens: what is left is launching and meeting. */
static void run_empty(const struct shape *s) {
  for (int phase = 0; phase < PHASES; phase++) {
    struct gpu_graph kept[RANKS_MAX];
    struct shape none = *s;
    double us[ROUNDS_MAX];
    none.tokens = 0;
    for (int64_t i = 0; i < s->ranks; i++) {
      kept[i] = ranks[i].graph[ON][phase];
      gpu_require_status(issue(&none, &ranks[i], ON, 0, ranks[i].stream), "empty dispatch");
    }
    gpu_require(driver->cuCtxSynchronize(), "empty dispatch");
    for (int64_t i = 0; i < s->ranks; i++) {
      gpu_graph_begin(ranks[i].stream);
      for (int n = 0; n < ITERATIONS; n++)
        gpu_require_status(issue(&none, &ranks[i], ON, phase, ranks[i].stream), "capture");
      ranks[i].graph[ON][phase] = gpu_graph_end(ranks[i].stream);
    }
    for (int n = 0; n < 5; n++)
      us[n] = replay(s, ON, phase);
    printf("%5d %2lld      no tokens   %-8s %8.2f\n", 0, (long long)s->ranks, phases[phase],
           median(us, 5));
    for (int64_t i = 0; i < s->ranks; i++) {
      gpu_graph_free(ranks[i].graph[ON][phase]);
      ranks[i].graph[ON][phase] = kept[i];
    }
  }
}

/* Microseconds of a plain copy that reads and writes `bytes` in all: of four pairs of buffers in
 * turn, more than a cache holds. */
static double copy(size_t bytes) {
  enum { PAIRS = 4 };
  static cuda_address from[PAIRS], to[PAIRS];
  static size_t room;
  float ms = 0;
  const size_t half = bytes / 2;
  for (int i = 0; i < PAIRS && half > room; i++) {
    gpu_free(from[i]);
    gpu_free(to[i]);
    from[i] = gpu_allocate(half);
    to[i] = gpu_allocate(half);
    fill(from[i], half / 16 * 8, 7);
  }
  if (half > room) room = half;
  struct rank *r = &ranks[0];
  for (int n = -2; n < ITERATIONS; n++) {
    if (n == 0) gpu_require(driver->cuEventRecord(r->start, r->stream), "record");
    gpu_require(
        driver->cuMemcpyAsync(to[(n + PAIRS) % PAIRS], from[(n + PAIRS) % PAIRS], half, r->stream),
        "copy");
  }
  gpu_require(driver->cuEventRecord(r->end, r->stream), "record");
  gpu_require(driver->cuEventSynchronize(r->end), "copies");
  gpu_require(driver->cuEventElapsedTime(&ms, r->start, r->end), "elapsed");
  return 1e3 * ms / ITERATIONS;
}

/* Where the time goes that is not the copy's: a rank's waits, a call, for itself (its other CTAs)
 * and for the peers that it waited for longest. */
static void print_waits(const struct shape *s, int calls) {
  for (int64_t r = 0; r < s->ranks; r += s->ranks - 1) {
    double wait_ms[RANKS_MAX] = {0}, most = 0;
    weft_ep_stats stats = WEFT_EP_STATS_INIT;
    stats.wait_ms = wait_ms;
    gpu_require_status(weft_ep_stats_get(ranks[r].plan[ON], &stats, 1), "stats");
    for (int64_t p = 0; p < s->ranks; p++)
      if (p != r && wait_ms[p] > most) most = wait_ms[p];
    printf("#   waits of rank %lld, us a call: itself %.2f, a peer %.2f\n", (long long)r,
           1e3 * wait_ms[r] / calls, 1e3 * most / calls);
  }
}

/* So many combines of each strategy, each compared with the first to the last bit. */
static void soak(const struct shape *s, int64_t combines) {
  const struct cuda_kernel compare = kernel_of("bench_compare");
  const size_t bytes = (size_t)(s->tokens * s->hidden) * 2;
  cuda_address first[RANKS_MAX], differ[RANKS_MAX];
  open_shape(s, 0);
  for (int64_t i = 0; i < s->ranks; i++) {
    first[i] = gpu_allocate(bytes);
    differ[i] = gpu_allocate(8);
    gpu_require(driver->cuMemsetD8Async(differ[i], 0, 8, ranks[i].stream), "differ");
  }
  /* once now: the first launch of a kernel loads it, and waits for the device */
  struct compare_args nothing = {{first[0]}, {first[0]}, {differ[0]}, 0, 0.0f, 0.0f};
  const struct cuda_launch one = {.ctas = 1, .threads = BENCH_THREADS, .cluster = 1};
  gpu_require_status(weft__cuda_launch(&compare, &one, &nothing), "compare");
  gpu_require(driver->cuCtxSynchronize(), "compare");
  for (int strategy = 0; strategy < 5; strategy++) {
    uint64_t wrong = 0;
    set_topk(s, strategy);
    for (int64_t i = 0; i < s->ranks; i++)
      gpu_require_status(issue(s, &ranks[i], ON, 0, ranks[i].stream), "dispatch");
    for (int64_t n = 0; n <= combines; n++)
      for (int64_t i = 0; i < s->ranks; i++) {
        struct rank *r = &ranks[i];
        gpu_require(driver->cuMemsetD8Async(r->out, 0xff, bytes, r->stream), "poison");
        gpu_require_status(issue(s, r, ON, 1, r->stream), "combine");
        if (n == 0) {
          gpu_require(driver->cuMemcpyAsync(first[i], r->out, bytes, r->stream), "first");
          continue;
        }
        struct compare_args args = {{r->out}, {first[i]}, {differ[i]}, bytes / 2, 0.0f, 0.0f};
        const struct cuda_launch launch = {.ctas = 132 / (unsigned)s->ranks,
                                           .threads = BENCH_THREADS,
                                           .cluster = 1,
                                           .stream = r->stream};
        gpu_require_status(weft__cuda_launch(&compare, &launch, &args), "compare");
      }
    for (int64_t i = 0; i < s->ranks; i++) {
      uint64_t own = 0;
      gpu_require(driver->cuStreamSynchronize(ranks[i].stream), "soak");
      gpu_download(&own, differ[i], 8);
      wrong += own;
    }
    printf("%5lld %2lld %-11s %lld combines compared to the bit: %llu pairs differ\n",
           (long long)s->tokens, (long long)s->ranks, strategies[strategy], (long long)combines,
           (unsigned long long)wrong);
    fflush(stdout);
  }
  for (int64_t i = 0; i < s->ranks; i++) {
    gpu_free(first[i]);
    gpu_free(differ[i]);
  }
  close_shape(s);
}

static void run_shape(const struct shape *s, int fp8, int strategies_run) {
  open_shape(s, fp8);
  run_empty(s);
  for (int strategy = 0; strategy < strategies_run; strategy++) {
    set_topk(s, strategy);
    for (int phase = 0; phase < PHASES; phase++) {
      const double element = phase == 0 && fp8 ? 1 : 2;
      const size_t bytes =
          (size_t)((double)(s->ranks * s->tokens * s->hidden) * (2 + (double)s->topk * element));
      double us[MODES + 1][ROUNDS_MAX], copies[ROUNDS_MAX], at[MODES], over[MODES + 1];
      for (int mode = 0; mode < MODES; mode++) {
        if (phase == 0) replay(s, mode, 0);
        replay(s, mode, phase);
      }
      weft_ep_stats unused = WEFT_EP_STATS_INIT;
      for (int64_t r = 0; r < s->ranks; r++)
        gpu_require_status(weft_ep_stats_get(ranks[r].plan[ON], &unused, 1), "stats");
      for (int n = 0; n < rounds; n++) {
        copies[n] = copy(bytes);
        for (int m = 0; m < MODES; m++) {
          const int mode = (m + n) % MODES;
          us[mode][n] = replay(s, mode, phase);
        }
        us[MODES][n] = replay(s, OFF, phase); /* off once more: the noise of a ratio */
      }
      for (int mode = 0; mode <= MODES; mode++) {
        double ratio[ROUNDS_MAX];
        for (int n = 0; n < rounds; n++)
          ratio[n] = us[mode][n] / us[OFF][n];
        over[mode] = median(ratio, rounds);
      }
      for (int mode = 0; mode < MODES; mode++)
        at[mode] = median(us[mode], rounds);
      const double plain = median(copies, rounds), goal = s->ratio * plain + s->slack_us;
      printf(
          "%5lld %2lld %-4s %-11s %-8s %8.2f %8.2f %8.2f  %+5.2f%% %+5.2f%%  noise %+5.2f%%  copy "
          "%8.2f  ratio %.3f  goal %8.2f %s\n",
          (long long)s->tokens, (long long)s->ranks, fp8 ? "fp8" : "bf16", strategies[strategy],
          phases[phase], at[ON], at[OFF], at[WIDE], 100 * (over[ON] - 1), 100 * (over[WIDE] - 1),
          100 * (over[MODES] - 1), plain, at[ON] / plain, goal, at[ON] <= goal ? "met" : "MISSED");
      if (json != NULL)
        fprintf(
            json,
            "%s\n{\"tokens\":%lld,\"ranks\":%lld,\"hidden\":%lld,\"experts\":%lld,\"topk\":%lld,"
            "\"dtype\":\"%s\",\"strategy\":\"%s\",\"phase\":\"%s\",\"us_p50\":{\"on\":%.3f,"
            "\"off\":%.3f,\"wide\":%.3f},\"on_over_off\":%.5f,\"wide_over_off\":%.5f,"
            "\"noise\":%.5f,\"copy_us_p50\":%.3f,\"ratio\":%.4f,\"goal_us\":%.3f,\"met\":%s}",
            results++ ? "," : "", (long long)s->tokens, (long long)s->ranks, (long long)s->hidden,
            (long long)s->experts, (long long)s->topk, fp8 ? "fp8" : "bf16", strategies[strategy],
            phases[phase], at[ON], at[OFF], at[WIDE], over[ON], over[WIDE], over[MODES], plain,
            at[ON] / plain, goal, at[ON] <= goal ? "true" : "false");
      print_waits(s, rounds * ITERATIONS);
      fflush(stdout);
    }
  }
  for (int64_t r = 0; r < s->ranks; r++) {
    weft_async_error error = WEFT_ASYNC_ERROR_INIT;
    gpu_require_status(weft_comm_async_error(ranks[r].comm, &error), "async_error");
    if (error.status == WEFT_OK) continue;
    printf("error: %s\n", error.message);
    exit(4);
  }
  close_shape(s);
}

/* What was measured is kept, whatever becomes of the rest. */
static void end_json(void) {
  if (json == NULL) return;
  fprintf(json, "\n]}\n");
  fclose(json);
}

static int usage(void) {
  fprintf(stderr,
          "usage: ep_bench [--quick] [--fp8-only | --bf16-only] [--json FILE] [--soak COMBINES]\n");
  return 2;
}

int main(int count, char **arguments) {
  static const struct shape shapes[] = {{1024, 4, 7168, 256, 8, 1.3, 0},
                                        {128, 8, 7168, 256, 8, 1.3, 12}};
  struct cuda_device_info info;
  int strategies_run = 5, dtypes = 3;
  const char *file = NULL;
  int64_t combines = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  for (int i = 1; i < count; i++) {
    if (!strcmp(arguments[i], "--quick"))
      strategies_run = 1, rounds = 5;
    else if (!strcmp(arguments[i], "--bf16-only"))
      dtypes = 1;
    else if (!strcmp(arguments[i], "--fp8-only"))
      dtypes = 2;
    else if (!strcmp(arguments[i], "--soak") && i + 1 < count)
      combines = atoll(arguments[++i]);
    else if (!strcmp(arguments[i], "--json") && i + 1 < count)
      file = arguments[++i];
    else
      return usage();
  }
  driver = gpu_open(&info);
  if (info.major != 9) {
    printf("skipped: %s is not of compute capability 9.0\n", info.name);
    return GPU_SKIPPED;
  }
  hold_from = gpu_allocate(HOLD_BYTES);
  hold_to = gpu_allocate(HOLD_BYTES);
  gpu_require(driver->cuStreamCreate(&hold_stream, GPU_NON_BLOCKING), "stream");
  gpu_require(driver->cuEventCreate(&hold_end, 0), "event");
  if (file != NULL) {
    json = fopen(file, "w");
    if (json == NULL) return usage();
    fprintf(json,
            "{\"op\":\"ep\",\"device\":\"%s\",\"driver\":%d,\"config\":{\"iterations\":%d,"
            "\"rounds\":%d},\"results\":[",
            info.name, driver->version, ITERATIONS, rounds);
    atexit(end_json);
  }
  printf(
      "# %s, us a call: fence on, off, wide; on, wide and off again over off, medians of rounds\n",
      info.name);
  if (combines > 0) {
    modes_open =
        1; /* and rows packed: slabs of so many tokens are too large for all ranks on one GPU */
    const struct shape long_one = {4096, 4, 7168, 256, 8, 0, 0};
    soak(&shapes[0], combines);
    soak(&long_one, combines);
    return 0;
  }
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (int fp8 = 0; fp8 < 2; fp8++)
      if (dtypes & (1 << fp8)) run_shape(&shapes[i], fp8, strategies_run);
  return 0;
}
