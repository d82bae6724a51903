/* Forward of ce on a GPU, by the public API: every case against f64, the same bits run after run,
 * bits that do not depend on the other tokens, replay of a captured graph with changed inputs, two
 * plans on two streams, and errors that the device finds. */
#include <math.h>
#include <string.h>

#include "forward_cases.h"
#include "gpu.h"
#include "graph.h"

static const struct cuda_driver *driver;
static int passed, failed;

static void check(int good, const char *what, const char *why) {
  passed += good;
  failed += !good;
  if (!good) printf("FAILED %s: %s\n", what, why);
  fflush(stdout);
}

/* A case on the device. */
struct scene {
  struct forward_data data;
  weft_ce_plan *plan;
  cuda_stream stream;
  cuda_address x, w, target, temperature;
  cuda_address nll, lse, entropy, stats; /* with guards */
  weft_ce_args args;
};

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
}

static cuda_address poisoned(const float *from, int64_t tokens, int64_t width) {
  return gpu_upload(from, (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
}

static void open_scene(const struct forward_case *c, uint64_t seed, struct scene *s) {
  memset(s, 0, sizeof *s);
  struct forward_outputs fresh;
  if (forward_data_make(c, seed, &s->data) || forward_outputs_make(c->tokens, &fresh)) exit(4);
  weft_ce_config config = forward_config(c);
  gpu_require_status(weft_ce_plan_create(NULL, &config, &s->plan), c->name);
  gpu_require(driver->cuStreamCreate(&s->stream, GPU_NON_BLOCKING), "cuStreamCreate");
  s->x = gpu_upload(s->data.x, s->data.x_bytes);
  s->w = gpu_upload(s->data.w, s->data.w_bytes);
  s->target = gpu_upload(s->data.target, s->data.target_bytes);
  s->nll = poisoned(fresh.nll, c->tokens, 1);
  s->lse = poisoned(fresh.lse, c->tokens, 1);
  s->entropy = poisoned(fresh.entropy, c->tokens, 1);
  s->stats = poisoned(fresh.stats, c->tokens, 4);
  forward_outputs_free(&fresh);
  const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
  s->args = defaults;
  s->args.tokens = c->tokens;
  s->args.x = pointer(s->x);
  s->args.x_stride = c->x_extra ? c->hidden + c->x_extra : 0;
  s->args.w = pointer(s->w);
  s->args.w_stride = c->w_extra ? c->hidden + c->w_extra : 0;
  s->args.target = pointer(s->target);
  if (c->temperature != 0) s->args.temperature = c->temperature;
  if (c->temperature_ptr) {
    s->temperature = gpu_upload(&s->args.temperature, 4);
    s->args.temperature_ptr = (const float *)pointer(s->temperature);
    s->args.temperature = 1.0f;
  }
  s->args.nll = (float *)pointer(s->nll + FORWARD_GUARD * 4);
  s->args.lse = (float *)pointer(s->lse + FORWARD_GUARD * 4);
  if (c->entropy) s->args.entropy = (float *)pointer(s->entropy + FORWARD_GUARD * 4);
  s->args.stats = (float *)pointer(s->stats + FORWARD_GUARD * 16);
}

static void close_scene(struct scene *s) {
  const cuda_address all[] = {s->x,   s->w,   s->target,  s->temperature,
                              s->nll, s->lse, s->entropy, s->stats};
  gpu_require_status(weft_ce_plan_destroy(s->plan), "ce_plan_destroy");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  gpu_require(driver->cuStreamDestroy(s->stream), "cuStreamDestroy");
  forward_data_free(&s->data);
}

static void run(struct scene *s) {
  gpu_require_status(weft_ce_forward(s->plan, &s->args, s->stream), s->data.c->name);
}

static void fetch(struct scene *s, struct forward_outputs *got) {
  const size_t count = (size_t)s->data.c->tokens + 2 * FORWARD_GUARD;
  gpu_require(driver->cuStreamSynchronize(s->stream), s->data.c->name);
  gpu_download(got->nll, s->nll, count * 4);
  gpu_download(got->lse, s->lse, count * 4);
  gpu_download(got->entropy, s->entropy, count * 4);
  gpu_download(got->stats, s->stats, count * 16);
}

static int same_bits(const struct forward_outputs *a, const struct forward_outputs *b,
                     int64_t tokens) {
  const size_t count = (size_t)tokens + 2 * FORWARD_GUARD;
  return !memcmp(a->nll, b->nll, count * 4) && !memcmp(a->lse, b->lse, count * 4) &&
         !memcmp(a->entropy, b->entropy, count * 4) && !memcmp(a->stats, b->stats, count * 16);
}

/* Right by f64; the same bits `repeats` times; bad targets counted. */
static void test_case(const struct forward_case *c, int repeats) {
  struct scene s;
  struct forward_outputs first, again;
  char why[600] = "";
  open_scene(c, 11, &s);
  if (forward_outputs_make(c->tokens, &first) || forward_outputs_make(c->tokens, &again)) exit(4);
  run(&s);
  fetch(&s, &first);
  check(!forward_compare(&s.data, &first, why, sizeof why), c->name, why);
  int equal = 1;
  for (int i = 1; i < repeats; i++) {
    run(&s);
    fetch(&s, &again);
    equal &= same_bits(&first, &again, c->tokens);
  }
  check(equal, c->name, "other bits in another run");
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  gpu_require_status(weft_ce_plan_async_error(s.plan, &found), "ce_plan_async_error");
  const int right = s.data.bad
                        ? found.status == WEFT_ERR_TARGET && found.count == s.data.bad * repeats
                        : found.status == WEFT_OK;
  snprintf(why, sizeof why, "async error: status %d, count %lld, expected %lld: %s", found.status,
           (long long)found.count, (long long)s.data.bad * repeats, found.message);
  check(right, c->name, why);
  forward_outputs_free(&first);
  forward_outputs_free(&again);
  close_scene(&s);
}

/* A row's bits are the same wherever it stands and whatever comes with it. */
static void test_batch_invariance(void) {
  static const struct forward_case c = {"batch invariance",      .tokens = 4700, .hidden = 40,
                                        .vocab = 5003,           .entropy = 1,   .dtype = WEFT_BF16,
                                        .target_dtype = WEFT_I64};
  static const struct {
    int64_t first, tokens;
  } parts[] = {{0, 1}, {1, 1}, {4699, 1}, {0, 300}, {300, 257}, {2047, 2500}, {3000, 1700}};
  struct scene s;
  struct forward_outputs whole, part;
  open_scene(&c, 5, &s);
  if (forward_outputs_make(c.tokens, &whole) || forward_outputs_make(c.tokens, &part)) exit(4);
  run(&s);
  fetch(&s, &whole);
  const weft_ce_args all = s.args;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    const int64_t first = parts[i].first, n = parts[i].tokens;
    s.args.tokens = n;
    s.args.x = (const char *)all.x + first * c.hidden * 2;
    s.args.target = (const char *)all.target + first * 8;
    run(&s);
    fetch(&s, &part);
    const int64_t at = FORWARD_GUARD;
    check(!memcmp(part.nll + at, whole.nll + at + first, (size_t)n * 4) &&
              !memcmp(part.lse + at, whole.lse + at + first, (size_t)n * 4) &&
              !memcmp(part.entropy + at, whole.entropy + at + first, (size_t)n * 4) &&
              !memcmp(part.stats + 4 * at, whole.stats + 4 * (at + first), (size_t)n * 16),
          c.name, "a part of the tokens gets other bits");
  }
  forward_outputs_free(&whole);
  forward_outputs_free(&part);
  close_scene(&s);
}

/* Captured once, replayed with other inputs in the same buffers. */
static void test_graph(void) {
  static const struct forward_case c = {"graph replay",
                                        .tokens = 2500,
                                        .hidden = 64,
                                        .vocab = 2000,
                                        .entropy = 1,
                                        .dtype = WEFT_BF16,
                                        .target_dtype = WEFT_I64,
                                        .ignore_every = 9,
                                        .temperature = 0.8f,
                                        .temperature_ptr = 1};
  struct scene s;
  struct forward_outputs got;
  open_scene(&c, 1, &s);
  if (forward_outputs_make(c.tokens, &got)) exit(4);
  gpu_graph_begin(s.stream);
  run(&s);
  const struct gpu_graph graph = gpu_graph_end(s.stream);
  for (uint64_t seed = 2; seed < 8; seed++) {
    char why[600] = "";
    forward_data_free(&s.data);
    if (forward_data_make(&c, seed, &s.data)) exit(4);
    gpu_require(driver->cuMemcpyHtoD(s.x, s.data.x, s.data.x_bytes), "cuMemcpyHtoD");
    gpu_require(driver->cuMemcpyHtoD(s.w, s.data.w, s.data.w_bytes), "cuMemcpyHtoD");
    gpu_require(driver->cuMemcpyHtoD(s.target, s.data.target, s.data.target_bytes), "cuMemcpyHtoD");
    for (int i = 0; i < 3; i++)
      gpu_graph_launch(graph, s.stream);
    fetch(&s, &got);
    check(!forward_compare(&s.data, &got, why, sizeof why), c.name, why);
  }
  gpu_graph_free(graph);
  forward_outputs_free(&got);
  close_scene(&s);
}

/* Two plans at once, each on a stream of its own and with more than one group. */
static void test_two_plans(void) {
  static const struct forward_case cases[2] = {
      {"two plans, first", .tokens = 5000, .hidden = 64, .vocab = 3000, .entropy = 1,
       .dtype = WEFT_BF16, .target_dtype = WEFT_I64},
      {"two plans, second", .tokens = 4000, .hidden = 128, .vocab = 2000, .dtype = WEFT_F16,
       .target_dtype = WEFT_I32}};
  struct scene s[2];
  for (int i = 0; i < 2; i++)
    open_scene(&cases[i], 3, &s[i]);
  for (int round = 0; round < 20; round++)
    for (int i = 0; i < 2; i++)
      run(&s[i]);
  for (int i = 0; i < 2; i++) {
    struct forward_outputs got;
    char why[600] = "";
    if (forward_outputs_make(cases[i].tokens, &got)) exit(4);
    fetch(&s[i], &got);
    check(!forward_compare(&s[i].data, &got, why, sizeof why), cases[i].name, why);
    forward_outputs_free(&got);
  }
  for (int i = 0; i < 2; i++)
    close_scene(&s[i]);
}

/* What is refused, and calls without work. */
static void test_edges(void) {
  static const struct forward_case c = {"edges",      .tokens = 64,       .hidden = 64,
                                        .vocab = 300, .dtype = WEFT_BF16, .target_dtype = WEFT_I64};
  struct scene s;
  struct forward_outputs got, fresh;
  weft_ce_plan *plan = NULL;
  open_scene(&c, 3, &s);
  if (forward_outputs_make(c.tokens, &got) || forward_outputs_make(c.tokens, &fresh)) exit(4);
  s.args.tokens = 0;
  run(&s);
  fetch(&s, &got);
  check(same_bits(&got, &fresh, c.tokens), c.name, "no tokens, but something was written");
  s.args.tokens = c.tokens;
  weft_ce_config config = forward_config(&c);
  config.dtype = config.w_dtype = WEFT_F32;
  check(weft_ce_plan_create(NULL, &config, &plan) == WEFT_ERR_UNSUPPORTED, c.name,
        "f32 on a GPU was taken");
  config = forward_config(&c);
  config.workspace_budget = 1;
  check(weft_ce_plan_create(NULL, &config, &plan) == WEFT_ERR_WORKSPACE, c.name,
        "a workspace of one byte was taken");
  /* The least that is named does; and the caller's own workspace, poisoned. */
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  gpu_require_status(weft_ce_plan_info_get(s.plan, &info), "ce_plan_info_get");
  config.workspace_budget = info.least_bytes;
  const cuda_address workspace = gpu_allocate((size_t)info.local_bytes);
  gpu_require(driver->cuMemsetD8Async(workspace, 0xff, (size_t)info.local_bytes, NULL), "memset");
  gpu_require(driver->cuCtxSynchronize(), "memset");
  config.workspace = pointer(workspace);
  config.workspace_bytes = info.local_bytes;
  gpu_require_status(weft_ce_plan_create(NULL, &config, &plan), "ce_plan_create");
  gpu_require_status(weft_ce_forward(plan, &s.args, s.stream), c.name);
  fetch(&s, &got);
  char why[600] = "";
  check(!forward_compare(&s.data, &got, why, sizeof why), "the caller's workspace", why);
  gpu_require_status(weft_ce_plan_destroy(plan), "ce_plan_destroy");
  gpu_free(workspace);
  forward_outputs_free(&got);
  forward_outputs_free(&fresh);
  close_scene(&s);
}

/* A team of one rank on a GPU, with memory from this library alone: bad targets reach the team's
 * error, a reset clears it, and what is found later counts from there. */
static void test_team(void) {
  static const struct forward_case c = {"team of one",      .tokens = 100,
                                        .hidden = 64,       .vocab = 300,
                                        .dtype = WEFT_BF16, .target_dtype = WEFT_I64,
                                        .bad_every = 3,     .ignore_every = 7};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  weft_comm *comm = NULL;
  weft_ce_plan *plan = NULL;
  struct forward_data data;
  struct forward_outputs got;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  char why[600] = "";
  world.device = WEFT_DEVICE_CUDA;
  if (forward_data_make(&c, 5, &data) || forward_outputs_make(c.tokens, &got)) exit(4);
  gpu_require_status(weft_comm_create_inproc(&world, &comm), "comm_create_inproc");
  gpu_require_status(weft_comm_info_get(comm, &info), "comm_info_get");
  check(info.device == WEFT_DEVICE_CUDA && info.gpu == 0, c.name, "not on GPU 0");
  weft_ce_config config = forward_config(&c);
  config.device = WEFT_DEVICE_CPU;
  check(weft_ce_plan_create(comm, &config, &plan) == WEFT_ERR_ARGUMENT, c.name,
        "a plan for the CPU was made on a GPU's team");
  config.device = WEFT_DEVICE_AUTO;
  gpu_require_status(weft_ce_plan_create(comm, &config, &plan), "ce_plan_create");

  const size_t count = (size_t)c.tokens + 2 * FORWARD_GUARD;
  struct {
    void *host, *copy;
    size_t bytes;
  } arrays[] = {{data.x, NULL, data.x_bytes},
                {data.w, NULL, data.w_bytes},
                {data.target, NULL, data.target_bytes},
                {got.nll, NULL, count * 4},
                {got.lse, NULL, count * 4},
                {got.stats, NULL, count * 16}};
  const size_t arrays_count = sizeof arrays / sizeof *arrays;
  for (size_t i = 0; i < arrays_count; i++) {
    gpu_require_status(weft_memory_alloc(0, (int64_t)arrays[i].bytes, &arrays[i].copy), "alloc");
    gpu_require_status(
        weft_memory_copy(0, arrays[i].copy, arrays[i].host, (int64_t)arrays[i].bytes, NULL),
        "copy");
  }
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = c.tokens;
  args.x = arrays[0].copy;
  args.w = arrays[1].copy;
  args.target = arrays[2].copy;
  args.nll = (float *)arrays[3].copy + FORWARD_GUARD;
  args.lse = (float *)arrays[4].copy + FORWARD_GUARD;
  args.stats = (float *)arrays[5].copy + 4 * FORWARD_GUARD;
  for (int round = 1; round <= 2; round++) {
    gpu_require_status(weft_ce_forward(plan, &args, NULL), c.name);
    gpu_require_status(weft_memory_synchronize(0, NULL), "synchronize");
    gpu_require_status(weft_comm_async_error(comm, &found), "comm_async_error");
    check(found.status == WEFT_ERR_TARGET && found.count == data.bad && found.rank == 0, c.name,
          "the team's error is not that of the call");
    gpu_require_status(weft_comm_reset(comm), "comm_reset");
    gpu_require_status(weft_comm_async_error(comm, &found), "comm_async_error");
    check(found.status == WEFT_OK, c.name, "an error outlives the team's reset");
  }
  for (size_t i = 3; i < arrays_count; i++)
    gpu_require_status(
        weft_memory_copy(0, arrays[i].host, arrays[i].copy, (int64_t)arrays[i].bytes, NULL),
        "copy");
  gpu_require_status(weft_memory_synchronize(0, NULL), "synchronize");
  check(!forward_compare(&data, &got, why, sizeof why), c.name, why);
  for (size_t i = 0; i < arrays_count; i++)
    gpu_require_status(weft_memory_free(0, arrays[i].copy), "free");
  gpu_require_status(weft_ce_plan_destroy(plan), "ce_plan_destroy");
  gpu_require_status(weft_comm_destroy(comm), "comm_destroy");
  forward_outputs_free(&got);
  forward_data_free(&data);
}

int main(void) {
  struct cuda_device_info info;
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  for (size_t i = 0; i < forward_toy_case_count; i++)
    test_case(&forward_toy_cases[i], 100);
  for (size_t i = 0; i < forward_small_case_count; i++)
    test_case(&forward_small_cases[i], i % 4 == 0 ? 100 : 3);
  test_batch_invariance();
  test_graph();
  test_two_plans();
  test_edges();
  test_team();
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
