/* Times the backward kernel against cuBLAS's three products of the same shapes, logits = X * W^T,
 * dX = dZ * W and dW = dZ^T * X, in one process. X ~ N(0,1), W ~ N(0,1)/sqrt(H), targets uniform,
 * upstream gradients uniform in [0.25, 1.25).
 *
 * Method: blocks of back-to-back runs, cuBLAS and own in turn (A B A B ... A), timed by events; a
 * round's ratio is own time over the mean of the two cuBLAS blocks around it; medians. The phases
 * inside the one kernel are timed by stamps of each tile, of one run. Results are compared with
 * cuBLAS's from a dZ made of f32 logits, and sampled rows of dX and dW with f64 on the CPU. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "bench_kernels.h"
#include "ce_data_kernels.h"
#include "cublas.h"
#include "cuda/backward.h"
#include "cuda/gemm.h"
#include "gpu.h"

enum { ROUNDS_MAX = 15, TRACE_TILES = 4096, SAMPLES = 8 };

struct bench {
  const struct cuda_driver *driver;
  struct cuda_device_info info;
  int64_t m, h, v;
  int rounds;
  double block_ms;
  cuda_address x, w, logits, dz, target, stats, g, dx, dw, dx_ref, dw_ref, bits, words, trace, loss;
  cuda_event start, stop;
  FILE *json;
  int results;
};

struct variant {
  const char *name;
  int64_t dz_mib; /* budget of dZ, 0: all of V */
  uint32_t group;
  int apart, dw_f32;
  const char *kernel; /* NULL: the library's */
  int keeps;          /* a step: the loss too, exponentials kept */
};

static void launch_kernel(const char *image, const char *name, unsigned ctas, unsigned threads,
                          unsigned shared, void *args) {
  struct cuda_kernel kernel;
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, image, name, 0, shared, &kernel),
                     name);
  const struct cuda_launch launch = {
      .ctas = ctas, .threads = threads, .cluster = 1, .shared_bytes = shared};
  gpu_require_status(weft__cuda_launch(&kernel, &launch, args), name);
}

static cuda_address normal_matrix(int64_t count, uint32_t seed, double scale) {
  const cuda_address to = gpu_allocate((size_t)count * 2);
  struct fill_args args = {
      .to = {to}, .count = (uint64_t)count, .seed = seed, .scale = (float)scale};
  launch_kernel("smxx_bench_data", "bench_fill", 1024, BENCH_THREADS, 0, &args);
  return to;
}

static uint32_t hash(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}

/* Targets, upstream gradients, f32 logits, statistics, dZ. */
static void make_data(struct bench *b) {
  int64_t *target = malloc((size_t)b->m * 8);
  float *g = malloc((size_t)b->m * 4);
  if (!target || !g) exit(4);
  for (int64_t i = 0; i < b->m; i++) {
    target[i] = (int64_t)(hash((uint32_t)i ^ 0x1234567u) % (uint64_t)b->v);
    g[i] = 0.25f + (float)(hash((uint32_t)i + 0x89abcdefu) >> 8) / 16777216.0f;
  }
  b->x = normal_matrix(b->m * b->h, 1, 1.0);
  b->w = normal_matrix(b->v * b->h, 2, 1.0 / sqrt((double)b->h));
  b->target = gpu_upload(target, (size_t)b->m * 8);
  b->g = gpu_upload(g, (size_t)b->m * 4);
  b->loss = gpu_allocate((size_t)b->m * 8);
  b->stats = gpu_allocate((size_t)b->m * 16);
  b->logits = gpu_allocate((size_t)(b->m * b->v) * 4);
  b->dz = gpu_allocate((size_t)(b->m * b->v) * 2);
  b->dx = gpu_allocate((size_t)(b->m * b->h) * 2);
  b->dw = gpu_allocate((size_t)(b->v * b->h) * 4);
  b->dx_ref = gpu_allocate((size_t)(b->m * b->h) * 2);
  b->dw_ref = gpu_allocate((size_t)(b->v * b->h) * 2);
  free(target);
  free(g);
  const struct gemm_shape shape = {SM90_GEMM_LOGITS};
  struct gemm_kernel kernel;
  struct gemm_launch launch;
  gpu_require_status(weft__gemm_load(&test_device_images, "sm90_gemm_logits", &shape, 0, &kernel),
                     "gemm");
  const struct gemm_problem problem = {.rows = b->m,
                                       .cols = b->v,
                                       .depth = b->h,
                                       .a = {b->x, b->h},
                                       .b = {b->w, b->h},
                                       .c = {b->logits, b->v},
                                       .f32_out = 1,
                                       .group_rows = 2048};
  gpu_require_status(weft__gemm_prepare(&kernel, &problem, &launch), "gemm");
  gpu_require_status(weft__gemm_run(&kernel, &launch, NULL), "gemm");
  struct ce_stats_args stats = {{b->logits}, {b->target}, {b->stats}, (uint32_t)b->v};
  launch_kernel("smxx_ce_data", "ce_data_stats", (unsigned)b->m, CE_DATA_THREADS,
                CE_DATA_SHARED_BYTES, &stats);
  struct ce_gradient_args gradient = {{b->logits}, {b->target}, {b->stats},
                                      {b->g},      {b->dz},     (uint32_t)b->v};
  launch_kernel("smxx_ce_data", "ce_data_gradient", (unsigned)b->m, CE_DATA_THREADS,
                CE_DATA_SHARED_BYTES, &gradient);
  gpu_require(b->driver->cuCtxSynchronize(), "data");
}

static void free_data(struct bench *b) {
  const cuda_address all[] = {b->x, b->w,  b->logits, b->dz,     b->target, b->stats,
                              b->g, b->dx, b->dw,     b->dx_ref, b->dw_ref, b->loss};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
}

/* ---- Timing ---- */

static void start(struct bench *b) {
  gpu_require(b->driver->cuEventRecord(b->start, NULL), "cuEventRecord");
}

static double stop(struct bench *b, int runs) {
  float ms = 0;
  gpu_require(b->driver->cuEventRecord(b->stop, NULL), "cuEventRecord");
  gpu_require(b->driver->cuEventSynchronize(b->stop), "cuEventSynchronize");
  gpu_require(b->driver->cuEventElapsedTime(&ms, b->start, b->stop), "cuEventElapsedTime");
  return ms / runs;
}

static void cublas_product(struct bench *b, int product) {
  const struct cublas_problem problems[] = {
      {b->m, b->v, b->h, b->x, b->w, b->logits, 0, 1}, /* over the f32 logits: no longer needed */
      {b->m, b->h, b->v, b->dz, b->w, b->dx_ref, 0, 0},
      {b->v, b->h, b->m, b->dz, b->x, b->dw_ref, 1, 0}};
  const int status = cublas_run(&problems[product]);
  if (status) {
    fprintf(stderr, "cublasGemmEx: status %d\n", status);
    exit(4);
  }
}

static double time_cublas(struct bench *b, int runs) {
  start(b);
  for (int i = 0; i < runs; i++)
    for (int product = 0; product < 3; product++)
      cublas_product(b, product);
  return stop(b, runs);
}

static double time_own(struct bench *b, const struct ce_backward_kernel *kernel,
                       struct ce_backward_launch *launch, int apart, int runs) {
  start(b);
  for (int i = 0; i < runs; i++)
    gpu_require_status(apart ? weft__ce_backward_run_apart(kernel, launch, NULL)
                             : weft__ce_backward_run(kernel, launch, NULL),
                       "backward");
  return stop(b, runs);
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double distance(struct bench *b, cuda_address left, cuda_address right, int64_t count) {
  float sums[2] = {0, 0};
  gpu_require(b->driver->cuMemcpyHtoD(b->words + 8, sums, sizeof sums), "copy");
  struct ce_distance_args args = {{left}, {right}, {b->words + 8}, (uint64_t)count};
  launch_kernel("smxx_ce_data", "ce_data_distance", 1024, CE_DATA_THREADS, CE_DATA_SHARED_BYTES,
                &args);
  gpu_download(sums, b->words + 8, sizeof sums);
  return sqrt((double)sums[0] / (double)sums[1]);
}

/* ---- The phases inside one run ---- */

static void print_phases(struct bench *b, struct ce_backward_launch *launch,
                         const struct ce_backward_kernel *kernel, const double cublas_ms[3]) {
  static const char *const names[] = {"prepare", "dZ", "dX", "dW", "convert"};
  const uint32_t clusters = launch->launch.ctas / 2;
  const size_t bytes = (size_t)clusters * TRACE_TILES * sizeof(struct backward_stamp);
  struct backward_stamp *stamps = malloc(bytes);
  if (!stamps) exit(4);
  launch->args.trace.a = b->trace;
  launch->args.trace_tiles = TRACE_TILES;
  time_own(b, kernel, launch, 0, 3);
  gpu_require(b->driver->cuMemsetD8Async(b->trace, 0xff, bytes, NULL), "memset");
  time_own(b, kernel, launch, 0, 1);
  launch->args.trace.a = 0;
  gpu_download(stamps, b->trace, bytes);
  double total[5] = {0}, tail[5] = {0}, store[5] = {0};
  double dx_last = 0, flops[5] = {0};
  uint32_t count[5] = {0}, begin = stamps[0].first, end = 0, earliest_end = UINT32_MAX;
  for (uint32_t c = 0; c < clusters; c++) /* the timer's low word may wrap */
    if (stamps[c * TRACE_TILES].index != UINT32_MAX &&
        (int32_t)(stamps[c * TRACE_TILES].first - begin) < 0)
      begin = stamps[c * TRACE_TILES].first;
  for (uint32_t c = 0; c < clusters; c++) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < TRACE_TILES; i++) {
      const struct backward_stamp s = stamps[c * TRACE_TILES + i];
      if (s.index == UINT32_MAX) break;
      const struct backward_tile t = backward_tile(&launch->args.schedule, s.index);
      const uint32_t now = s.last - begin;
      const double us = (double)(now - before) * 1e-3;
      total[t.kind] += us;
      tail[t.kind] += (double)(s.last - s.first) * 1e-3;
      store[t.kind] += (double)(s.stored - s.last) * 1e-3;
      count[t.kind]++;
      if (t.kind == BACKWARD_DX && t.wave + 1 == backward_waves(&launch->args.schedule))
        dx_last += us;
      before = now;
    }
    if (before > end) end = before;
    if (before < earliest_end) earliest_end = before;
  }
  flops[1] = flops[2] = flops[3] = 2.0 * (double)b->m * (double)b->h * (double)b->v;
  for (int k = 0; k < 5; k++) {
    if (!count[k]) continue;
    const double ms = total[k] / clusters * 1e-3;
    printf("    %-8s %5u tiles of %7.1f us: %8.3f ms in all", names[k], count[k],
           total[k] / count[k], ms);
    if (k >= 1 && k <= 3)
      printf(", cuBLAS %8.3f, ratio %.4f, %4.0f TFLOP/s; results out in %.1f us, stored %.1f later",
             cublas_ms[k - 1], ms / cublas_ms[k - 1], flops[k] / ms * 1e-9, tail[k] / count[k],
             store[k] / count[k]);
    printf("\n");
  }
  printf("    clusters end between %.3f and %.3f ms; the last wave's dX %.3f ms\n",
         earliest_end * 1e-6, end * 1e-6, dx_last / clusters * 1e-3);
  free(stamps);
}

static void bench_variant(struct bench *b, const struct variant *variant,
                          const double cublas_ms[3]) {
  struct ce_backward_kernel kernel;
  struct ce_backward_launch launch;
  struct ce_backward_layout layout;
  gpu_require_status(weft__ce_backward_load(&test_device_images,
                                            variant->kernel  ? variant->kernel
                                            : variant->keeps ? weft__ce_step_name(0)
                                                             : weft__ce_backward_name(0),
                                            0, &kernel),
                     "load");
  const int64_t budget = variant->dz_mib ? variant->dz_mib << 20 : (b->v + 384) * b->m * 2;
  if (variant->keeps)
    weft__ce_step_layout(b->m, b->h, b->v, &layout);
  else
    gpu_require_status(weft__ce_backward_layout(b->m, b->h, b->v, budget, &layout), "layout");
  const cuda_address workspace = gpu_allocate((size_t)layout.bytes);
  const struct ce_backward_problem p = {
      .tokens = b->m,
      .hidden = b->h,
      .rows = b->v,
      .vocab = b->v,
      .ignore_index = -100,
      .x = b->x,
      .w = b->w,
      .target = b->target,
      .stats = b->stats,
      .g_nll = b->g,
      .dx = b->dx,
      .dw = b->dw,
      .x_stride = b->h,
      .w_stride = b->h,
      .dx_stride = b->h,
      .dw_stride = b->h,
      .temperature = 1,
      .target_i64 = 1,
      .dw_f32 = variant->dw_f32,
      .errors = b->words,
      .timeout_ns = UINT64_C(2000000000),
      .group = variant->group,
      .keeps = variant->keeps,
      .nll = variant->keeps ? b->loss : 0,
      .lse = variant->keeps ? b->loss + (cuda_address)b->m * 4 : 0,
      .dx_in_turn = variant->kernel && !strstr(variant->kernel, "_dw_")};
  gpu_require_status(weft__ce_backward_prepare(&kernel, &p, &layout, workspace, &launch),
                     "prepare");
  gpu_require(b->driver->cuMemsetD8Async(workspace, 0xff, (size_t)layout.bytes, NULL), "memset");
  gpu_require(b->driver->cuMemsetD8Async(b->words, 0, 8, NULL), "memset");
  gpu_require(b->driver->cuMemsetD8Async(b->dx, 0xff, (size_t)(b->m * b->h) * 2, NULL), "memset");
  gpu_require(b->driver->cuMemsetD8Async(b->dw, 0xff, (size_t)(b->v * b->h) * 2, NULL), "memset");
  const double once = time_own(b, &kernel, &launch, variant->apart, 1);
  gpu_require(b->driver->cuCtxSynchronize(), "the kernel");
  uint32_t error = 0;
  gpu_download(&error, b->words, sizeof error);
  const double dx_error = distance(b, b->dx, b->dx_ref, b->m * b->h);
  const double dw_error = variant->dw_f32 ? 0 : distance(b, b->dw, b->dw_ref, b->v * b->h);
  const int runs = (int)(b->block_ms / once) + 1;
  double own[ROUNDS_MAX], theirs[ROUNDS_MAX + 1], ratios[ROUNDS_MAX];
  time_cublas(b, runs);
  time_own(b, &kernel, &launch, variant->apart, runs);
  theirs[0] = time_cublas(b, runs);
  for (int i = 0; i < b->rounds; i++) {
    own[i] = time_own(b, &kernel, &launch, variant->apart, runs);
    theirs[i + 1] = time_cublas(b, runs);
    ratios[i] = 2 * own[i] / (theirs[i] + theirs[i + 1]);
  }
  const double ratio = median(ratios, b->rounds);
  const double ms = median(own, b->rounds), cublas = median(theirs, b->rounds + 1);
  printf("%lldx%lldx%lld %-22s %2u waves %8.3f ms, cuBLAS %8.3f, ratio %.4f (%.4f-%.4f) %4.0f "
         "TFLOP/s; dX, dW from cuBLAS's: %.4f%% %.4f%%; workspace %.1f MiB%s\n",
         (long long)b->m, (long long)b->h, (long long)b->v, variant->name, layout.waves, ms, cublas,
         ratio, ratios[0], ratios[b->rounds - 1],
         6.0 * (double)b->m * (double)b->h * (double)b->v / ms * 1e-9, 100 * dx_error,
         100 * dw_error, (double)layout.bytes / 1048576, error ? "; ERROR WORD SET" : "");
  if (!variant->apart) print_phases(b, &launch, &kernel, cublas_ms);
  fflush(stdout);
  if (b->json)
    fprintf(b->json,
            "%s\n{\"tokens\":%lld,\"hidden\":%lld,\"vocab\":%lld,\"variant\":\"%s\",\"waves\":%u,"
            "\"ms_p50\":%.4f,\"cublas3_ms_p50\":%.4f,\"ratio_p50\":%.5f,\"ratio_min\":%.5f,"
            "\"ratio_max\":%.5f,\"dx_from_cublas\":%.6f,\"dw_from_cublas\":%.6f,"
            "\"workspace_bytes\":%lld}",
            b->results++ ? "," : "", (long long)b->m, (long long)b->h, (long long)b->v,
            variant->name, layout.waves, ms, cublas, ratio, ratios[0], ratios[b->rounds - 1],
            dx_error, dw_error, (long long)layout.bytes);
  gpu_free(workspace);
}

/* ---- Sampled rows against f64 ---- */

struct sample {
  const struct bench *b;
  const uint16_t *x, *w;
  const int64_t *target;
  const float *g, *stats;
  int64_t token, row;
  double *dx, *dw;
};

static double value(uint16_t u) {
  const uint32_t wide = (uint32_t)u << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}

static double dot(const uint16_t *a, const uint16_t *b, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; k++)
    sum += value(a[k]) * value(b[k]);
  return sum;
}

/* A row of dX with its own log-sum, and a row of dW with the tokens' log-sums of f32. */
static void *sample_rows(void *arg) {
  struct sample *s = arg;
  const int64_t h = s->b->h, v = s->b->v, m = s->b->m;
  const uint16_t *x = s->x + s->token * h;
  double *z = malloc((size_t)v * sizeof *z), most = -INFINITY, sum = 0;
  if (!z) exit(4);
  for (int64_t j = 0; j < v; j++) {
    z[j] = dot(x, s->w + j * h, h);
    if (z[j] > most) most = z[j];
  }
  for (int64_t j = 0; j < v; j++)
    sum += exp(z[j] - most);
  for (int64_t j = 0; j < v; j++) {
    const double g = s->g[s->token] * (exp(z[j] - most) / sum - (j == s->target[s->token]));
    for (int64_t k = 0; k < h; k++)
      s->dx[k] += g * value(s->w[j * h + k]);
  }
  for (int64_t i = 0; i < m; i++) {
    const double logit = dot(s->x + i * h, s->w + s->row * h, h);
    const double g =
        s->g[i] * (exp(logit - s->stats[i * 4]) / s->stats[i * 4 + 1] - (s->row == s->target[i]));
    for (int64_t k = 0; k < h; k++)
      s->dw[k] += g * value(s->x[i * h + k]);
  }
  free(z);
  return NULL;
}

static double row_error(const double *expected, const uint16_t *got, int64_t n) {
  double error = 0, norm = 0;
  for (int64_t k = 0; k < n; k++) {
    const double e = value(got[k]) - expected[k];
    error += e * e, norm += expected[k] * expected[k];
  }
  return sqrt(error / norm);
}

static void check_samples(struct bench *b) {
  uint16_t *x = malloc((size_t)(b->m * b->h) * 2), *w = malloc((size_t)(b->v * b->h) * 2);
  uint16_t *got = malloc((size_t)b->h * 2);
  int64_t *target = malloc((size_t)b->m * 8);
  float *g = malloc((size_t)b->m * 4), *stats = malloc((size_t)b->m * 16);
  if (!x || !w || !got || !target || !g || !stats) exit(4);
  gpu_download(x, b->x, (size_t)(b->m * b->h) * 2);
  gpu_download(w, b->w, (size_t)(b->v * b->h) * 2);
  gpu_download(target, b->target, (size_t)b->m * 8);
  gpu_download(g, b->g, (size_t)b->m * 4);
  gpu_download(stats, b->stats, (size_t)b->m * 16);
  pthread_t threads[SAMPLES];
  struct sample samples[SAMPLES];
  for (int i = 0; i < SAMPLES; i++) {
    samples[i] = (struct sample){.b = b,
                                 .x = x,
                                 .w = w,
                                 .target = target,
                                 .g = g,
                                 .stats = stats,
                                 .token = i == 0 ? b->m - 1 : hash((uint32_t)i) % b->m,
                                 .row = i == 0 ? b->v - 1 : hash((uint32_t)i + 99) % b->v,
                                 .dx = calloc((size_t)b->h, sizeof(double)),
                                 .dw = calloc((size_t)b->h, sizeof(double))};
    if (i > 4) samples[i].row = target[samples[i].token];
    if (!samples[i].dx || !samples[i].dw ||
        pthread_create(&threads[i], NULL, sample_rows, &samples[i]))
      exit(4);
  }
  double dx_most = 0, dw_most = 0;
  for (int i = 0; i < SAMPLES; i++) {
    pthread_join(threads[i], NULL);
    gpu_download(got, b->dx + (cuda_address)(samples[i].token * b->h) * 2, (size_t)b->h * 2);
    dx_most = fmax(dx_most, row_error(samples[i].dx, got, b->h));
    gpu_download(got, b->dw + (cuda_address)(samples[i].row * b->h) * 2, (size_t)b->h * 2);
    dw_most = fmax(dw_most, row_error(samples[i].dw, got, b->h));
    free(samples[i].dx), free(samples[i].dw);
  }
  printf("    %d sampled rows against f64: dX off by at most %.4f%%, dW %.4f%%\n", SAMPLES,
         100 * dx_most, 100 * dw_most);
  free(x), free(w), free(got), free(target), free(g), free(stats);
}

static void bench_shape(struct bench *b, const struct variant *variants, size_t count, int sample) {
  make_data(b);
  double cublas_ms[3];
  time_cublas(b, 2);
  const int runs = (int)(b->block_ms / 2 / (time_cublas(b, 1) / 3)) + 1;
  for (int product = 0; product < 3; product++) {
    start(b);
    for (int i = 0; i < runs; i++)
      cublas_product(b, product);
    cublas_ms[product] = stop(b, runs);
  }
  for (size_t i = 0; i < count; i++) {
    bench_variant(b, &variants[i], cublas_ms);
    if (i == 0 && sample) check_samples(b);
  }
  free_data(b);
}

int main(int argc, char **argv) {
  struct bench b = {.rounds = 5, .block_ms = 150};
  const char *json = NULL;
  int quick = 0, steps = 0, only = -1;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--quick"))
      quick = 1, b.block_ms = 100, b.rounds = 5; /* the shipped kernel alone, no sampled rows */
    else if (!strcmp(argv[i], "--steps")) /* steps that keep exponentials, by groups of rows */
      steps = 1, b.block_ms = 100, b.rounds = 5;
    else if (!strcmp(argv[i], "--shape") && i + 1 < argc)
      only = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--json") && i + 1 < argc)
      json = argv[++i];
    else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
      b.rounds = atoi(argv[++i]);
    else
      b.rounds = 0;
  }
  if (b.rounds < 1 || b.rounds > ROUNDS_MAX) {
    fprintf(
        stderr,
        "usage: ce_backward_bench [--quick] [--steps] [--shape I] [--rounds N] [--json FILE]\n");
    return 2;
  }
  b.driver = gpu_open(&b.info);
  if (b.info.arch != CUDA_ARCH_SM90) {
    printf("skipped: this kernel is for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  char why[256];
  if (cublas_open(why, sizeof why)) {
    printf("skipped: no cuBLAS: %s\n", why);
    return GPU_SKIPPED;
  }
  gpu_require(b.driver->cuEventCreate(&b.start, 0), "cuEventCreate");
  gpu_require(b.driver->cuEventCreate(&b.stop, 0), "cuEventCreate");
  b.words = gpu_allocate(16);
  b.trace = gpu_allocate((size_t)b.info.sm_count * TRACE_TILES * sizeof(struct backward_stamp));
  if (json) b.json = fopen(json, "w");
  if (json && !b.json) return 4;
  printf("# %s, cuBLAS %d, bf16, ABAB blocks of %g ms, %d rounds\n", b.info.name, cublas_version(),
         b.block_ms, b.rounds);
  if (b.json)
    fprintf(b.json,
            "{\"op\":\"ce backward\",\"device\":\"%s\",\"driver\":%d,\"cublas\":%d,"
            "\"rounds\":%d,\"block_ms\":%g,\"results\":[",
            b.info.name, b.driver->version, cublas_version(), b.rounds, b.block_ms);
  static const struct variant variants[] = {
      {"default", 223, 0, 0, 0, NULL, 0},
      {"dX in turn", 223, 0, 0, 0, "sm90_backward_dx_turn", 0},
      {"apart", 223, 0, 1, 0, NULL, 0}};
  static const struct variant step_variants[] = {{"step, groups of 4", 0, 4, 0, 0, NULL, 1},
                                                 {"step, groups of 8", 0, 8, 0, 0, NULL, 1},
                                                 {"step, groups of 4, again", 0, 4, 0, 0, NULL, 1},
                                                 {"backward, one wave", 0, 4, 0, 0, NULL, 0}};
  static const struct {
    int64_t m, h, v;
  } shapes[] = {
      {4096, 4096, 131072}, {8192, 2048, 151936}, {8192, 7168, 129280}, {16384, 4096, 131072}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    if (only >= 0 && (size_t)only != i) continue;
    b.m = shapes[i].m, b.h = shapes[i].h, b.v = shapes[i].v;
    if (steps)
      bench_shape(&b, step_variants, sizeof step_variants / sizeof *step_variants, 0);
    else
      bench_shape(&b, variants, quick ? 1 : sizeof variants / sizeof *variants, !quick && i == 0);
  }
  if (b.json) {
    fprintf(b.json, "]}\n");
    fclose(b.json);
  }
  return 0;
}
