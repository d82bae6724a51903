/* What a team's communication costs where it costs no wire: forward, backward and step by n ranks
 * of this process on one GPU, against one rank on as many SMs, by the public API. Blocks of calls
 * one behind the other, one rank and team in turn, medians of the rounds' ratios; wall time from
 * the first launch until every rank's stream is done, so that what calls cost on the host is in it.
 *
 *   ce_team_bench [--json FILE] [--tokens M] [--hidden H] [--vocab V] */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <time.h>

#include "bench_kernels.h"
#include "gpu.h"

enum { ROUNDS = 5, RANKS_MAX = 16 };
static const double block_ms = 100;

extern struct device_images bench_device_images;
static const struct cuda_driver *driver;

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static cuda_address normal_matrix(int64_t count, uint32_t seed, double scale) {
  const cuda_address to = gpu_allocate((size_t)count * 2);
  struct fill_args args = {
      .to = {to}, .count = (uint64_t)count, .seed = seed, .scale = (float)scale};
  struct cuda_kernel kernel;
  gpu_require_status(
      weft__cuda_kernel_load(&bench_device_images, "smxx_bench_data", "bench_fill", 0, 0, &kernel),
      "bench_fill");
  const struct cuda_launch launch = {.ctas = 1024, .threads = BENCH_THREADS, .cluster = 1};
  gpu_require_status(weft__cuda_launch(&kernel, &launch, &args), "bench_fill");
  return to;
}

struct shape {
  int64_t m, h, v;
  cuda_address x, w, dw, targets, g;
};

/* A team, or with one rank a plan alone. */
struct side {
  int64_t ranks;
  weft_comm *comm[RANKS_MAX];
  weft_ce_plan *plan[RANKS_MAX];
  weft_ce_args args[RANKS_MAX];
  void *stream[RANKS_MAX];
  cuda_address outputs[RANKS_MAX]; /* stats, nll, lse, dx */
  int64_t bytes;                   /* workspace of rank 0 */
};

static void open_world(struct side *s) {
  static const int32_t gpus[RANKS_MAX] = {0};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = s->ranks;
  world.device = WEFT_DEVICE_CUDA;
  world.gpus = gpus;
  world.timeout_ms = 10000;
  gpu_require_status(weft_comm_create_inproc(&world, s->comm), "comm_create_inproc");
}

static void open_side(const struct shape *p, int64_t ranks, int32_t sms, struct side *s) {
  memset(s, 0, sizeof *s);
  s->ranks = ranks;
  if (ranks > 1) {
    open_world(s);
    gpu_require_status(weft_group_start(), "group_start");
  }
  for (int64_t r = 0; r < ranks; r++) {
    weft_ce_config config = WEFT_CE_CONFIG_INIT;
    config.max_tokens = p->m;
    config.hidden = p->h;
    config.vocab = p->v;
    config.vocab_start = r * (p->v / ranks);
    config.vocab_local = r == ranks - 1 ? p->v - config.vocab_start : p->v / ranks;
    config.dtype = WEFT_BF16;
    config.device = WEFT_DEVICE_CUDA;
    config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
    config.max_sms = sms;
    /* One rank gets a wave as well, as the team's ranks do. */
    if (ranks == 1) config.workspace_budget = p->m * p->v * 2 + ((int64_t)256 << 20);
    gpu_require_status(weft_ce_plan_create(s->comm[r], &config, &s->plan[r]), "plan");
    const size_t m = (size_t)p->m;
    s->outputs[r] = gpu_allocate(m * 24 + m * (size_t)p->h * 2);
    weft_ce_args *a = &s->args[r];
    const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
    const cuda_address offset = (cuda_address)(config.vocab_start * p->h * 2);
    *a = defaults;
    a->tokens = p->m;
    a->x = pointer(p->x);
    a->w = pointer(p->w + offset);
    a->target = pointer(p->targets);
    a->g_nll = (const float *)pointer(p->g);
    a->stats = (float *)pointer(s->outputs[r]);
    a->nll = (float *)pointer(s->outputs[r] + m * 16);
    a->lse = (float *)pointer(s->outputs[r] + m * 20);
    a->dx = pointer(s->outputs[r] + m * 24);
    a->dw = pointer(p->dw + offset);
  }
  if (ranks > 1) gpu_require_status(weft_group_end(), "plans");
  for (int64_t r = 0; r < ranks && ranks > 1; r++)
    gpu_require_status(weft_comm_stream_get(s->comm[r], &s->stream[r]), "stream");
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  gpu_require_status(weft_ce_plan_info_get(s->plan[0], &info), "plan");
  s->bytes = info.local_bytes + info.symmetric_bytes;
}

static void close_side(struct side *s) {
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require_status(weft_ce_plan_destroy(s->plan[r]), "plan");
    gpu_free(s->outputs[r]);
  }
  for (int64_t r = 0; r < s->ranks; r++)
    gpu_require_status(weft_comm_destroy(s->comm[r]), "comm");
}

enum phase { FORWARD, BACKWARD, STEP, PHASES };
static const char *const phase_names[] = {"forward", "backward", "step"};

static double time_block(struct side *s, enum phase phase, int runs) {
  weft_status (*const calls[])(weft_ce_plan *, const weft_ce_args *,
                               void *) = {weft_ce_forward, weft_ce_backward, weft_ce_step};
  const double began = milliseconds();
  for (int i = 0; i < runs; i++)
    for (int64_t r = 0; r < s->ranks; r++)
      gpu_require_status(calls[phase](s->plan[r], &s->args[r], NULL), phase_names[phase]);
  for (int64_t r = 0; r < s->ranks; r++)
    gpu_require_status(weft_memory_synchronize(0, s->stream[r]), phase_names[phase]);
  return (milliseconds() - began) / runs;
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void bench(const struct shape *p, int64_t ranks, FILE *json, int *results) {
  static struct side one, team;
  const int32_t sms = (int32_t)(132 / ranks / 2 * 2);
  open_side(p, 1, sms * (int32_t)ranks, &one);
  open_side(p, ranks, 0, &team);
  for (int phase = FORWARD; phase < PHASES; phase++) {
    double ratios[ROUNDS], times[ROUNDS];
    time_block(&team, FORWARD, 1); /* statistics for backward */
    time_block(&one, FORWARD, 1);
    time_block(&team, (enum phase)phase, 1);
    const int runs = (int)(block_ms / time_block(&one, (enum phase)phase, 1)) + 1;
    double before = time_block(&one, (enum phase)phase, runs);
    for (int i = 0; i < ROUNDS; i++) {
      times[i] = time_block(&team, (enum phase)phase, runs);
      const double after = time_block(&one, (enum phase)phase, runs);
      ratios[i] = 2 * times[i] / (before + after);
      before = after;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
    qsort(ratios, ROUNDS, sizeof *ratios, ascending);
    printf("%lldx%lldx%lld %2lld ranks of %d SMs %-8s %8.3f ms, over one rank of %d %.4f "
           "(%.4f-%.4f), %.1f MiB a rank\n",
           (long long)p->m, (long long)p->h, (long long)p->v, (long long)ranks, sms,
           phase_names[phase], times[ROUNDS / 2], sms * (int)ranks, ratios[ROUNDS / 2], ratios[0],
           ratios[ROUNDS - 1], (double)team.bytes / 1048576);
    fflush(stdout);
    if (json)
      fprintf(json,
              "%s\n{\"tokens\":%lld,\"hidden\":%lld,\"vocab\":%lld,\"ranks\":%lld,\"sms\":%d,"
              "\"phase\":\"%s\",\"ms_p50\":%.4f,\"ratio_p50\":%.5f,\"ratio_min\":%.5f,"
              "\"ratio_max\":%.5f}",
              (*results)++ ? "," : "", (long long)p->m, (long long)p->h, (long long)p->v,
              (long long)ranks, sms, phase_names[phase], times[ROUNDS / 2], ratios[ROUNDS / 2],
              ratios[0], ratios[ROUNDS - 1]);
  }
  close_side(&team);
  close_side(&one);
}

int main(int argc, char **argv) {
  struct cuda_device_info info;
  struct shape p = {.m = 4096, .h = 4096, .v = 131072};
  FILE *json = NULL;
  int results = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--json")) json = fopen(argv[i + 1], "w");
    if (!strcmp(argv[i], "--tokens")) p.m = atoll(argv[i + 1]);
    if (!strcmp(argv[i], "--hidden")) p.h = atoll(argv[i + 1]);
    if (!strcmp(argv[i], "--vocab")) p.v = atoll(argv[i + 1]);
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* one hardware queue a rank */
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  int64_t *target = malloc((size_t)p.m * 8);
  float *g = malloc((size_t)p.m * 4);
  if (!target || !g) return 4;
  for (int64_t i = 0; i < p.m; i++) {
    target[i] = (int64_t)((uint64_t)i * 2654435761u % (uint64_t)p.v);
    g[i] = 0.25f + (float)(i * 7919 % 1000) / 1000.0f;
  }
  p.x = normal_matrix(p.m * p.h, 1, 1.0);
  p.w = normal_matrix(p.v * p.h, 2, 1.0 / sqrt((double)p.h));
  p.dw = gpu_allocate((size_t)(p.v * p.h) * 2);
  p.targets = gpu_upload(target, (size_t)p.m * 8);
  p.g = gpu_upload(g, (size_t)p.m * 4);
  gpu_require(driver->cuCtxSynchronize(), "data");
  if (json)
    fprintf(json, "{\"op\":\"ce\",\"device\":\"%s\",\"driver\":%d,\"dx_apart\":%d,\"results\":[",
            info.name, driver->version, getenv("WEFT_DX_APART") != NULL);
  for (int64_t ranks = 2; ranks <= 8; ranks *= 2)
    bench(&p, ranks, json, &results);
  if (json) {
    fprintf(json, "]}\n");
    fclose(json);
  }
  const cuda_address all[] = {p.x, p.w, p.dw, p.targets, p.g};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  free(target);
  free(g);
  return 0;
}
