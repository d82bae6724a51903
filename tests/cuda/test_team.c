/* What the host does around a team of GPU ranks, on a driver that runs nothing: worlds and who they
 * are refused to, plans made by one thread in a group, calls that don't meet, error words that
 * become the team's error, abort and reset, and memory that all comes back. The fake driver is
 * found through LD_LIBRARY_PATH. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/ce.h"
#include "device/comm/peers.h"

enum { RANKS = 4, VOCAB = 1000 };

struct team {
  weft_comm *comm[RANKS];
  weft_ce_plan *plan[RANKS];
};

static long counted(const char *name) {
  long (*function)(void) = NULL;
  void *symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol == NULL) symbol = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  assert_non_null(symbol);
  memcpy(&function, &symbol, sizeof symbol);
  return function();
}

static weft_ce_config config_of(int64_t rank) {
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  c.max_tokens = 700;
  c.hidden = 64;
  c.vocab = VOCAB;
  c.vocab_start = rank * (VOCAB / RANKS);
  c.vocab_local = VOCAB / RANKS;
  c.dtype = WEFT_BF16;
  return c;
}

static weft_world_config world_of(int64_t ranks) {
  weft_world_config w = WEFT_WORLD_CONFIG_INIT;
  w.ranks = ranks;
  w.device = WEFT_DEVICE_CUDA;
  w.timeout_ms = 20000;
  return w;
}

static void open_team(struct team *t, int64_t arena) {
  weft_world_config world = world_of(RANKS);
  memset(t, 0, sizeof *t);
  world.arena_bytes = arena;
  assert_int_equal(weft_comm_create_inproc(&world, t->comm), WEFT_OK);
  assert_int_equal(weft_group_start(), WEFT_OK);
  for (int r = 0; r < RANKS; r++) {
    const weft_ce_config c = config_of(r); /* gone before the group ends */
    assert_int_equal(weft_ce_plan_create(t->comm[r], &c, &t->plan[r]), WEFT_OK);
    assert_null(t->plan[r]);
  }
  assert_int_equal(weft_group_end(), WEFT_OK);
  for (int r = 0; r < RANKS; r++)
    assert_non_null(t->plan[r]);
}

static void close_team(struct team *t) {
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(weft_ce_plan_destroy(t->plan[r]), WEFT_OK);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(weft_comm_destroy(t->comm[r]), WEFT_OK);
}

static weft_status forward(struct team *t, int rank, int64_t tokens) {
  static _Alignas(64) char memory[1 << 20]; /* nothing reads or writes it */
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = tokens;
  args.x = memory;
  args.w = memory;
  args.target = memory;
  return weft_ce_forward(t->plan[rank], &args, NULL);
}

static void test_plans(void **state) {
  (void)state;
  const long before = counted("fake_live");
  for (int with_arena = 0; with_arena < 2; with_arena++) {
    struct team t;
    open_team(&t, with_arena ? 1 << 20 : 0);
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT, asked = WEFT_CE_PLAN_INFO_INIT;
    assert_int_equal(weft_ce_plan_info_get(t.plan[1], &info), WEFT_OK);
    assert_int_equal(info.units, 32); /* of 132 SMs, in pairs */
    weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
    machine.arch = "sm90";
    machine.units = 32;
    machine.ranks = RANKS;
    const weft_ce_config c = config_of(1);
    assert_int_equal(weft_ce_plan_query(&c, &machine, &asked), WEFT_OK);
    assert_int_equal(asked.symmetric_bytes, info.symmetric_bytes);
    assert_int_equal(asked.local_bytes, info.local_bytes);
    assert_true(info.symmetric_bytes >= 2 * 700 * 16);
    /* Every rank's table names every rank's block, whose words of signals are 0. */
    for (int r = 0; r < RANKS; r++) {
      const weft__sm90_ce *s = (const weft__sm90_ce *)t.plan[r]->state;
      const uint64_t *bases = (const uint64_t *)(uintptr_t)s->team.view.bases.a;
      for (int p = 0; p < RANKS; p++) {
        const weft__sm90_ce *peer = (const weft__sm90_ce *)t.plan[p]->state;
        assert_int_equal(bases[p], peer->team.block);
      }
      const unsigned char *block = (const unsigned char *)(uintptr_t)s->team.block;
      for (int64_t i = 0; i < s->layout.signal_bytes; i++)
        assert_int_equal(block[i], 0);
      assert_int_equal(*(const uint64_t *)(uintptr_t)s->team.epoch, 0);
    }
    const long launched = counted("fake_launches");
    for (int r = 0; r < RANKS; r++) /* one thread, no group: nothing meets */
      assert_int_equal(forward(&t, r, 700), WEFT_OK);
    assert_int_equal(forward(&t, 2, 0), WEFT_OK); /* a call without tokens takes part too */
    assert_int_equal(counted("fake_launches"), launched + RANKS + 1);
    close_team(&t);
    assert_int_equal(counted("fake_live"), before);
  }
}

static void test_small_arena(void **state) {
  (void)state;
  weft_world_config world = world_of(RANKS);
  weft_comm *comm[RANKS];
  weft_ce_plan *plan[RANKS];
  const long before = counted("fake_live");
  world.arena_bytes = 4096;
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_OK);
  assert_int_equal(weft_group_start(), WEFT_OK);
  for (int r = 0; r < RANKS; r++) {
    const weft_ce_config c = config_of(r);
    assert_int_equal(weft_ce_plan_create(comm[r], &c, &plan[r]), WEFT_OK);
  }
  assert_int_equal(weft_group_end(), WEFT_ERR_MEMORY);
  assert_non_null(strstr(weft_last_error(), "arena"));
  for (int r = 0; r < RANKS; r++) {
    assert_null(plan[r]);
    assert_int_equal(weft_comm_destroy(comm[r]), WEFT_OK);
  }
  assert_int_equal(counted("fake_live"), before);
}

static void expect_error(weft_comm *comm, weft_status status, int64_t rank, int64_t peer,
                         const char *part) {
  weft_async_error e = WEFT_ASYNC_ERROR_INIT;
  assert_int_equal(weft_comm_async_error(comm, &e), WEFT_OK);
  assert_int_equal(e.status, status);
  assert_int_equal(e.rank, rank);
  assert_int_equal(e.peer, peer);
  assert_non_null(strstr(e.message, part));
}

/* Resets the team by one thread; signals and epochs are 0 afterwards. */
static void reset(struct team *t) {
  for (int r = 0; r < RANKS; r++) {
    const weft__sm90_ce *s = (const weft__sm90_ce *)t->plan[r]->state;
    memset((void *)(uintptr_t)s->team.block, 7, 16);
    memset((void *)(uintptr_t)s->team.epoch, 7, 8);
  }
  assert_int_equal(weft_group_start(), WEFT_OK);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(weft_comm_reset(t->comm[r]), WEFT_OK);
  assert_int_equal(weft_group_end(), WEFT_OK);
  for (int r = 0; r < RANKS; r++) {
    const weft__sm90_ce *s = (const weft__sm90_ce *)t->plan[r]->state;
    assert_int_equal(*t->comm[r]->gpu_word, 0);
    assert_int_equal(*(const uint64_t *)(uintptr_t)s->team.block, 0);
    assert_int_equal(*(const uint64_t *)(uintptr_t)s->team.epoch, 0);
    assert_int_equal(forward(t, r, 300), WEFT_OK);
  }
}

/* What a kernel writes into its word stops the team, with who waited for whom, and ends the waits
 * of the other ranks. */
static void test_errors(void **state) {
  (void)state;
  struct team t;
  open_team(&t, 1 << 20);
  expect_error(t.comm[0], WEFT_OK, 0, -1, "");
  *t.comm[2]->gpu_word = peer_error(PEER_ERROR_TIMEOUT, PEER_PHASE_STATISTICS, 3);
  assert_int_equal(forward(&t, 1, 700), WEFT_ERR_TIMEOUT);
  assert_non_null(
      strstr(weft_last_error(), "statistics exchange: rank 2 of 4 waited 20000 ms for rank 3"));
  expect_error(t.comm[0], WEFT_ERR_TIMEOUT, 2, 3, "rank 2 of 4 waited 20000 ms for rank 3");
  for (int r = 0; r < RANKS; r++)
    assert_int_not_equal(*t.comm[r]->gpu_word, 0);
  assert_int_equal(weft_comm_barrier(t.comm[0]), WEFT_ERR_TIMEOUT);
  reset(&t);
  expect_error(t.comm[3], WEFT_OK, 0, -1, "");
  *t.comm[0]->gpu_word = peer_error(PEER_ERROR_DIFFERS, PEER_PHASE_STATISTICS, 1);
  expect_error(t.comm[3], WEFT_ERR_MISMATCH, 0, 1, "rank 0 and rank 1");
  assert_int_equal(forward(&t, 1, 700), WEFT_ERR_MISMATCH);
  reset(&t);
  /* Bad targets that another rank's kernel found before a reset are not told after it. */
  ((weft__sm90_ce *)t.plan[3]->state)->host_errors->bad_targets = 5;
  reset(&t);
  expect_error(t.comm[3], WEFT_OK, 0, -1, "");
  ((weft__sm90_ce *)t.plan[3]->state)->host_errors->bad_targets = 7;
  expect_error(t.comm[3], WEFT_ERR_TARGET, 3, -1, "targets are outside");
  reset(&t);
  assert_int_equal(weft_comm_abort(t.comm[1]), WEFT_OK);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(peer_error_kind(*t.comm[r]->gpu_word), PEER_ERROR_ABORTED);
  assert_int_equal(forward(&t, 0, 700), WEFT_ERR_ABORTED);
  expect_error(t.comm[3], WEFT_ERR_ABORTED, 1, -1, "rank 1 has aborted");
  reset(&t);
  close_team(&t);
}

/* Sub-teams have words of their own, on the same arenas. */
static void test_sub_teams(void **state) {
  (void)state;
  weft_world_config world = world_of(RANKS);
  weft_comm *comm[RANKS], *pair[RANKS] = {NULL};
  const long before = counted("fake_live");
  world.arena_bytes = 1 << 20;
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_OK);
  assert_int_equal(weft_group_start(), WEFT_OK);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(weft_comm_split_stride(comm[r], r % 2, 2, 2, &pair[r]), WEFT_OK);
  assert_int_equal(weft_group_end(), WEFT_OK);
  for (int r = 0; r < RANKS; r++) {
    assert_non_null(pair[r]);
    assert_int_equal(pair[r]->info.rank, r / 2);
    assert_ptr_equal(pair[r]->gpu_rank, comm[r]->gpu_rank);
    assert_ptr_not_equal(pair[r]->gpu_word, comm[r]->gpu_word);
  }
  assert_int_equal(weft_comm_abort(pair[0]), WEFT_OK);
  assert_int_not_equal(*pair[2]->gpu_word, 0);
  assert_int_equal(*pair[1]->gpu_word, 0);
  assert_int_equal(*comm[2]->gpu_word, 0);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(weft_comm_destroy(pair[r]), WEFT_OK);
    assert_int_equal(weft_comm_destroy(comm[r]), WEFT_OK);
  }
  assert_int_equal(counted("fake_live"), before);
}

static void test_refused(void **state) {
  (void)state;
  weft_comm *comm[80];
  weft_world_config world = world_of(9);
  const long before = counted("fake_live");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_ERR_UNSUPPORTED);
  assert_non_null(strstr(weft_last_error(), "CUDA_DEVICE_MAX_CONNECTIONS to 9"));
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "80", 1);
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_OK);
  for (int r = 0; r < 9; r++)
    assert_int_equal(weft_comm_destroy(comm[r]), WEFT_OK);
  world.ranks = 67;
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_ERR_UNSUPPORTED);
  assert_non_null(strstr(weft_last_error(), "at most 66"));
  const int32_t gpus[] = {0, 1};
  world = world_of(2);
  world.gpus = gpus;
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_ERR_UNSUPPORTED);
  setenv("FAKE_GPUS", "2", 1);
  setenv("FAKE_NO_PEERS", "1", 1);
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_ERR_UNSUPPORTED);
  assert_non_null(strstr(weft_last_error(), "peer access"));
  unsetenv("FAKE_NO_PEERS");
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_OK);
  assert_int_equal(comm[0]->info.gpu, 0);
  assert_int_equal(comm[1]->info.gpu, 1);
  assert_int_equal(weft__gpu_rank_sms(comm[1]->gpu_rank), 132);
  for (int r = 0; r < 2; r++)
    assert_int_equal(weft_comm_destroy(comm[r]), WEFT_OK);
  unsetenv("FAKE_GPUS");
  assert_int_equal(counted("fake_live"), before);
  assert_int_equal(weft_group_end(), WEFT_ERR_ARGUMENT);
}

/* Ranks as threads, which need no group: plans, calls and an abort meanwhile. */
struct thread_rank {
  weft_comm *comm;
  int rank;
  weft_status status;
};

static void *thread_body(void *argument) {
  struct thread_rank *t = (struct thread_rank *)argument;
  static _Alignas(64) char memory[1 << 20]; /* nothing reads or writes it */
  const weft_ce_config c = config_of(t->rank);
  weft_ce_plan *plan = NULL;
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = 100;
  args.x = args.w = args.target = memory;
  t->status = weft_ce_plan_create(t->comm, &c, &plan);
  for (int i = 0; i < 200 && t->status == WEFT_OK; i++)
    t->status = weft_ce_forward(plan, &args, NULL);
  if (t->status == WEFT_OK) t->status = weft_comm_barrier(t->comm);
  if (t->rank == 3) weft_comm_abort(t->comm);
  for (int i = 0; i < 1000 && t->status == WEFT_OK; i++)
    t->status = weft_ce_forward(plan, &args, NULL);
  while (t->status == WEFT_OK) /* until the abort is seen */
    t->status = weft_ce_forward(plan, &args, NULL);
  const weft_status reset = weft_comm_reset(t->comm);
  if (t->status == WEFT_ERR_ABORTED) t->status = reset;
  if (t->status == WEFT_OK) t->status = weft_ce_forward(plan, &args, NULL);
  if (t->status == WEFT_OK) t->status = weft_comm_barrier(t->comm);
  weft_ce_plan_destroy(plan);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  const weft_world_config world = world_of(RANKS);
  weft_comm *comm[RANKS];
  pthread_t threads[RANKS];
  struct thread_rank ranks[RANKS];
  const long before = counted("fake_live");
  assert_int_equal(weft_comm_create_inproc(&world, comm), WEFT_OK);
  for (int r = 0; r < RANKS; r++) {
    ranks[r] = (struct thread_rank){comm[r], r, WEFT_OK};
    assert_int_equal(pthread_create(&threads[r], NULL, thread_body, &ranks[r]), 0);
  }
  for (int r = 0; r < RANKS; r++)
    pthread_join(threads[r], NULL);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(ranks[r].status, WEFT_OK);
    assert_int_equal(weft_comm_destroy(comm[r]), WEFT_OK);
  }
  assert_int_equal(counted("fake_live"), before);
}

/* Workspace of backward, local and symmetric together, by a query alone: in no cell more than what
 * linkedin/Liger-Kernel's pull request 1458 reports for its kernels on a B300; least_bytes is the
 * least; and the waves are as few as the workspace holds. */
static void test_memory(void **state) {
  (void)state;
  static const struct {
    int64_t tokens, hidden, vocab;
    double mib[5]; /* TP 1, 2, 4, 8, 16 */
  } cells[] = {{4096, 4096, 131072, {1810.4, 1202.42, 898.46, 746.53, 682.67}},
               {8192, 4096, 131072, {2004.79, 1300.81, 948.84, 772.91, 709.06}},
               {16384, 4096, 131072, {2393.56, 1497.58, 1049.61, 825.68, 761.83}},
               {8192, 2048, 151936, {1975.79, 1286.31, 941.84, 769.41, 695.56}},
               {8192, 5120, 202048, {2655.29, 1626.31, 1111.84, 854.41, 756.06}},
               {8192, 7168, 129280, {2278.79, 1437.81, 1017.34, 807.41, 744.56}}};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    for (int k = 0; k < 5; k++) {
      weft_ce_config c = WEFT_CE_CONFIG_INIT;
      weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
      weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT, least = WEFT_CE_PLAN_INFO_INIT;
      machine.arch = "sm90";
      machine.units = 132;
      machine.ranks = (int64_t)1 << k;
      c.max_tokens = cells[i].tokens;
      c.hidden = cells[i].hidden;
      c.vocab = cells[i].vocab;
      c.vocab_local = (c.vocab + machine.ranks - 1) / machine.ranks;
      c.dtype = WEFT_BF16;
      c.wants = WEFT_CE_DX | WEFT_CE_DW;
      assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
      assert_true((double)(info.local_bytes + info.symmetric_bytes) <= cells[i].mib[k] * 1048576.0);
      c.workspace_budget = info.least_bytes;
      assert_int_equal(weft_ce_plan_query(&c, &machine, &least), WEFT_OK);
      assert_true(least.local_bytes + least.symmetric_bytes <= info.least_bytes);
      assert_true(least.waves >= info.waves);
      c.workspace_budget = info.least_bytes - 1;
      assert_int_equal(weft_ce_plan_query(&c, &machine, &least), WEFT_ERR_WORKSPACE);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_plans),   cmocka_unit_test(test_small_arena),
      cmocka_unit_test(test_errors),  cmocka_unit_test(test_sub_teams),
      cmocka_unit_test(test_memory),  cmocka_unit_test(test_threads),
      cmocka_unit_test(test_refused),
  };
  setenv("WEFT_FAKE_CUDA", "works", 1);
  if (weft__device_images.count == 0) {
    printf("skipped: this build has no code for GPUs\n");
    return 77;
  }
  return cmocka_run_group_tests_name("cuda/team", tests, NULL, NULL);
}
