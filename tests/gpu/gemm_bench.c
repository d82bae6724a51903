/* Times the GEMM kernels against cuBLAS on the three products of a loss head: logits = X * W^T, dX
 * = dZ * W, dW = dZ^T * X. X ~ N(0,1), W ~ N(0,1)/sqrt(H), dZ the softmax gradient of those logits,
 * since timings depend on data.
 *
 * Method: blocks of back-to-back launches, cuBLAS and own in turn (A B A B ... A), timed by events;
 * a round's ratio is own time over the mean of the two cuBLAS blocks around it; medians over the
 * rounds. Absolute times depend on the card's power state, ratios hardly do. Each result is also
 * compared with cuBLAS's. */
#include <math.h>
#include <string.h>

#include "bench_kernels.h"
#include "cublas.h"
#include "cuda/gemm.h"
#include "gemm_variants.h"
#include "gpu.h"

enum { ROUNDS = 9, RESULTS_MAX = 64 };
enum product { LOGITS, DX, DW, NONE };
static const char *const product_names[] = {"logits", "dx", "dw"};

struct variant {
  const char *name;
  struct gemm_shape shape;
  enum product product;
};
static const struct variant variants[] = {
#define X(name, shape, product) {#name, {shape}, product},
    GEMM_VARIANTS(X)
#undef X
};

struct result {
  enum product product;
  const char *kernel;
  int64_t group_rows;
  double ms, cublas_ms, ratio, ratio_min, ratio_max;
  uint64_t differ;
};

struct bench {
  const struct cuda_driver *driver;
  struct cuda_device_info info;
  int64_t tokens, hidden, vocab;
  double block_ms;
  cuda_address x, w, z, own, theirs, differ; /* z: logits, then dZ in place */
  cuda_event start, stop;
  struct result results[RESULTS_MAX];
  int count;
};

static void launch_data_kernel(const char *name, unsigned ctas, unsigned shared, void *args) {
  struct cuda_kernel kernel;
  gpu_require_status(
      weft__cuda_kernel_load(&test_device_images, "smxx_bench_data", name, 0, shared, &kernel),
      name);
  const struct cuda_launch launch = {
      .ctas = ctas, .threads = BENCH_THREADS, .cluster = 1, .shared_bytes = shared};
  gpu_require_status(weft__cuda_launch(&kernel, &launch, args), name);
}

static cuda_address normal_matrix(int64_t count, uint32_t seed, double scale) {
  const cuda_address to = gpu_allocate((size_t)count * 2);
  struct fill_args args = {
      .to = {to}, .count = (uint64_t)count, .seed = seed, .scale = (float)scale};
  launch_data_kernel("bench_fill", 1024, 0, &args);
  return to;
}

/* The product as cuBLAS and as the kernels take it. */
static struct cublas_problem cublas_problem(const struct bench *b, enum product product) {
  switch (product) {
  case LOGITS:
    return (struct cublas_problem){b->tokens, b->vocab, b->hidden, b->x, b->w, 0, 0, 1};
  case DX:
    return (struct cublas_problem){b->tokens, b->hidden, b->vocab, b->z, b->w, 0, 0, 0};
  default:
    return (struct cublas_problem){b->vocab, b->hidden, b->tokens, b->z, b->x, 0, 1, 0};
  }
}

static struct gemm_problem own_problem(const struct bench *b, enum product product,
                                       const struct gemm_shape *shape) {
  const int64_t m = b->tokens, h = b->hidden, v = b->vocab;
  const struct gemm_matrix x = {b->x, h}, w = {b->w, h}, z = {b->z, v};
  struct gemm_problem p = {.c = {b->own, product == LOGITS ? v : h}};
  if (product == LOGITS)
    p.rows = m, p.cols = v, p.depth = h, p.a = x, p.b = w;
  else if (product == DX)
    p.rows = m, p.cols = h, p.depth = v, p.a = z, p.b = w;
  else if (shape->transposed)
    p.rows = h, p.cols = v, p.depth = m, p.a = x, p.b = z;
  else
    p.rows = v, p.cols = h, p.depth = m, p.a = z, p.b = x;
  return p;
}

static void start(struct bench *b) {
  gpu_require(b->driver->cuEventRecord(b->start, NULL), "cuEventRecord");
}

static double stop(struct bench *b, int launches) {
  float ms = 0;
  gpu_require(b->driver->cuEventRecord(b->stop, NULL), "cuEventRecord");
  gpu_require(b->driver->cuEventSynchronize(b->stop), "cuEventSynchronize");
  gpu_require(b->driver->cuEventElapsedTime(&ms, b->start, b->stop), "cuEventElapsedTime");
  return ms / launches;
}

static double time_cublas(struct bench *b, const struct cublas_problem *problem, int launches) {
  start(b);
  for (int i = 0; i < launches; i++) {
    const int status = cublas_run(problem);
    if (status) {
      fprintf(stderr, "cublasGemmEx: status %d\n", status);
      exit(4);
    }
  }
  return stop(b, launches);
}

static double time_own(struct bench *b, const struct gemm_kernel *kernel,
                       struct gemm_launch *launch, int launches) {
  start(b);
  for (int i = 0; i < launches; i++)
    gpu_require_status(weft__gemm_run(kernel, launch, NULL), "launch");
  return stop(b, launches);
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Elements of the two results that are further apart than two roundings to bf16 and the different
 * order of sums explain; `size` is the standard deviation of the smallest of the result's elements.
 */
static uint64_t differing(struct bench *b, int64_t count, double size) {
  uint64_t differ = 0;
  gpu_require(b->driver->cuMemsetD8Async(b->differ, 0, sizeof differ, NULL), "cuMemsetD8");
  struct compare_args args = {.left = {b->own},
                              .right = {b->theirs},
                              .differ = {b->differ},
                              .count = (uint64_t)count,
                              .relative = 1.0f / 120, /* one step of bf16 is at most 1/128 */
                              .absolute = (float)(2e-3 * size)};
  launch_data_kernel("bench_compare", 1024, 0, &args);
  gpu_download(&differ, b->differ, sizeof differ);
  return differ;
}

static void bench_one(struct bench *b, const struct variant *variant, int64_t group_rows) {
  struct gemm_kernel kernel;
  struct gemm_launch launch;
  struct result *r = &b->results[b->count++];
  const enum product product = variant->product;
  r->product = product, r->kernel = variant->name, r->group_rows = group_rows;
  gpu_require_status(
      weft__gemm_load(&test_device_images, variant->name, &variant->shape, 0, &kernel),
      variant->name);
  struct gemm_problem problem = own_problem(b, product, &variant->shape);
  problem.group_rows = group_rows;
  gpu_require_status(weft__gemm_prepare(&kernel, &problem, &launch), variant->name);
  struct cublas_problem yardstick = cublas_problem(b, product);
  yardstick.c = b->theirs;

  const int64_t elements = yardstick.rows * yardstick.cols;
  gpu_require(b->driver->cuMemsetD8Async(b->own, 0xff, (size_t)elements * 2, NULL), "memset");
  const double once = time_cublas(b, &yardstick, 1);
  time_own(b, &kernel, &launch, 1);
  const double size = product == LOGITS ? 1.0
                      : product == DX   ? 1.0 / sqrt((double)b->hidden)
                                        : sqrt((double)b->tokens) / (double)b->vocab;
  r->differ = differing(b, elements, size);

  const int launches = (int)(b->block_ms / once) + 1;
  double own[ROUNDS], theirs[ROUNDS + 1], ratios[ROUNDS];
  time_cublas(b, &yardstick, launches); /* warm up under load */
  time_own(b, &kernel, &launch, launches);
  theirs[0] = time_cublas(b, &yardstick, launches);
  for (int i = 0; i < ROUNDS; i++) {
    own[i] = time_own(b, &kernel, &launch, launches);
    theirs[i + 1] = time_cublas(b, &yardstick, launches);
    ratios[i] = 2 * own[i] / (theirs[i] + theirs[i + 1]);
  }
  r->ms = median(own, ROUNDS);
  r->cublas_ms = median(theirs, ROUNDS + 1);
  r->ratio = median(ratios, ROUNDS);
  r->ratio_min = ratios[0], r->ratio_max = ratios[ROUNDS - 1];
  const double flops = 2.0 * (double)b->tokens * (double)b->hidden * (double)b->vocab;
  printf("%-7s %-26s %6lld %8.3f %8.3f %7.4f %7.4f %7.4f %7.0f %8llu\n", product_names[product],
         r->kernel, (long long)group_rows, r->ms, r->cublas_ms, r->ratio, r->ratio_min,
         r->ratio_max, flops / r->ms * 1e-9, (unsigned long long)r->differ);
  fflush(stdout);
}

static void bench_product(struct bench *b, enum product product) {
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    if (variants[i].product != product) continue;
    bench_one(b, &variants[i], 0);
    if (b->tokens > 2048) bench_one(b, &variants[i], 2048);
  }
}

static int write_json(const struct bench *b, const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return -1;
  fprintf(
      file,
      "{\"op\":\"gemm\",\"device\":\"%s\",\"driver\":%d,\"cublas\":%d,\"config\":{\"tokens\":%lld,"
      "\"hidden\":%lld,\"vocab\":%lld,\"rounds\":%d,\"block_ms\":%g},\"results\":[",
      b->info.name, b->driver->version, cublas_version(), (long long)b->tokens,
      (long long)b->hidden, (long long)b->vocab, ROUNDS, b->block_ms);
  for (int i = 0; i < b->count; i++) {
    const struct result *r = &b->results[i];
    fprintf(file,
            "%s\n{\"product\":\"%s\",\"kernel\":\"%s\",\"group_rows\":%lld,\"ms_p50\":%.4f,"
            "\"cublas_ms_p50\":%.4f,\"ratio_p50\":%.5f,\"ratio_min\":%.5f,\"ratio_max\":%.5f,"
            "\"differ\":%llu}",
            i ? "," : "", product_names[r->product], r->kernel, (long long)r->group_rows, r->ms,
            r->cublas_ms, r->ratio, r->ratio_min, r->ratio_max, (unsigned long long)r->differ);
  }
  fprintf(file, "]}\n");
  return fclose(file);
}

int main(int argc, char **argv) {
  struct bench b = {.tokens = 4096, .hidden = 4096, .vocab = 131072, .block_ms = 150};
  const char *json = NULL;
  for (int i = 1; i < argc; i += 2) {
    const char *flag = argv[i], *text = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(flag, "--tokens"))
      b.tokens = atoll(text);
    else if (!strcmp(flag, "--hidden"))
      b.hidden = atoll(text);
    else if (!strcmp(flag, "--vocab"))
      b.vocab = atoll(text);
    else if (!strcmp(flag, "--block-ms"))
      b.block_ms = atof(text);
    else if (!strcmp(flag, "--json"))
      json = text;
    else
      flag = NULL;
    if (!flag || !*text || b.tokens < 8 || b.hidden < 8 || b.vocab < 8 || b.tokens % 8 ||
        b.hidden % 8 || b.vocab % 8 || b.block_ms <= 0) {
      fprintf(stderr, "usage: gemm_bench [--tokens M] [--hidden H] [--vocab V] [--block-ms MS] "
                      "[--json FILE]; M, H and V are multiples of 8\n");
      return 2;
    }
  }
  b.driver = gpu_open(&b.info);
  if (b.info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  char why[256];
  if (cublas_open(why, sizeof why)) {
    printf("skipped: no cuBLAS: %s\n", why);
    return GPU_SKIPPED;
  }
  gpu_require(b.driver->cuEventCreate(&b.start, 0), "cuEventCreate");
  gpu_require(b.driver->cuEventCreate(&b.stop, 0), "cuEventCreate");
  const int64_t largest = b.vocab * (b.tokens > b.hidden ? b.tokens : b.hidden);
  b.x = normal_matrix(b.tokens * b.hidden, 1, 1.0);
  b.w = normal_matrix(b.vocab * b.hidden, 2, 1.0 / sqrt((double)b.hidden));
  b.z = gpu_allocate((size_t)(b.tokens * b.vocab) * 2);
  b.own = gpu_allocate((size_t)largest * 2);
  b.theirs = gpu_allocate((size_t)largest * 2);
  b.differ = gpu_allocate(8);

  printf("# %s, cuBLAS %d, %lldx%lldx%lld bf16, ABAB blocks of %g ms, %d rounds\n", b.info.name,
         cublas_version(), (long long)b.tokens, (long long)b.hidden, (long long)b.vocab, b.block_ms,
         ROUNDS);
  printf("%-7s %-26s %6s %8s %8s %7s %7s %7s %7s %8s\n", "product", "kernel", "group", "ms",
         "cublas", "ratio", "min", "max", "TFLOP/s", "#differ");
  bench_product(&b, LOGITS);
  struct cublas_problem logits = cublas_problem(&b, LOGITS);
  logits.c = b.z;
  time_cublas(&b, &logits, 1);
  struct softmax_args softmax = {
      .rows = {b.z}, .cols = (uint32_t)b.vocab, .seed = 3, .scale = 1.0f};
  launch_data_kernel("bench_softmax_gradient", (unsigned)b.tokens, SOFTMAX_SHARED_BYTES, &softmax);
  bench_product(&b, DX);
  bench_product(&b, DW);
  gpu_require(b.driver->cuCtxSynchronize(), "the kernels");
  if (json && write_json(&b, json)) {
    fprintf(stderr, "can't write %s\n", json);
    return 4;
  }
  uint64_t differ = 0;
  for (int i = 0; i < b.count; i++)
    differ += b.results[i].differ;
  return differ != 0;
}
