/* Times forward, backward and step by the public API against cuBLAS's products of the same shapes,
 * in one process: blocks of back-to-back runs, cuBLAS and own in turn, medians of the rounds'
 * ratios. Data as in ce_backward_bench. Own times carry what a call costs on the host. A step is
 * timed twice: within the default budget, over four products, and within M * V * 2 + M * H * 4
 * bytes and 192 MiB, where it keeps exponentials, over three.
 *
 *   ce_step_bench [--json FILE] [--quick] [--large]    two shapes; the large step alone */
#include <math.h>
#include <string.h>

#include "bench_kernels.h"
#include "cublas.h"
#include "gpu.h"

enum { ROUNDS = 5 };
static const double block_ms = 100;

extern struct device_images bench_device_images;
static const struct cuda_driver *driver;
static cuda_event begin, end;

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
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
  cuda_address x, w, z, dx, dw;
};

/* `logits` products of the logits, and dX and dW if `gradients`. */
static void run_cublas(const struct shape *s, int logits, int gradients) {
  const struct cublas_problem all[] = {{s->m, s->v, s->h, s->x, s->w, s->z, 0, 1},
                                       {s->m, s->h, s->v, s->z, s->w, s->dx, 0, 0},
                                       {s->v, s->h, s->m, s->z, s->x, s->dw, 1, 0}};
  int status = 0;
  for (int i = 0; i < logits; i++)
    status |= cublas_run(&all[0]);
  if (gradients) status |= cublas_run(&all[1]) | cublas_run(&all[2]);
  if (status) {
    fprintf(stderr, "cublasGemmEx: status %d\n", status);
    exit(4);
  }
}

enum phase { FORWARD, BACKWARD, STEP, STEP_LARGE };
static const char *const phase_names[] = {"forward", "backward", "step", "step large"};

static void run_own(weft_ce_plan *plan, const weft_ce_args *args, enum phase phase) {
  gpu_require_status(phase == FORWARD    ? weft_ce_forward(plan, args, NULL)
                     : phase == BACKWARD ? weft_ce_backward(plan, args, NULL)
                                         : weft_ce_step(plan, args, NULL),
                     phase_names[phase]);
}

static void start(void) {
  gpu_require(driver->cuEventRecord(begin, NULL), "cuEventRecord");
}

static double stop(int runs) {
  float ms = 0;
  gpu_require(driver->cuEventRecord(end, NULL), "cuEventRecord");
  gpu_require(driver->cuEventSynchronize(end), "cuEventSynchronize");
  gpu_require(driver->cuEventElapsedTime(&ms, begin, end), "cuEventElapsedTime");
  return ms / runs;
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double time_cublas(const struct shape *s, enum phase phase, int runs) {
  start();
  for (int i = 0; i < runs; i++)
    run_cublas(s, phase == STEP ? 2 : 1, phase != FORWARD);
  return stop(runs);
}

static double time_own(weft_ce_plan *plan, const weft_ce_args *args, enum phase phase, int runs) {
  start();
  for (int i = 0; i < runs; i++)
    run_own(plan, args, phase);
  return stop(runs);
}

static void bench_phase(const struct shape *s, weft_ce_plan *plan, const weft_ce_args *args,
                        enum phase phase, int64_t bytes, FILE *json, int *results) {
  const int runs = (int)(block_ms / time_own(plan, args, phase, 1)) + 1;
  double own[ROUNDS], ratios[ROUNDS], before;
  time_own(plan, args, phase, runs);
  before = time_cublas(s, phase, runs);
  for (int i = 0; i < ROUNDS; i++) {
    own[i] = time_own(plan, args, phase, runs);
    const double after = time_cublas(s, phase, runs);
    ratios[i] = 2 * own[i] / (before + after);
    before = after;
  }
  qsort(own, ROUNDS, sizeof *own, ascending);
  qsort(ratios, ROUNDS, sizeof *ratios, ascending);
  const int products = phase == FORWARD ? 1 : phase == STEP ? 4 : 3;
  printf("%lldx%lldx%lld %-10s %8.3f ms, over %d products of cuBLAS %.4f (%.4f-%.4f), %.1f MiB\n",
         (long long)s->m, (long long)s->h, (long long)s->v, phase_names[phase], own[ROUNDS / 2],
         products, ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1], (double)bytes / 1048576);
  fflush(stdout);
  if (json)
    fprintf(json,
            "%s\n{\"tokens\":%lld,\"hidden\":%lld,\"vocab\":%lld,\"phase\":\"%s\",\"products\":%d,"
            "\"ms_p50\":%.4f,\"ratio_p50\":%.5f,\"ratio_min\":%.5f,\"ratio_max\":%.5f}",
            (*results)++ ? "," : "", (long long)s->m, (long long)s->h, (long long)s->v,
            phase_names[phase], products, own[ROUNDS / 2], ratios[ROUNDS / 2], ratios[0],
            ratios[ROUNDS - 1]);
}

static weft_ce_plan *make_plan(const struct shape *s, int64_t budget, weft_ce_plan_info *info) {
  const weft_ce_plan_info defaults = WEFT_CE_PLAN_INFO_INIT;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_plan *plan;
  config.max_tokens = s->m;
  config.hidden = s->h;
  config.vocab = config.vocab_local = s->v;
  config.dtype = WEFT_BF16;
  config.device = WEFT_DEVICE_CUDA;
  config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  config.workspace_budget = budget;
  *info = defaults;
  gpu_require_status(weft_ce_plan_create(NULL, &config, &plan), "plan");
  gpu_require_status(weft_ce_plan_info_get(plan, info), "plan");
  return plan;
}

static void bench_shape(int64_t m, int64_t h, int64_t v, int large_alone, FILE *json,
                        int *results) {
  struct shape s = {.m = m, .h = h, .v = v};
  int64_t *target = malloc((size_t)m * 8);
  float *g = malloc((size_t)m * 4);
  if (!target || !g) exit(4);
  for (int64_t i = 0; i < m; i++) {
    target[i] = (int64_t)((uint64_t)i * 2654435761u % (uint64_t)v);
    g[i] = 0.25f + (float)(i * 7919 % 1000) / 1000.0f;
  }
  s.x = normal_matrix(m * h, 1, 1.0);
  s.w = normal_matrix(v * h, 2, 1.0 / sqrt((double)h));
  s.z = gpu_allocate((size_t)(m * v) * 2);
  s.dx = gpu_allocate((size_t)(m * h) * 2);
  s.dw = gpu_allocate((size_t)(v * h) * 2);
  const cuda_address targets = gpu_upload(target, (size_t)m * 8), gs = gpu_upload(g, (size_t)m * 4);
  const cuda_address nll = gpu_allocate((size_t)m * 4), lse = gpu_allocate((size_t)m * 4);
  const cuda_address stats = gpu_allocate((size_t)m * 16);
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = m;
  args.x = pointer(s.x);
  args.w = pointer(s.w);
  args.target = pointer(targets);
  args.g_nll = (const float *)pointer(gs);
  args.stats = (float *)pointer(stats);
  args.nll = (float *)pointer(nll);
  args.lse = (float *)pointer(lse);
  args.dx = pointer(s.dx);
  args.dw = pointer(s.dw);
  weft_ce_plan_info info;
  weft_ce_plan *plan = make_plan(&s, m * v * 2 + m * h * 4 + (INT64_C(192) << 20), &info);
  if (info.step_gemms != 3) {
    fprintf(stderr, "the large budget gives a step of %lld products\n", (long long)info.step_gemms);
    exit(1);
  }
  bench_phase(&s, plan, &args, STEP_LARGE, info.local_bytes, json, results);
  gpu_require_status(weft_ce_plan_destroy(plan), "plan");
  if (!large_alone) {
    plan = make_plan(&s, 0, &info);
    for (int phase = FORWARD; phase <= STEP; phase++)
      bench_phase(&s, plan, &args, (enum phase)phase, info.local_bytes, json, results);
    gpu_require_status(weft_ce_plan_destroy(plan), "plan");
  }
  const cuda_address all[] = {s.x, s.w, s.z, s.dx, s.dw, targets, gs, nll, lse, stats};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  free(target);
  free(g);
}

int main(int argc, char **argv) {
  struct cuda_device_info info;
  FILE *json = NULL;
  int results = 0, quick = 0, large_alone = 0;
  char why[256];
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  if (cublas_open(why, sizeof why)) {
    printf("skipped: no cuBLAS: %s\n", why);
    return GPU_SKIPPED;
  }
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--quick"))
      quick = 1;
    else if (!strcmp(argv[i], "--large"))
      large_alone = 1;
    else if (!strcmp(argv[i], "--json") && i + 1 < argc)
      json = fopen(argv[++i], "w");
  }
  gpu_require(driver->cuEventCreate(&begin, 0), "cuEventCreate");
  gpu_require(driver->cuEventCreate(&end, 0), "cuEventCreate");
  if (json)
    fprintf(json, "{\"op\":\"ce\",\"device\":\"%s\",\"driver\":%d,\"cublas\":%d,\"results\":[",
            info.name, driver->version, cublas_version());
  static const int64_t shapes[][3] = {
      {4096, 4096, 131072}, {8192, 2048, 151936}, {8192, 7168, 129280}, {16384, 4096, 131072}};
  for (size_t i = 0; i < (quick ? 2 : sizeof shapes / sizeof *shapes); i++)
    bench_shape(shapes[i][0], shapes[i][1], shapes[i][2], large_alone, json, &results);
  if (json) {
    fprintf(json, "]}\n");
    fclose(json);
  }
  return 0;
}
