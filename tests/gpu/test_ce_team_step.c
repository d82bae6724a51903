/* Backward and step of ce over teams of GPU ranks of this process, by the public API, all ranks on
 * GPU 0, or in turn on several, and issued by this one thread: dX and dW against f64, dX with the
 * same bits on all ranks, all outputs with the same bits run after run; the three modes of dX,
 * several waves, ranks without rows, accumulation, captured graphs, and steps one behind the other
 * with ranks that come late.
 *
 *   test_ce_team_step [--quick] [--gpus N] */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "graph.h"
#include "team_step.h"

enum { RANKS_MAX = 16 };

static const struct cuda_driver *driver;
static int passed, failed;

static void check(int good, const char *what, const char *why) {
  passed += good;
  failed += !good;
  if (!good) printf("FAILED %s: %s\n", what, why);
  fflush(stdout);
}

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
}

static void *need(size_t bytes) {
  void *p = calloc(bytes ? bytes : 1, 1);
  if (!p) exit(4);
  return p;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Ranks go round these GPUs. All arrays are on GPU 0, which the others reach. */
static int32_t gpus[RANKS_MAX];

static int32_t gpu_of(const weft_comm *comm) {
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  gpu_require_status(weft_comm_info_get(comm, &info), "comm_info_get");
  return info.gpu;
}

struct scene {
  const struct team_step_case *c;
  const struct team_step_data *d;
  int64_t ranks;
  weft_comm **comms;
  weft_ce_plan *plan[RANKS_MAX];
  void *stream[RANKS_MAX];
  weft_ce_args args[RANKS_MAX];
  cuda_address x, w, target, g[3], dw; /* dw: [V + padding, H], each rank writes its rows */
  cuda_address stats[RANKS_MAX], nll[RANKS_MAX], lse[RANKS_MAX], entropy[RANKS_MAX], dx[RANKS_MAX];
  int32_t dx_dtype, dw_dtype;
  int64_t dx_rows;
  size_t dx_bytes, dw_bytes;
};

/* What all ranks have after a run. */
struct results {
  unsigned char *dx[RANKS_MAX], *dw;
  float *nll[RANKS_MAX];
};

static int64_t bytes_of(int32_t dtype) {
  return dtype == WEFT_F32 ? 4 : 2;
}

/* The smallest budget that each rank's plan takes: a plan's layout is its rank's own. */
static void least_budget(struct scene *s, int64_t sms, weft_ce_config *config) {
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  machine.arch = "sm90";
  machine.units = sms;
  machine.ranks = s->ranks;
  gpu_require_status(weft_ce_plan_query(config, &machine, &info), "ce_plan_query");
  config->workspace_budget = info.least_bytes;
}

static void make_plans(struct scene *s) {
  gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < s->ranks; r++) {
    weft_ce_config config = team_step_config(s->c, s->ranks, r);
    if (s->c->least) least_budget(s, 132 / s->ranks / 2 * 2, &config);
    gpu_require_status(weft_ce_plan_create(s->comms[r], &config, &s->plan[r]), "ce_plan_create");
  }
  gpu_require_status(weft_group_end(), s->c->name);
}

static void open_scene(const struct team_step_case *c, const struct team_step_data *d,
                       weft_comm **comms, int64_t ranks, struct scene *s) {
  const size_t m = (size_t)c->tokens, h = (size_t)c->hidden, rows = (size_t)(c->vocab + c->padding);
  memset(s, 0, sizeof *s);
  s->c = c, s->d = d, s->ranks = ranks, s->comms = comms;
  make_plans(s);
  s->dx_dtype = c->dx_dtype ? c->dx_dtype : c->dtype;
  s->dw_dtype = c->dw_dtype ? c->dw_dtype : c->dtype;
  s->dx_rows = c->dx_mode == WEFT_DX_REDUCE_SCATTER ? (c->tokens + ranks - 1) / ranks : c->tokens;
  s->dx_bytes = (size_t)(s->dx_rows * c->hidden * bytes_of(s->dx_dtype));
  s->dw_bytes = rows * h * (size_t)bytes_of(s->dw_dtype);
  s->x = gpu_upload(d->x, m * h * 2 + 16);
  s->w = gpu_upload(d->w, rows * h * 2);
  s->target = gpu_upload(d->target, m * 8 + 8);
  for (int k = 0; k < 3; k++)
    s->g[k] = gpu_upload(d->g[k], m * 4 + 4);
  s->dw = gpu_allocate(s->dw_bytes);
  for (int64_t r = 0; r < ranks; r++) {
    const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
    weft_ce_args *a = &s->args[r];
    int64_t start = 0, local = 0;
    team_step_range(c, ranks, r, &start, &local);
    gpu_require_status(weft_comm_stream_get(comms[r], &s->stream[r]), "comm_stream_get");
    s->stats[r] = gpu_allocate(m * 16 + 16);
    s->nll[r] = gpu_allocate(m * 4 + 4);
    s->lse[r] = gpu_allocate(m * 4 + 4);
    s->entropy[r] = gpu_allocate(m * 4 + 4);
    s->dx[r] = gpu_allocate(s->dx_bytes + 16);
    *a = defaults;
    a->tokens = c->tokens;
    a->x = pointer(s->x);
    a->w = pointer(s->w + (cuda_address)(start * c->hidden * 2));
    a->target = pointer(s->target);
    a->temperature = c->temperature;
    a->g_nll = (const float *)pointer(s->g[0]);
    a->g_entropy = c->entropy ? (const float *)pointer(s->g[1]) : NULL;
    a->g_lse = (const float *)pointer(s->g[2]);
    a->nll = (float *)pointer(s->nll[r]);
    a->lse = (float *)pointer(s->lse[r]);
    a->entropy = c->entropy ? (float *)pointer(s->entropy[r]) : NULL;
    a->stats = (float *)pointer(s->stats[r]);
    a->dx = pointer(s->dx[r]);
    a->dw = pointer(s->dw + (cuda_address)(start * c->hidden * bytes_of(s->dw_dtype)));
    a->dw_accumulate = c->accumulate;
  }
}

static void close_scene(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require_status(weft_ce_plan_destroy(s->plan[r]), "ce_plan_destroy");
    const cuda_address own[] = {s->stats[r], s->nll[r], s->lse[r], s->entropy[r], s->dx[r]};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
      gpu_free(own[i]);
  }
  const cuda_address all[] = {s->x, s->w, s->target, s->g[0], s->g[1], s->g[2], s->dw};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
}

static void poison(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require(driver->cuMemsetD8Async(s->dx[r], 0xff, s->dx_bytes + 16, NULL), "memset");
    gpu_require(driver->cuMemsetD8Async(s->nll[r], 0xff, (size_t)s->c->tokens * 4 + 4, NULL),
                "memset");
  }
  gpu_require(driver->cuMemsetD8Async(s->dw, 0xff, s->dw_bytes, NULL), "memset");
  gpu_require(driver->cuCtxSynchronize(), "memset");
  if (s->c->accumulate) gpu_require(driver->cuMemcpyHtoD(s->dw, s->d->dw0, s->dw_bytes), "copy");
}

static void take(struct scene *s, struct results *got) {
  for (int64_t r = 0; r < s->ranks; r++)
    gpu_require_status(weft_memory_synchronize(gpu_of(s->comms[r]), s->stream[r]), s->c->name);
  got->dw = need(s->dw_bytes);
  gpu_download(got->dw, s->dw, s->dw_bytes);
  for (int64_t r = 0; r < s->ranks; r++) {
    got->dx[r] = need(s->dx_bytes);
    got->nll[r] = need((size_t)s->c->tokens * 4);
    if (s->dx_bytes) gpu_download(got->dx[r], s->dx[r], s->dx_bytes);
    if (s->c->tokens) gpu_download(got->nll[r], s->nll[r], (size_t)s->c->tokens * 4);
  }
}

static void drop(struct scene *s, struct results *got) {
  free(got->dw);
  for (int64_t r = 0; r < s->ranks; r++)
    free(got->dx[r]), free(got->nll[r]);
}

static int same_bits(const struct scene *s, const struct results *a, const struct results *b) {
  int same = !memcmp(a->dw, b->dw, s->dw_bytes);
  for (int64_t r = 0; r < s->ranks; r++)
    same &= !memcmp(a->dx[r], b->dx[r], s->dx_bytes) &&
            !memcmp(a->nll[r], b->nll[r], (size_t)s->c->tokens * 4);
  return same;
}

/* dX[row, column] as the mode says where it is. */
static double dx_of(const struct scene *s, const struct results *got, int64_t rank, int64_t row,
                    int64_t column) {
  const int64_t h = s->c->hidden;
  if (s->c->dx_mode == WEFT_DX_REDUCE_SCATTER) {
    const int64_t owner = row / s->dx_rows;
    return team_step_value(got->dx[owner], (row - owner * s->dx_rows) * h + column, s->dx_dtype);
  }
  if (s->c->dx_mode == WEFT_DX_ALL_REDUCE)
    return team_step_value(got->dx[rank], row * h + column, s->dx_dtype);
  double sum = 0;
  for (int64_t r = 0; r < s->ranks; r++)
    sum += team_step_value(got->dx[r], row * h + column, s->dx_dtype);
  return sum;
}

static void compare(struct scene *s, const struct results *got, const char *what) {
  const struct team_step_case *c = s->c;
  const oracle *o = &s->d->right;
  const int64_t h = c->hidden;
  double dx_error = 0, dx_norm = 0, dw_error = 0, dw_norm = 0;
  int64_t wrong = 0, padding = 0, ranks_differ = 0;
  for (int64_t i = 0; i < c->tokens; i++) {
    wrong += !(fabs((double)got->nll[0][i] - o->nll[i]) <= 2e-5 * (1 + o->largest[i]));
    for (int64_t k = 0; k < h; k++) {
      const double v = dx_of(s, got, 0, i, k), e = o->dx[i * h + k];
      dx_error += (v - e) * (v - e), dx_norm += e * e;
      if (s->d->target[i] < 0) wrong += v != 0;
    }
  }
  for (int64_t i = 0; i < (c->vocab + c->padding) * h; i++) {
    const double before = c->accumulate ? (double)s->d->dw0[i] : 0;
    const double v = team_step_value(got->dw, i, s->dw_dtype);
    if (i >= c->vocab * h) {
      padding += v != before;
      continue;
    }
    const double e = o->dw[i] + before;
    dw_error += (v - e) * (v - e), dw_norm += e * e;
  }
  for (int64_t r = 1; r < s->ranks; r++) {
    ranks_differ += memcmp(got->nll[0], got->nll[r], (size_t)c->tokens * 4) != 0;
    if (c->dx_mode == WEFT_DX_ALL_REDUCE)
      ranks_differ += memcmp(got->dx[0], got->dx[r], s->dx_bytes) != 0;
  }
  dx_error = dx_error == 0 ? 0 : sqrt(dx_error / dx_norm);
  dw_error = dw_error == 0 ? 0 : sqrt(dw_error / dw_norm);
  char name[200], why[256];
  snprintf(name, sizeof name, "TP%lld, %s, %s", (long long)s->ranks, c->name, what);
  snprintf(why, sizeof why,
           "dX %.4f%%, dW %.4f%%, %lld rows or zeros wrong, %lld of padding, %lld ranks differ",
           100 * dx_error, 100 * dw_error, (long long)wrong, (long long)padding,
           (long long)ranks_differ);
  check(dx_error <= 0.0025 && dw_error <= 0.0025 && wrong == 0 && padding == 0 && ranks_differ == 0,
        name, why);
}

static void called(struct scene *s, weft_status status) {
  if (status != WEFT_OK) check(0, s->c->name, weft_last_error());
}

static void run_both(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++) {
    called(s, weft_ce_forward(s->plan[r], &s->args[r], NULL));
    called(s, weft_ce_backward(s->plan[r], &s->args[r], NULL));
  }
}

static void run_step(struct scene *s, int64_t first) {
  for (int64_t r = 0; r < s->ranks; r++) {
    const int64_t rank = (r + first) % s->ranks;
    called(s, weft_ce_step(s->plan[rank], &s->args[rank], NULL));
  }
}

static void test_graph(struct scene *s, const struct results *right) {
  struct gpu_graph graphs[RANKS_MAX];
  cuda_stream stream[RANKS_MAX];
  struct results got;
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require(driver->cuStreamCreate(&stream[r], GPU_NON_BLOCKING), "cuStreamCreate");
    gpu_graph_begin(stream[r]);
    gpu_require_status(weft_ce_step(s->plan[r], &s->args[r], stream[r]), "captured");
    graphs[r] = gpu_graph_end(stream[r]);
  }
  for (int i = 0; i < 3; i++) {
    poison(s);
    for (int64_t r = 0; r < s->ranks; r++)
      gpu_graph_launch(graphs[r], stream[r]);
    for (int64_t r = 0; r < s->ranks; r++)
      gpu_require(driver->cuStreamSynchronize(stream[r]), "graph");
    take(s, &got);
    check(same_bits(s, right, &got), s->c->name, "a replayed step has other bits");
    drop(s, &got);
  }
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_graph_free(graphs[r]);
    gpu_require(driver->cuStreamDestroy(stream[r]), "cuStreamDestroy");
  }
}

/* Steps one behind the other, the first rank another each time, with gaps of up to 5 ms. */
static void test_staggered(struct scene *s, const struct results *right, int rounds) {
  struct results got;
  int same = 1;
  for (int i = 0; i < rounds; i++) {
    run_step(s, i);
    if (i % 16 == 0) usleep((unsigned)(i * 911 % 5000));
    if (i % 50 != 49) continue;
    take(s, &got);
    same &= same_bits(s, right, &got);
    drop(s, &got);
  }
  check(same, s->c->name, "a step among many has other bits");
}

static void test_case(const struct team_step_case *c, const struct team_step_data *d,
                      weft_comm **comms, int64_t ranks, int rounds) {
  struct scene s;
  struct results both, step, again;
  const int before = failed;
  open_scene(c, d, comms, ranks, &s);
  poison(&s);
  run_both(&s);
  take(&s, &both);
  compare(&s, &both, "forward and backward");
  poison(&s);
  run_step(&s, 0);
  take(&s, &step);
  compare(&s, &step, "step");
  poison(&s);
  run_step(&s, 1);
  take(&s, &again);
  check(same_bits(&s, &step, &again), c->name, "a second step has other bits");
  drop(&s, &again);
  if (c == &team_step_cases[0] && failed == before) {
    if (gpus[1] == 0) test_graph(&s, &step); /* its streams are of GPU 0 */
    test_staggered(&s, &step, rounds);
  }
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  gpu_require_status(weft_comm_async_error(comms[0], &found), "comm_async_error");
  check(found.status == (int32_t)WEFT_OK, c->name, found.message);
  if (found.status != (int32_t)WEFT_OK) {
    gpu_require_status(weft_group_start(), "group_start");
    for (int64_t r = 0; r < ranks; r++)
      gpu_require_status(weft_comm_reset(comms[r]), "comm_reset");
    gpu_require_status(weft_group_end(), "comm_reset");
  }
  drop(&s, &both);
  drop(&s, &step);
  close_scene(&s);
}

int main(int argc, char **argv) {
  int quick = 0;
  int32_t gpu_count = 1;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--quick")) quick = 1;
    if (!strcmp(argv[i], "--gpus") && i + 1 < argc) gpu_count = (int32_t)atoi(argv[++i]);
  }
  for (int32_t r = 0; r < RANKS_MAX; r++)
    gpus[r] = r % (gpu_count > 0 ? gpu_count : 1);
  struct cuda_device_info info;
  static const int64_t sizes[] = {2, 4, 8, 16};
  struct team_step_data data[16];
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* one hardware queue a rank */
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  for (size_t i = 0; i < team_step_case_count; i++)
    team_step_make(&team_step_cases[i], 1, &data[i]);
  for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
    weft_comm *comms[RANKS_MAX];
    weft_world_config world = WEFT_WORLD_CONFIG_INIT;
    const double began = seconds();
    world.ranks = sizes[n];
    world.device = WEFT_DEVICE_CUDA;
    world.gpus = gpus;
    world.arena_bytes = 64 << 20;
    world.timeout_ms = 3000;
    gpu_require_status(weft_comm_create_inproc(&world, comms), "comm_create_inproc");
    const int before = failed;
    for (size_t i = 0; i < team_step_case_count && failed < before + 4; i++)
      test_case(&team_step_cases[i], &data[i], comms, sizes[n], quick ? 100 : 2000);
    for (int64_t r = 0; r < sizes[n]; r++)
      gpu_require_status(weft_comm_destroy(comms[r]), "comm_destroy");
    printf("TP%lld: %d passed, %d failed so far; %.1f s\n", (long long)sizes[n], passed, failed,
           seconds() - began);
    fflush(stdout);
  }
  for (size_t i = 0; i < team_step_case_count; i++)
    team_step_free(&data[i]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
