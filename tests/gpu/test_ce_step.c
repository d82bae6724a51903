/* Backward and step of ce on a GPU by the public API: small problems against f64, a step against a
 * forward and a backward, padded rows of W, calls of fewer tokens and of none, several waves under
 * a small budget, and replay of a captured graph with changed inputs. */
#include <math.h>
#include <string.h>

#include "gpu.h"
#include "graph.h"
#include "support/oracle.h"

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

struct step_case {
  const char *name;
  int64_t max_tokens, tokens, hidden, vocab, padding;
  int32_t dtype, dx_dtype, dw_dtype, entropy, ignore_every;
  float temperature, softcap;
  int64_t budget; /* 0: the default; 1: the least; else so many bytes */
  int32_t accumulate;
};

static const struct step_case cases[] = {
    {"bf16", 500, 500, 264, 1500, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0},
    {"f16", 400, 400, 264, 1100, 0, WEFT_F16, 0, 0, 1, 5, 1, 0, 0, 0},
    {"bf16 padded, fewer tokens", 900, 300, 136, 1100, 84, WEFT_BF16, 0, 0, 1, 3, 2, 0, 0, 0},
    {"bf16 no tokens", 900, 0, 136, 1100, 84, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0},
    {"bf16 capped, least budget", 400, 400, 200, 1500, 0, WEFT_BF16, 0, 0, 1, 0, 1, 20, 1, 0},
    {"f32 out, accumulate", 300, 300, 520, 1200, 40, WEFT_BF16, WEFT_F32, WEFT_F32, 0, 4, 1, 0, 1,
     1},
    {"bf16, kept", 700, 700, 520, 3000, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 64 << 20, 0},
    {"f16, kept, fewer tokens", 900, 500, 520, 2000, 50, WEFT_F16, 0, 0, 0, 5, 2, 0, 64 << 20, 0},
    {"bf16, kept, entropy, f32 out", 600, 600, 776, 1700, 84, WEFT_BF16, WEFT_F32, WEFT_F32, 1, 3,
     1, 0, 64 << 20, 1},
};

static uint32_t hash(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}

static double uniform(uint32_t seed, uint64_t i) {
  return hash(seed * 0x9e3779b9u ^ hash((uint32_t)i + 77)) / 4294967296.0;
}

static double normal(uint32_t seed, uint64_t i) {
  return sqrt(-2 * log(1 - uniform(seed, i))) * cos(6.283185307179586 * uniform(seed + 1000, i));
}

static uint16_t half_of(double v, int f16) {
  if (f16) {
    const _Float16 h = (_Float16)v;
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
  }
  const float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static double value(const void *p, int64_t at, int f32, int f16) {
  float f;
  uint16_t u;
  if (f32) {
    memcpy(&f, (const char *)p + at * 4, 4);
    return f;
  }
  memcpy(&u, (const char *)p + at * 2, 2);
  if (f16) {
    _Float16 h;
    memcpy(&h, &u, 2);
    return (double)h;
  }
  const uint32_t wide = (uint32_t)u << 16;
  memcpy(&f, &wide, 4);
  return f;
}

/* Host data of one seed, and what is right for it. */
struct data {
  uint16_t *x, *w;
  int64_t *target;
  float *g[3], *dw0;
  oracle o;
  double *doubles;
};

static void *need(size_t bytes) {
  void *p = calloc(bytes ? bytes : 1, 1);
  if (!p) exit(4);
  return p;
}

static void make_data(const struct step_case *c, uint32_t seed, struct data *d) {
  const int64_t m = c->tokens, h = c->hidden, rows = c->vocab + c->padding;
  const int f16 = c->dtype == WEFT_F16;
  memset(d, 0, sizeof *d);
  d->x = need((size_t)(m * h) * 2);
  d->w = need((size_t)(rows * h) * 2);
  d->target = need((size_t)m * 8);
  d->dw0 = need((size_t)(rows * h) * 4);
  d->doubles = need((size_t)((m + c->vocab) * h + 3 * m) * 8);
  double *x = d->doubles, *w = x + m * h, *g = w + c->vocab * h;
  for (int64_t i = 0; i < m * h; i++) {
    d->x[i] = half_of(normal(seed, (uint64_t)i), f16);
    x[i] = value(d->x, i, 0, f16);
  }
  for (int64_t i = 0; i < rows * h; i++) {
    d->w[i] = half_of(normal(seed + 1, (uint64_t)i) / sqrt((double)h), f16);
    if (i < c->vocab * h) w[i] = value(d->w, i, 0, f16);
    d->dw0[i] = (float)(0.05 * normal(seed + 2, (uint64_t)i));
  }
  for (int64_t i = 0; i < m; i++)
    d->target[i] = c->ignore_every && i % c->ignore_every == 1
                       ? -100
                       : (int64_t)(uniform(seed + 3, (uint64_t)i) * (double)c->vocab);
  for (int k = 0; k < 3; k++) {
    d->g[k] = need((size_t)m * 4);
    for (int64_t i = 0; i < m; i++) {
      d->g[k][i] = d->target[i] < 0 ? NAN : (float)(0.25 + uniform(seed + 4 + (uint32_t)k, i));
      g[k * m + i] = d->g[k][i];
    }
  }
  d->o = (oracle){.tokens = m,
                  .hidden = h,
                  .vocab = c->vocab,
                  .x = x,
                  .w = w,
                  .target = d->target,
                  .ignore_index = -100,
                  .temperature = c->temperature,
                  .cap = c->softcap,
                  .g_nll = g,
                  .g_entropy = c->entropy ? g + m : NULL,
                  .g_lse = g + 2 * m};
  oracle_run(&d->o);
}

static void free_data(struct data *d) {
  oracle_free(&d->o);
  free(d->x), free(d->w), free(d->target), free(d->dw0), free(d->doubles);
  for (int k = 0; k < 3; k++)
    free(d->g[k]);
}

struct scene {
  const struct step_case *c;
  weft_ce_plan *plan;
  cuda_stream stream;
  cuda_address x, w, target, g[3], stats, nll, lse, entropy, dx, dw;
  size_t dx_bytes, dw_bytes;
  weft_ce_args args;
};

static void upload(struct scene *s, const struct data *d) {
  const struct step_case *c = s->c;
  const size_t m = (size_t)c->tokens, h = (size_t)c->hidden, rows = (size_t)(c->vocab + c->padding);
  if (m) {
    gpu_require(driver->cuMemcpyHtoD(s->x, d->x, m * h * 2), "copy");
    gpu_require(driver->cuMemcpyHtoD(s->target, d->target, m * 8), "copy");
    for (int k = 0; k < 3; k++)
      gpu_require(driver->cuMemcpyHtoD(s->g[k], d->g[k], m * 4), "copy");
  }
  gpu_require(driver->cuMemcpyHtoD(s->w, d->w, rows * h * 2), "copy");
}

static void poison(struct scene *s, const struct data *d) {
  gpu_require(driver->cuMemsetD8Async(s->dx, 0xff, s->dx_bytes, NULL), "memset");
  gpu_require(driver->cuMemsetD8Async(s->dw, 0xff, s->dw_bytes, NULL), "memset");
  gpu_require(driver->cuMemsetD8Async(s->nll, 0xff, (size_t)(s->c->max_tokens * 4), NULL),
              "memset");
  gpu_require(driver->cuCtxSynchronize(), "memset");
  if (s->c->accumulate) gpu_require(driver->cuMemcpyHtoD(s->dw, d->dw0, s->dw_bytes), "copy");
}

static void open_scene(const struct step_case *c, struct scene *s) {
  const int64_t m = c->max_tokens, rows = c->vocab + c->padding;
  memset(s, 0, sizeof *s);
  s->c = c;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = m;
  config.hidden = c->hidden;
  config.vocab = c->vocab;
  config.vocab_local = rows;
  config.dtype = c->dtype;
  config.dx_dtype = c->dx_dtype;
  config.dw_dtype = c->dw_dtype;
  config.softcap = c->softcap;
  config.device = WEFT_DEVICE_CUDA;
  config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP | (c->entropy ? WEFT_CE_ENTROPY : 0);
  if (c->budget == 1) {
    weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
    machine.arch = "sm90";
    gpu_require_status(weft_ce_plan_query(&config, &machine, &info), c->name);
    config.workspace_budget = info.least_bytes;
  } else {
    config.workspace_budget = c->budget;
  }
  gpu_require_status(weft_ce_plan_create(NULL, &config, &s->plan), c->name);
  gpu_require(driver->cuStreamCreate(&s->stream, GPU_NON_BLOCKING), "cuStreamCreate");
  s->x = gpu_allocate((size_t)(m * c->hidden) * 2);
  s->w = gpu_allocate((size_t)(rows * c->hidden) * 2);
  s->target = gpu_allocate((size_t)m * 8);
  for (int k = 0; k < 3; k++)
    s->g[k] = gpu_allocate((size_t)m * 4);
  s->stats = gpu_allocate((size_t)m * 16);
  s->nll = gpu_allocate((size_t)m * 4);
  s->lse = gpu_allocate((size_t)m * 4);
  s->entropy = gpu_allocate((size_t)m * 4);
  s->dx_bytes = (size_t)(m * c->hidden) * (c->dx_dtype == WEFT_F32 ? 4 : 2);
  s->dw_bytes = (size_t)(rows * c->hidden) * (c->dw_dtype == WEFT_F32 ? 4 : 2);
  s->dx = gpu_allocate(s->dx_bytes);
  s->dw = gpu_allocate(s->dw_bytes);
  const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
  s->args = defaults;
  s->args.tokens = c->tokens;
  s->args.x = pointer(s->x);
  s->args.w = pointer(s->w);
  s->args.target = pointer(s->target);
  s->args.temperature = c->temperature;
  s->args.g_nll = (const float *)pointer(s->g[0]);
  s->args.g_entropy = c->entropy ? (const float *)pointer(s->g[1]) : NULL;
  s->args.g_lse = (const float *)pointer(s->g[2]);
  s->args.nll = (float *)pointer(s->nll);
  s->args.lse = (float *)pointer(s->lse);
  s->args.entropy = c->entropy ? (float *)pointer(s->entropy) : NULL;
  s->args.stats = (float *)pointer(s->stats);
  s->args.dx = pointer(s->dx);
  s->args.dw = pointer(s->dw);
  s->args.dw_accumulate = c->accumulate;
}

static void close_scene(struct scene *s) {
  const cuda_address all[] = {s->x,     s->w,   s->target, s->g[0],    s->g[1], s->g[2],
                              s->stats, s->nll, s->lse,    s->entropy, s->dx,   s->dw};
  gpu_require_status(weft_ce_plan_destroy(s->plan), "ce_plan_destroy");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  gpu_require(driver->cuStreamDestroy(s->stream), "cuStreamDestroy");
}

static double distance(const double *right, const unsigned char *got, const float *add,
                       int64_t rows, int64_t cols, int f32, int f16) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < rows * cols; i++) {
    const double e = right[i] + (add ? (double)add[i] : 0), v = value(got, i, f32, f16);
    error += (v - e) * (v - e), norm += e * e;
  }
  return error == 0 ? 0 : sqrt(error / norm);
}

/* Compares what is on the device with f64. */
static void compare(struct scene *s, const struct data *d, int loss, const char *what) {
  const struct step_case *c = s->c;
  const int f16 = c->dtype == WEFT_F16;
  const int dx_f32 = c->dx_dtype == WEFT_F32, dw_f32 = c->dw_dtype == WEFT_F32;
  unsigned char *dx = need(s->dx_bytes), *dw = need(s->dw_bytes);
  float *nll = need((size_t)c->max_tokens * 4);
  char why[256], name[128];
  gpu_require(driver->cuStreamSynchronize(s->stream), what);
  gpu_download(dx, s->dx, s->dx_bytes);
  gpu_download(dw, s->dw, s->dw_bytes);
  gpu_download(nll, s->nll, (size_t)c->max_tokens * 4);
  const double dx_error = distance(d->o.dx, dx, NULL, c->tokens, c->hidden, dx_f32, f16);
  const double dw_error =
      distance(d->o.dw, dw, c->accumulate ? d->dw0 : NULL, c->vocab, c->hidden, dw_f32, f16);
  int64_t wrong = 0, padding = 0;
  for (int64_t i = 0; i < c->tokens; i++) {
    for (int64_t k = 0; k < c->hidden && d->target[i] < 0; k++)
      wrong += value(dx, i * c->hidden + k, dx_f32, f16) != 0;
    if (loss) wrong += !(fabs(nll[i] - d->o.nll[i]) <= 2e-5 * (1 + d->o.largest[i]));
  }
  for (int64_t i = c->vocab * c->hidden; i < (c->vocab + c->padding) * c->hidden; i++)
    padding += value(dw, i, dw_f32, f16) != (c->accumulate ? (double)d->dw0[i] : 0);
  snprintf(name, sizeof name, "%s, %s", c->name, what);
  snprintf(why, sizeof why, "dX %.4f%%, dW %.4f%%, %lld rows or zeros wrong, %lld of padding",
           100 * dx_error, 100 * dw_error, (long long)wrong, (long long)padding);
  const int good = dx_error <= 0.0025 && dw_error <= 0.0025 && wrong == 0 && padding == 0;
  check(good, name, why);
  if (good) printf("ok     %s: %s\n", name, why);
  free(dx), free(dw), free(nll);
}

static void test_case(const struct step_case *c) {
  struct scene s;
  struct data d, other;
  open_scene(c, &s);
  make_data(c, 1, &d);
  make_data(c, 50, &other);
  upload(&s, &d);
  poison(&s, &d);
  gpu_require_status(weft_ce_forward(s.plan, &s.args, s.stream), c->name);
  gpu_require_status(weft_ce_backward(s.plan, &s.args, s.stream), c->name);
  compare(&s, &d, 1, "forward and backward");
  poison(&s, &d);
  gpu_require_status(weft_ce_step(s.plan, &s.args, s.stream), c->name);
  compare(&s, &d, 1, "step");

  poison(&s, &d);
  gpu_graph_begin(s.stream);
  gpu_require_status(weft_ce_step(s.plan, &s.args, s.stream), c->name);
  struct gpu_graph graph = gpu_graph_end(s.stream);
  gpu_graph_launch(graph, s.stream);
  compare(&s, &d, 1, "step in a graph");
  upload(&s, &other);
  poison(&s, &other);
  gpu_graph_launch(graph, s.stream);
  compare(&s, &other, 1, "replayed with other inputs");
  gpu_graph_free(graph);
  free_data(&d);
  free_data(&other);
  close_scene(&s);
}

int main(void) {
  struct cuda_device_info info;
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: this kernel is for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    test_case(&cases[i]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
