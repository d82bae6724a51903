/* Forward of ce over teams of GPU ranks of this process, by the public API, all ranks on GPU 0, or
 * in turn on several, and issued by this one thread: every rank against f64, the same bits on all
 * ranks and run after run, graphs, several plans and teams at once, late ranks, and what is
 * reported where a rank is missing, differs or aborts; and that a team works again after its reset.
 *
 *   test_ce_team [--quick] [--gpus N] */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "graph.h"
#include "team_forward.h"

enum { RANKS_MAX = 16, CASE_SEED = 11 };

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

/* Worlds are made once for each number of ranks. */
static void open_world(int64_t ranks, int64_t timeout_ms, weft_comm **comms) {
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = ranks;
  world.device = WEFT_DEVICE_CUDA;
  world.gpus = gpus;
  world.arena_bytes = 64 << 20;
  world.timeout_ms = timeout_ms;
  gpu_require_status(weft_comm_create_inproc(&world, comms), "comm_create_inproc");
}

static void close_world(int64_t ranks, weft_comm **comms) {
  for (int64_t r = 0; r < ranks; r++)
    gpu_require_status(weft_comm_destroy(comms[r]), "comm_destroy");
}

/* A case cut over a team; X and the targets are shared by the ranks, which only read them. */
struct scene {
  struct forward_data data;
  int borrows_data;
  int64_t ranks;
  weft_comm **comms;
  weft_ce_plan *plan[RANKS_MAX];
  void *stream[RANKS_MAX];
  weft_ce_args args[RANKS_MAX];
  cuda_address x, w, target, temperature;
  cuda_address nll[RANKS_MAX], lse[RANKS_MAX], entropy[RANKS_MAX], stats[RANKS_MAX];
};

static cuda_address poisoned(const float *from, int64_t tokens, int64_t width) {
  return gpu_upload(from, (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
}

static void poison_outputs(struct scene *s) {
  const int64_t m = s->data.c->tokens;
  const size_t count = (size_t)m + 2 * FORWARD_GUARD;
  struct forward_outputs fresh;
  if (forward_outputs_make(m, &fresh)) exit(4);
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require(driver->cuMemcpyHtoD(s->nll[r], fresh.nll, count * 4), "poison");
    gpu_require(driver->cuMemcpyHtoD(s->lse[r], fresh.lse, count * 4), "poison");
    gpu_require(driver->cuMemcpyHtoD(s->entropy[r], fresh.entropy, count * 4), "poison");
    gpu_require(driver->cuMemcpyHtoD(s->stats[r], fresh.stats, count * 16), "poison");
  }
  forward_outputs_free(&fresh);
}

/* What f64 says takes its time: once a case, for the seed of the cases. */
static const struct forward_data *cached(const struct forward_case *c) {
  static struct forward_data known[64];
  size_t i = 0;
  while (known[i].c != NULL && known[i].c != c)
    i++;
  if (known[i].c == NULL && forward_data_make(c, CASE_SEED, &known[i])) exit(4);
  return &known[i];
}

static void open_scene(const struct forward_case *c, enum team_cut cut, uint64_t seed,
                       weft_comm **comms, int64_t ranks, struct scene *s) {
  memset(s, 0, sizeof *s);
  s->ranks = ranks;
  s->comms = comms;
  struct forward_outputs fresh;
  s->borrows_data = seed == CASE_SEED;
  if (s->borrows_data)
    s->data = *cached(c);
  else if (forward_data_make(c, seed, &s->data))
    exit(4);
  if (forward_outputs_make(c->tokens, &fresh)) exit(4);
  s->x = gpu_upload(s->data.x, s->data.x_bytes);
  s->w = gpu_upload(s->data.w, s->data.w_bytes);
  s->target = gpu_upload(s->data.target, s->data.target_bytes);
  if (c->temperature_ptr) s->temperature = gpu_upload(&c->temperature, 4);
  size_t offset[RANKS_MAX];
  gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < ranks; r++) {
    const weft_ce_config config = team_config(c, cut, ranks, r, &offset[r]);
    gpu_require_status(weft_ce_plan_create(comms[r], &config, &s->plan[r]), "ce_plan_create");
  }
  gpu_require_status(weft_group_end(), c->name);
  for (int64_t r = 0; r < ranks; r++) {
    const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
    weft_ce_args *a = &s->args[r];
    gpu_require_status(weft_comm_stream_get(comms[r], &s->stream[r]), "comm_stream_get");
    s->nll[r] = poisoned(fresh.nll, c->tokens, 1);
    s->lse[r] = poisoned(fresh.lse, c->tokens, 1);
    s->entropy[r] = poisoned(fresh.entropy, c->tokens, 1);
    s->stats[r] = poisoned(fresh.stats, c->tokens, 4);
    *a = defaults;
    a->tokens = c->tokens;
    a->x = pointer(s->x);
    a->x_stride = c->x_extra ? c->hidden + c->x_extra : 0;
    a->w = pointer(s->w + offset[r]);
    a->w_stride = c->w_extra ? c->hidden + c->w_extra : 0;
    a->target = pointer(s->target);
    if (c->temperature != 0) a->temperature = c->temperature;
    if (c->temperature_ptr) {
      a->temperature_ptr = (const float *)pointer(s->temperature);
      a->temperature = 1.0f;
    }
    a->nll = (float *)pointer(s->nll[r] + FORWARD_GUARD * 4);
    a->lse = (float *)pointer(s->lse[r] + FORWARD_GUARD * 4);
    if (c->entropy) a->entropy = (float *)pointer(s->entropy[r] + FORWARD_GUARD * 4);
    a->stats = (float *)pointer(s->stats[r] + FORWARD_GUARD * 16);
  }
  forward_outputs_free(&fresh);
}

static void close_scene(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++) {
    gpu_require_status(weft_ce_plan_destroy(s->plan[r]), "ce_plan_destroy");
    gpu_free(s->nll[r]);
    gpu_free(s->lse[r]);
    gpu_free(s->entropy[r]);
    gpu_free(s->stats[r]);
  }
  gpu_free(s->x);
  gpu_free(s->w);
  gpu_free(s->target);
  gpu_free(s->temperature);
  if (!s->borrows_data) forward_data_free(&s->data);
}

static void run_rank(struct scene *s, int64_t r) {
  if (weft_ce_forward(s->plan[r], &s->args[r], NULL) != WEFT_OK)
    check(0, s->data.c->name, weft_last_error());
}

static void reset(weft_comm **comms, int64_t ranks) {
  gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < ranks; r++)
    gpu_require_status(weft_comm_reset(comms[r]), "comm_reset");
  gpu_require_status(weft_group_end(), "comm_reset");
}

static void run(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++)
    run_rank(s, r);
}

static void synchronize(struct scene *s) {
  for (int64_t r = 0; r < s->ranks; r++)
    gpu_require_status(weft_memory_synchronize(gpu_of(s->comms[r]), s->stream[r]), s->data.c->name);
}

static void fetch(struct scene *s, int64_t r, struct forward_outputs *got) {
  const size_t count = (size_t)s->data.c->tokens + 2 * FORWARD_GUARD;
  gpu_download(got->nll, s->nll[r], count * 4);
  gpu_download(got->lse, s->lse[r], count * 4);
  gpu_download(got->entropy, s->entropy[r], count * 4);
  gpu_download(got->stats, s->stats[r], count * 16);
}

static int same_bits(const struct forward_outputs *a, const struct forward_outputs *b, int64_t m) {
  const size_t count = (size_t)m + 2 * FORWARD_GUARD;
  return !memcmp(a->nll, b->nll, count * 4) && !memcmp(a->lse, b->lse, count * 4) &&
         !memcmp(a->entropy, b->entropy, count * 4) && !memcmp(a->stats, b->stats, count * 16);
}

/* What the ranks have after a run: rank 0's against f64, the others' bits against rank 0's. */
static int is_right(struct scene *s, struct forward_outputs *first, char *why, size_t room) {
  struct forward_outputs got;
  int right = 1;
  if (forward_outputs_make(s->data.c->tokens, &got)) exit(4);
  synchronize(s);
  fetch(s, 0, first);
  if (forward_compare(&s->data, first, why, room)) right = 0;
  for (int64_t r = 1; r < s->ranks && right; r++) {
    fetch(s, r, &got);
    if (same_bits(first, &got, s->data.c->tokens)) continue;
    snprintf(why, room, "rank %lld has other bits than rank 0", (long long)r);
    right = 0;
  }
  forward_outputs_free(&got);
  return right;
}

static void test_case(const struct forward_case *c, enum team_cut cut, weft_comm **comms,
                      int64_t ranks, int repeats) {
  struct scene s;
  struct forward_outputs first, again;
  char why[700] = "", what[200];
  const int before = failed;
  snprintf(what, sizeof what, "TP%lld, cut %d, %s", (long long)ranks, (int)cut, c->name);
  open_scene(c, cut, CASE_SEED, comms, ranks, &s);
  if (forward_outputs_make(c->tokens, &first) || forward_outputs_make(c->tokens, &again)) exit(4);
  run(&s);
  check(is_right(&s, &first, why, sizeof why), what, why);
  int equal = 1;
  for (int i = 1; i < repeats && failed == before; i++) {
    run(&s);
    equal &= is_right(&s, &again, why, sizeof why) && same_bits(&first, &again, c->tokens);
  }
  check(equal, what, "other bits in another run");
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  gpu_require_status(weft_comm_async_error(comms[0], &found), "comm_async_error");
  check(found.status == (int32_t)(s.data.bad ? WEFT_ERR_TARGET : WEFT_OK), what, found.message);
  if (found.status != (int32_t)WEFT_OK) reset(comms, ranks);
  forward_outputs_free(&first);
  forward_outputs_free(&again);
  close_scene(&s);
}

#define BF16 .dtype = WEFT_BF16, .target_dtype = WEFT_I64
static const struct forward_case plain = {"plain", .tokens = 700, .hidden = 64,     .vocab = 3000,
                                          BF16,    .entropy = 1,  .ignore_every = 9};
static const struct forward_case large = {"4097 tokens", .tokens = 4097, .hidden = 72,
                                          .vocab = 1009, BF16,           .entropy = 1};

/* Each rank's launches captured into a graph of its own; replayed with other inputs. */
static void test_graph(weft_comm **comms, int64_t ranks) {
  struct scene s;
  struct forward_outputs got;
  struct gpu_graph graphs[RANKS_MAX];
  cuda_stream stream[RANKS_MAX];
  open_scene(&plain, TEAM_EVEN, 1, comms, ranks, &s);
  if (forward_outputs_make(plain.tokens, &got)) exit(4);
  for (int64_t r = 0; r < ranks; r++) {
    gpu_require(driver->cuStreamCreate(&stream[r], GPU_NON_BLOCKING), "cuStreamCreate");
    gpu_graph_begin(stream[r]);
    gpu_require_status(weft_ce_forward(s.plan[r], &s.args[r], stream[r]), "captured");
    graphs[r] = gpu_graph_end(stream[r]);
  }
  for (uint64_t seed = 2; seed < 7; seed++) {
    char why[700] = "";
    forward_data_free(&s.data);
    if (forward_data_make(&plain, seed, &s.data)) exit(4);
    gpu_require(driver->cuMemcpyHtoD(s.x, s.data.x, s.data.x_bytes), "cuMemcpyHtoD");
    gpu_require(driver->cuMemcpyHtoD(s.w, s.data.w, s.data.w_bytes), "cuMemcpyHtoD");
    gpu_require(driver->cuMemcpyHtoD(s.target, s.data.target, s.data.target_bytes), "cuMemcpyHtoD");
    poison_outputs(&s);
    for (int i = 0; i < 4; i++)
      for (int64_t r = 0; r < ranks; r++)
        gpu_graph_launch(graphs[r], stream[r]);
    /* A call that is not captured takes its place in the chain, behind the replays. */
    run(&s);
    check(is_right(&s, &got, why, sizeof why), "graph replay", why);
  }
  for (int64_t r = 0; r < ranks; r++) {
    gpu_require(driver->cuStreamSynchronize(stream[r]), "graph");
    gpu_graph_free(graphs[r]);
    gpu_require(driver->cuStreamDestroy(stream[r]), "cuStreamDestroy");
  }
  forward_outputs_free(&got);
  close_scene(&s);
}

/* Ranks come one after the other, the gap growing from nothing to a few milliseconds. */
static void test_staggered(weft_comm **comms, int64_t ranks, int rounds) {
  struct scene s;
  struct forward_outputs first, got;
  char why[700] = "";
  int right = 1;
  open_scene(&plain, TEAM_UNEVEN, 4, comms, ranks, &s);
  if (forward_outputs_make(plain.tokens, &got) || forward_outputs_make(plain.tokens, &first))
    exit(4);
  run(&s);
  right &= is_right(&s, &first, why, sizeof why);
  for (int i = 0; i < rounds && right; i++) {
    for (int64_t r = 0; r < ranks; r++) {
      run_rank(&s, (r * 7 + i) % ranks);
      if (i % 4 == 0) usleep((unsigned)(i * 37 % 5000) / (unsigned)ranks);
    }
    if (i % 8 != 7) continue; /* calls queue up behind each other in between */
    right &= is_right(&s, &got, why, sizeof why);
    if (right && !same_bits(&first, &got, plain.tokens)) {
      snprintf(why, sizeof why, "other bits in round %d", i);
      right = 0;
    }
  }
  check(right, "staggered", why);
  forward_outputs_free(&first);
  forward_outputs_free(&got);
  close_scene(&s);
}

/* Two plans of one team, in turn, and with sizes that differ from call to call. */
static void test_two_plans(weft_comm **comms, int64_t ranks) {
  struct scene s[2];
  struct forward_outputs got;
  char why[700] = "";
  open_scene(&plain, TEAM_EVEN, 3, comms, ranks, &s[0]);
  open_scene(&large, TEAM_UNEVEN, 3, comms, ranks, &s[1]);
  for (int round = 0; round < 10; round++)
    for (int i = 0; i < 2; i++) {
      const int64_t all = s[i].data.c->tokens;
      for (int64_t r = 0; r < ranks; r++)
        s[i].args[r].tokens = round % 3 == 0 ? 0 : round % 3 == 1 ? all / 2 + round : all;
      run(&s[i]);
    }
  for (int i = 0; i < 2; i++) {
    for (int64_t r = 0; r < ranks; r++)
      s[i].args[r].tokens = s[i].data.c->tokens;
    run(&s[i]);
  }
  for (int i = 0; i < 2; i++) {
    if (forward_outputs_make(s[i].data.c->tokens, &got)) exit(4);
    check(is_right(&s[i], &got, why, sizeof why), "two plans", why);
    forward_outputs_free(&got);
  }
  close_scene(&s[0]);
  close_scene(&s[1]);
}

/* Four teams of four strided ranks of a world of 16, each staggered, all at once. */
static void test_four_teams(weft_comm **world) {
  enum { TEAMS = 4, EACH = 4 };
  weft_comm *team[TEAMS][EACH];
  static struct scene s[TEAMS];
  gpu_require_status(weft_group_start(), "group_start");
  for (int t = 0; t < TEAMS; t++)
    for (int r = 0; r < EACH; r++)
      gpu_require_status(weft_comm_split_stride(world[t + TEAMS * r], t, TEAMS, EACH, &team[t][r]),
                         "split");
  gpu_require_status(weft_group_end(), "split");
  for (int t = 0; t < TEAMS; t++)
    open_scene(&plain, t % 2 ? TEAM_UNEVEN : TEAM_EVEN, 20 + (uint64_t)t, team[t], EACH, &s[t]);
  for (int r = 0; r < EACH; r++) {
    for (int t = 0; t < TEAMS; t++)
      run_rank(&s[t], (r + t) % EACH);
    usleep(500000 / EACH);
  }
  for (int t = 0; t < TEAMS; t++) {
    struct forward_outputs got;
    char why[700] = "";
    if (forward_outputs_make(plain.tokens, &got)) exit(4);
    check(is_right(&s[t], &got, why, sizeof why), "four teams", why);
    forward_outputs_free(&got);
    close_scene(&s[t]);
    close_world(EACH, team[t]);
  }
}

static void expect_error(struct scene *s, const char *what, weft_status status, int64_t peer,
                         double least, double most, double began) {
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  char why[400];
  for (int64_t r = 0; r < s->ranks; r++)
    gpu_require_status(weft_memory_synchronize(gpu_of(s->comms[r]), s->stream[r]), what);
  const double took = seconds() - began;
  gpu_require_status(weft_comm_async_error(s->comms[0], &found), "comm_async_error");
  snprintf(why, sizeof why, "status %d peer %lld after %.2f s: %s", found.status,
           (long long)found.peer, took, found.message);
  check(found.status == (int32_t)status && found.peer == peer && took >= least && took <= most,
        what, why);
  check(weft_ce_forward(s->plan[0], &s->args[0], NULL) == status, what,
        "a call of a stopped team is not refused");
}

/* After a reset by one thread the team is right again. */
static void recover(struct scene *s, const char *what) {
  struct forward_outputs got;
  char why[700] = "";
  if (forward_outputs_make(s->data.c->tokens, &got)) exit(4);
  for (int64_t r = 0; r < s->ranks; r++)
    s->args[r].tokens = s->data.c->tokens;
  reset(s->comms, s->ranks);
  poison_outputs(s);
  for (int i = 0; i < 3; i++)
    run(s);
  check(is_right(s, &got, why, sizeof why), what, why);
  forward_outputs_free(&got);
}

static void test_faults(int64_t ranks) {
  weft_comm *comms[RANKS_MAX];
  struct scene s;
  const int64_t last = ranks - 1;
  open_world(ranks, 600, comms);
  open_scene(&plain, TEAM_EVEN, 9, comms, ranks, &s);

  double began = seconds();
  for (int64_t r = 0; r < last; r++)
    run_rank(&s, r);
  expect_error(&s, "a rank is missing", WEFT_ERR_TIMEOUT, last, 0.55, 3.0, began);
  recover(&s, "after a rank was missing");

  began = seconds();
  s.args[last].tokens -= 200;
  run(&s);
  expect_error(&s, "other tokens", WEFT_ERR_MISMATCH, last, 0.0, 0.5, began);
  recover(&s, "after other tokens");
  s.args[last].tokens = 0;
  began = seconds();
  run(&s);
  expect_error(&s, "no tokens on one rank", WEFT_ERR_MISMATCH, last, 0.0, 0.5, began);
  recover(&s, "after no tokens on one rank");

  began = seconds();
  for (int64_t r = 0; r < last; r++)
    run_rank(&s, r);
  usleep(50000);
  gpu_require_status(weft_comm_abort(comms[last]), "comm_abort");
  expect_error(&s, "abort", WEFT_ERR_ABORTED, -1, 0.0, 0.5, began);
  recover(&s, "after an abort");

  for (int64_t r = 0; r < ranks; r++) { /* later than a call takes, earlier than the timeout */
    run_rank(&s, r);
    usleep(r == 0 ? 300000 : 0);
  }
  struct forward_outputs got;
  char why[700] = "";
  if (forward_outputs_make(plain.tokens, &got)) exit(4);
  check(is_right(&s, &got, why, sizeof why), "a late rank", why);
  forward_outputs_free(&got);
  close_scene(&s);
  close_world(ranks, comms);
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
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* one hardware queue a rank */
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  static const int64_t sizes[] = {2, 4, 8, 16};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int64_t ranks = sizes[i];
    const double began = seconds();
    weft_comm *comms[RANKS_MAX];
    open_world(ranks, 3000, comms);
    const int before = failed;
    for (int cut = 0; cut < TEAM_CUTS && failed < before + 4; cut++) {
      for (size_t c = 0; c < forward_toy_case_count; c++)
        test_case(&forward_toy_cases[c], (enum team_cut)cut, comms, ranks, 5);
      for (size_t c = 0; c < forward_small_case_count; c++)
        if (!quick || c % 3 == (size_t)cut)
          test_case(&forward_small_cases[c], (enum team_cut)cut, comms, ranks, 2);
    }
    if (failed >= before + 4) continue; /* what follows would only wait for its timeouts */
    test_case(&large, TEAM_EVEN, comms, ranks, 2);
    if (gpu_count == 1) test_graph(comms, ranks); /* its streams are of GPU 0 */
    test_staggered(comms, ranks, quick ? 100 : 400);
    test_two_plans(comms, ranks);
    if (ranks == 16) test_four_teams(comms);
    close_world(ranks, comms);
    test_faults(ranks);
    printf("TP%lld: %d passed, %d failed so far; %.1f s\n", (long long)ranks, passed, failed,
           seconds() - began);
    fflush(stdout);
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
