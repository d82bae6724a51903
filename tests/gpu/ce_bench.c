/* Times forward of ce against cuBLAS's logits GEMM of the same shape, which writes its logits and
 * has no softmax. X ~ N(0,1), W ~ N(0,1)/sqrt(H), uniform targets.
 *
 * Method: blocks of back-to-back launches, cuBLAS and own in turn (A B A B ... A), timed by events;
 * a round's ratio is own time over the mean of the two cuBLAS blocks around it; medians over the
 * rounds. The cost of entropy is measured the same way, against forward without it. Results of a
 * few tokens are compared with f64 first.
 *
 *   ce_bench [--tokens M --hidden H --vocab V] [--block-ms MS] [--json FILE] [--variants] */
#include <math.h>
#include <string.h>

#include "bench_kernels.h"
#include "cublas.h"
#include "cuda/ce.h"
#include "gpu.h"

enum { ROUNDS = 5, RESULTS_MAX = 96, SAMPLES = 2 };

extern struct device_images bench_device_images;

struct shape {
  int64_t tokens, hidden, vocab;
};
static const struct shape shapes[] = {
    {4096, 4096, 131072}, {8192, 2048, 151936}, {8192, 7168, 129280}, {16384, 4096, 131072}};

/* Tried beside what the library does, in its workspace: no larger than its own. */
static const struct variant {
  const char *name;
  uint32_t segments, group, pace;
} variants[] = {
    {"at any pace", FORWARD_SEGMENTS_MAX, FORWARD_GROUP_TILES, 0},
    {"groups of 12, at any pace", FORWARD_SEGMENTS_MAX, 12, 0},
    {"groups of 12", FORWARD_SEGMENTS_MAX, 12, FORWARD_PACE_STEPS},
};

struct result {
  struct shape shape;
  char name[64];
  double ms, base_ms, ratio, ratio_min, ratio_max, workspace_mib;
};

struct bench {
  const struct cuda_driver *driver;
  struct cuda_device_info info;
  struct shape shape;
  double block_ms;
  cuda_address x, w, z, target, nll, lse, entropy;
  int64_t *ids;
  cuda_event start, stop;
  struct result results[RESULTS_MAX];
  int count, wrong;
};

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

static void make_inputs(struct bench *b) {
  const struct shape *s = &b->shape;
  uint64_t state = 12345;
  b->x = normal_matrix(s->tokens * s->hidden, 1, 1.0);
  b->w = normal_matrix(s->vocab * s->hidden, 2, 1.0 / sqrt((double)s->hidden));
  b->z = gpu_allocate((size_t)(s->tokens * s->vocab) * 2);
  b->ids = malloc((size_t)s->tokens * sizeof *b->ids);
  if (!b->ids) exit(4);
  for (int64_t i = 0; i < s->tokens; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b->ids[i] = (int64_t)((state >> 33) % (uint64_t)s->vocab);
  }
  b->target = gpu_upload(b->ids, (size_t)s->tokens * sizeof *b->ids);
  b->nll = gpu_allocate((size_t)s->tokens * 4);
  b->lse = gpu_allocate((size_t)s->tokens * 4);
  b->entropy = gpu_allocate((size_t)s->tokens * 4);
}

static void free_inputs(struct bench *b) {
  const cuda_address all[] = {b->x, b->w, b->z, b->target, b->nll, b->lse, b->entropy};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  free(b->ids);
}

/* ---- What is timed ---- */

struct subject {
  const char *name;
  weft_ce_plan *plan; /* NULL: cuBLAS */
  weft_ce_args args;
};

static struct subject subject(struct bench *b, const char *name, int entropy,
                              const struct variant *v) {
  struct subject s = {.name = name};
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = b->shape.tokens;
  config.hidden = b->shape.hidden;
  config.vocab = config.vocab_local = b->shape.vocab;
  config.dtype = config.w_dtype = WEFT_BF16;
  config.wants = entropy ? WEFT_CE_ENTROPY : 0;
  config.device = WEFT_DEVICE_CUDA;
  gpu_require_status(weft_ce_plan_create(NULL, &config, &s.plan), name);
  if (v) {
    weft__sm90_ce *state = (weft__sm90_ce *)s.plan->state;
    state->layout.forward_segments = v->segments;
    state->layout.forward_group = v->group;
    state->layout.forward_pace = v->pace;
  }
  const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
  s.args = defaults;
  s.args.tokens = b->shape.tokens;
  s.args.x = (const void *)(uintptr_t)b->x;
  s.args.w = (const void *)(uintptr_t)b->w;
  s.args.target = (const void *)(uintptr_t)b->target;
  s.args.nll = (float *)(uintptr_t)b->nll;
  s.args.lse = (float *)(uintptr_t)b->lse;
  if (entropy) s.args.entropy = (float *)(uintptr_t)b->entropy;
  return s;
}

static double time_block(struct bench *b, struct subject *s, int launches) {
  float ms = 0;
  const struct cublas_problem logits = {
      b->shape.tokens, b->shape.vocab, b->shape.hidden, b->x, b->w, b->z, 0, 1};
  gpu_require(b->driver->cuEventRecord(b->start, NULL), "cuEventRecord");
  for (int i = 0; i < launches; i++) {
    if (s->plan)
      gpu_require_status(weft_ce_forward(s->plan, &s->args, NULL), s->name);
    else if (cublas_run(&logits))
      exit(4);
  }
  gpu_require(b->driver->cuEventRecord(b->stop, NULL), "cuEventRecord");
  gpu_require(b->driver->cuEventSynchronize(b->stop), s->name);
  gpu_require(b->driver->cuEventElapsedTime(&ms, b->start, b->stop), "cuEventElapsedTime");
  return ms / launches;
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void compare(struct bench *b, struct subject *own, struct subject *base) {
  struct result *r = &b->results[b->count++];
  double mine[ROUNDS], theirs[ROUNDS + 1], ratios[ROUNDS];
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  const int launches = (int)(b->block_ms / time_block(b, base, 1)) + 1;
  time_block(b, own, launches); /* warm up under load */
  theirs[0] = time_block(b, base, launches);
  for (int i = 0; i < ROUNDS; i++) {
    mine[i] = time_block(b, own, launches);
    theirs[i + 1] = time_block(b, base, launches);
    ratios[i] = 2 * mine[i] / (theirs[i] + theirs[i + 1]);
  }
  gpu_require_status(weft_ce_plan_info_get(own->plan, &info), own->name);
  r->shape = b->shape;
  snprintf(r->name, sizeof r->name, "%s / %s", own->name, base->name);
  r->ms = median(mine, ROUNDS);
  r->base_ms = median(theirs, ROUNDS + 1);
  r->ratio = median(ratios, ROUNDS);
  r->ratio_min = ratios[0], r->ratio_max = ratios[ROUNDS - 1];
  r->workspace_mib = (double)info.local_bytes / 1048576;
  const double flops =
      2.0 * (double)r->shape.tokens * (double)r->shape.hidden * (double)r->shape.vocab;
  printf("%6lld %5lld %6lld %-36s %8.3f %8.3f %7.4f %7.4f %7.4f %7.0f %6.2f\n",
         (long long)r->shape.tokens, (long long)r->shape.hidden, (long long)r->shape.vocab, r->name,
         r->ms, r->base_ms, r->ratio, r->ratio_min, r->ratio_max, flops / r->ms * 1e-9,
         r->workspace_mib);
  fflush(stdout);
}

/* ---- A few tokens in f64 ---- */

static double widen(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static void check_samples(struct bench *b, struct subject *own) {
  const int64_t h = b->shape.hidden, v = b->shape.vocab, m = b->shape.tokens;
  uint16_t *w = malloc((size_t)(v * h) * 2), *row = malloc((size_t)h * 2);
  double *x = malloc((size_t)h * sizeof *x), *z = malloc((size_t)v * sizeof *z);
  if (!w || !row || !x || !z) exit(4);
  gpu_require(b->driver->cuMemsetD8Async(b->nll, 0xff, (size_t)m * 4, NULL), "memset");
  gpu_require(b->driver->cuMemsetD8Async(b->lse, 0xff, (size_t)m * 4, NULL), "memset");
  gpu_require(b->driver->cuMemsetD8Async(b->entropy, 0xff, (size_t)m * 4, NULL), "memset");
  time_block(b, own, 1);
  gpu_download(w, b->w, (size_t)(v * h) * 2);
  const int64_t tokens[SAMPLES] = {m / 2 + 131, m - 1};
  double worst = 0;
  for (int s = 0; s < SAMPLES; s++) {
    float got[3];
    double top = -INFINITY, sum = 0, weighted = 0;
    gpu_download(row, b->x + (cuda_address)(tokens[s] * h) * 2, (size_t)h * 2);
    for (int64_t k = 0; k < h; k++)
      x[k] = widen(row[k]);
    for (int64_t j = 0; j < v; j++) {
      double a[4] = {0};
      for (int64_t k = 0; k < h; k += 4)
        for (int i = 0; i < 4; i++)
          a[i] += x[k + i] * widen(w[j * h + k + i]);
      z[j] = a[0] + a[1] + (a[2] + a[3]);
      if (z[j] > top) top = z[j];
    }
    for (int64_t j = 0; j < v; j++) {
      sum += exp(z[j] - top);
      weighted += exp(z[j] - top) * (z[j] - top);
    }
    const double lse = top + log(sum),
                 expected[3] = {lse - z[b->ids[tokens[s]]], lse, log(sum) - weighted / sum};
    gpu_download(&got[0], b->nll + (cuda_address)tokens[s] * 4, 4);
    gpu_download(&got[1], b->lse + (cuda_address)tokens[s] * 4, 4);
    gpu_download(&got[2], b->entropy + (cuda_address)tokens[s] * 4, 4);
    for (int i = 0; i < 3; i++) {
      const double off = fabs((double)got[i] - expected[i]) / (1 + top);
      if (!(off <= 2e-5)) b->wrong++;
      if (!(off <= worst)) worst = off;
    }
  }
  printf("# %d tokens against f64: off by %.2g (1 + max|z|), bound 2e-5%s\n", SAMPLES, worst,
         b->wrong ? ": WRONG" : "");
  free(w);
  free(row);
  free(x);
  free(z);
}

static void bench_shape(struct bench *b, int try_variants) {
  make_inputs(b);
  struct subject cublas = {.name = "cublas"};
  struct subject forward = subject(b, "forward", 0, NULL);
  struct subject entropy = subject(b, "forward with entropy", 1, NULL);
  check_samples(b, &entropy);
  /* The clock sinks under load for about a second. */
  for (double ms = 0; ms < 8 * b->block_ms;) {
    ms += 2 * time_block(b, &cublas, 2);
    ms += 2 * time_block(b, &forward, 2);
  }
  compare(b, &forward, &cublas);
  compare(b, &entropy, &forward);
  for (size_t i = 0; try_variants && i < sizeof variants / sizeof *variants; i++) {
    struct subject variant = subject(b, variants[i].name, 0, &variants[i]);
    compare(b, &variant, &cublas);
    gpu_require_status(weft_ce_plan_destroy(variant.plan), "ce_plan_destroy");
  }
  gpu_require_status(weft_ce_plan_destroy(forward.plan), "ce_plan_destroy");
  gpu_require_status(weft_ce_plan_destroy(entropy.plan), "ce_plan_destroy");
  free_inputs(b);
}

static int write_json(const struct bench *b, const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return -1;
  fprintf(file,
          "{\"op\":\"ce\",\"device\":\"%s\",\"driver\":%d,\"cublas\":%d,\"config\":{\"dtype\":"
          "\"bf16\",\"rounds\":%d,\"block_ms\":%g},\"results\":[",
          b->info.name, b->driver->version, cublas_version(), ROUNDS, b->block_ms);
  for (int i = 0; i < b->count; i++) {
    const struct result *r = &b->results[i];
    fprintf(file,
            "%s\n{\"tokens\":%lld,\"hidden\":%lld,\"vocab\":%lld,\"what\":\"%s\",\"ms_p50\":%.4f,"
            "\"base_ms_p50\":%.4f,\"ratio_p50\":%.5f,\"ratio_min\":%.5f,\"ratio_max\":%.5f,"
            "\"workspace_mib\":%.3f}",
            i ? "," : "", (long long)r->shape.tokens, (long long)r->shape.hidden,
            (long long)r->shape.vocab, r->name, r->ms, r->base_ms, r->ratio, r->ratio_min,
            r->ratio_max, r->workspace_mib);
  }
  fprintf(file, "]}\n");
  return fclose(file);
}

int main(int argc, char **argv) {
  struct bench b = {.block_ms = 100};
  const char *json = NULL;
  int try_variants = 0;
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i], *text = i + 1 < argc ? argv[i + 1] : "";
    int takes_value = 1;
    if (!strcmp(flag, "--tokens"))
      b.shape.tokens = atoll(text);
    else if (!strcmp(flag, "--hidden"))
      b.shape.hidden = atoll(text);
    else if (!strcmp(flag, "--vocab"))
      b.shape.vocab = atoll(text);
    else if (!strcmp(flag, "--block-ms"))
      b.block_ms = atof(text);
    else if (!strcmp(flag, "--json"))
      json = text;
    else if (!strcmp(flag, "--variants"))
      try_variants = 1, takes_value = 0;
    else
      b.block_ms = 0;
    i += takes_value;
    if (!(b.block_ms > 0) || b.shape.tokens < 0 || b.shape.hidden % 8 || b.shape.hidden < 0 ||
        b.shape.vocab < 0 || (takes_value && !*text)) {
      fprintf(stderr, "usage: ce_bench [--tokens M --hidden H --vocab V] [--block-ms MS] "
                      "[--json FILE] [--variants]; H is a multiple of 8\n");
      return 2;
    }
  }
  b.driver = gpu_open(&b.info);
  char why[256];
  if (b.info.arch != CUDA_ARCH_SM90 || cublas_open(why, sizeof why)) {
    printf("skipped: %s\n", b.info.arch != CUDA_ARCH_SM90 ? "not compute capability 9.0" : why);
    return GPU_SKIPPED;
  }
  gpu_require(b.driver->cuEventCreate(&b.start, 0), "cuEventCreate");
  gpu_require(b.driver->cuEventCreate(&b.stop, 0), "cuEventCreate");
  printf("# %s, cuBLAS %d, bf16, ABAB blocks of %g ms, %d rounds\n", b.info.name, cublas_version(),
         b.block_ms, ROUNDS);
  printf("%6s %5s %6s %-36s %8s %8s %7s %7s %7s %7s %6s\n", "M", "H", "V", "what", "ms", "base",
         "ratio", "min", "max", "TFLOP/s", "MiB");
  if (b.shape.tokens && b.shape.hidden && b.shape.vocab) {
    bench_shape(&b, try_variants);
  } else {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      b.shape = shapes[i];
      bench_shape(&b, try_variants);
    }
  }
  if (json && write_json(&b, json)) {
    fprintf(stderr, "can't write %s\n", json);
    return 4;
  }
  return b.wrong != 0;
}
