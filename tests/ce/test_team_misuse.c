/* Ranks that disagree, or of which one is wrong: every rank gets a status in no time, the right one
 * gets PEER or MISMATCH, and the team works afterwards. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "law.h"
#include "support/ranks.h"

enum { RANKS = 4, M = 8, H = 4, V = 12, SHARE = V / RANKS };

typedef struct member {
  float x[M * H], w[V * H], g[3][M], stats[M * 4], nll[M], lse[M], entropy[M], dx[M * H], dw[V * H];
  int64_t target[M];
  weft_ce_config config;
  weft_ce_args args;
  int phase; /* 0 forward, 1 backward, 2 step */
  void *stream;
  bool no_out; /* plan_create gets no place for the plan */
  weft_status status;
  char error[512];
} member;

typedef struct team {
  member members[RANKS];
} team;

typedef weft_status (*call_fn)(weft_ce_plan *, const weft_ce_args *, void *);
static const call_fn calls[] = {weft_ce_forward, weft_ce_backward, weft_ce_step};

static void set_up(team *t) {
  memset(t, 0, sizeof *t);
  for (int r = 0; r < RANKS; r++) {
    member *d = &t->members[r];
    for (int i = 0; i < M * H; i++)
      d->x[i] = (float)(i % 7) / 7;
    for (int i = 0; i < SHARE * H; i++)
      d->w[i] = (float)((i + r) % 5);
    for (int i = 0; i < M; i++) {
      d->target[i] = i;
      d->g[0][i] = d->g[1][i] = d->g[2][i] = 1;
    }
    d->config = (weft_ce_config)WEFT_CE_CONFIG_INIT;
    d->config.max_tokens = M;
    d->config.hidden = H;
    d->config.vocab = V;
    d->config.vocab_start = r * SHARE;
    d->config.vocab_local = SHARE;
    d->config.wants = WEFT_CE_ENTROPY | WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
    d->config.threads = 1;
    weft_ce_args a = WEFT_CE_ARGS_INIT;
    a.tokens = M;
    a.x = d->x;
    a.w = d->w;
    a.target = d->target;
    a.g_nll = d->g[0];
    a.g_entropy = d->g[1];
    a.g_lse = d->g[2];
    a.stats = d->stats;
    a.nll = d->nll;
    a.lse = d->lse;
    a.entropy = d->entropy;
    a.dx = d->dx;
    a.dw = d->dw;
    d->args = a;
  }
}

static void note(member *d, weft_status status) {
  d->status = status;
  snprintf(d->error, sizeof d->error, "%s", weft_last_error());
}

/* ---- Plans ---- */

static weft_status create_rank(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  member *d = &t->members[rank];
  weft_ce_plan *plan = NULL, **out = d->no_out ? NULL : &plan;
  note(d, weft_ce_plan_create(comm, &d->config, out));
  if (plan != NULL) {
    weft_ce_plan_destroy(plan);
    return WEFT_OK;
  }
  /* the team is as good as new */
  team fresh;
  set_up(&fresh);
  const weft_ce_config c = fresh.members[rank].config;
  const weft_status again = weft_ce_plan_create(comm, &c, &plan);
  weft_ce_plan_destroy(plan);
  return again;
}

static void run_team(team *t, ranks_fn fn) {
  ranks_result results[RANKS];
  assert_int_equal(ranks_run_simple(RANKS, 1, 20000, fn, t, results), WEFT_OK);
  if (ranks_first_not(results, RANKS, WEFT_OK) >= 0) fail_msg("the team does not work afterwards");
}

static void expect_rank(const team *t, int rank, weft_status status, const char *name) {
  const member *d = &t->members[rank];
  if (d->status != status || strstr(d->error, name) == NULL)
    fail_msg("rank %d: status %s, expected %s naming \"%s\"; message: %s", rank,
             weft_status_string(d->status), weft_status_string(status), name, d->error);
}

/* Rank `bad` gets its own status, the others get PEER with its number and its reason. */
static void expect_peers(const team *t, int bad, weft_status status, const char *name) {
  char rank[32];
  snprintf(rank, sizeof rank, "rank %d", bad);
  for (int r = 0; r < RANKS; r++) {
    expect_rank(t, r, r == bad ? status : WEFT_ERR_PEER, name);
    if (r != bad) expect_rank(t, r, WEFT_ERR_PEER, rank);
  }
}

static void configs_that_differ(void **state) {
  (void)state;
  static team t;
#define DIFFER(field, other)                                                                       \
  for (int bad = 0; bad < RANKS; bad++) {                                                          \
    set_up(&t);                                                                                    \
    t.members[bad].config.field = other;                                                           \
    run_team(&t, create_rank);                                                                     \
    for (int r = 0; r < RANKS; r++)                                                                \
      expect_rank(&t, r, WEFT_ERR_MISMATCH, #field);                                               \
  }
  DIFFER(max_tokens, M + 1)
  DIFFER(hidden, H + 1)
  DIFFER(vocab, V - 1)
  DIFFER(ignore_index, 3)
  DIFFER(softcap, 2.0f)
  DIFFER(wants, WEFT_CE_DX)
  DIFFER(target_dtype, WEFT_I32)
  DIFFER(dx_mode, WEFT_DX_REDUCE_SCATTER)
  DIFFER(deterministic, 0)
  DIFFER(dtype, WEFT_BF16)
#undef DIFFER
  for (int r = 0; r < RANKS; r++)
    t.members[r].config.dtype = WEFT_BF16;
  t.members[2].config.dx_dtype = WEFT_F32;
  run_team(&t, create_rank);
  for (int r = 0; r < RANKS; r++)
    expect_rank(&t, r, WEFT_ERR_MISMATCH, "dx_dtype");
  t.members[2].config.dx_dtype = WEFT_DTYPE_DEFAULT;
  t.members[1].config.dw_dtype = WEFT_F32;
  run_team(&t, create_rank);
  for (int r = 0; r < RANKS; r++)
    expect_rank(&t, r, WEFT_ERR_MISMATCH, "dw_dtype");
}

static void ranges_that_do_not_fit(void **state) {
  (void)state;
  static const struct {
    int rank, start, local;
    const char *word;
  } bad[] = {{1, 2, 3, "overlap"}, {1, 4, 2, "gap"}, {0, 1, 2, "gap"},     {3, 9, 2, "end at"},
             {3, 8, 4, "overlap"}, {2, 6, 2, "gap"}, {0, 0, 4, "overlap"}, {2, 0, 3, "overlap"},
             {0, 0, 2, "gap"},     {3, 10, 2, "gap"}};
  static team t;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    set_up(&t);
    t.members[bad[i].rank].config.vocab_start = bad[i].start;
    t.members[bad[i].rank].config.vocab_local = bad[i].local;
    run_team(&t, create_rank);
    for (int r = 0; r < RANKS; r++)
      expect_rank(&t, r, WEFT_ERR_MISMATCH, bad[i].word);
  }
}

static void one_rank_has_a_bad_config(void **state) {
  (void)state;
  static team t;
  for (int bad = 0; bad < RANKS; bad++) {
    set_up(&t);
    t.members[bad].config.hidden = -1;
    run_team(&t, create_rank);
    expect_peers(&t, bad, WEFT_ERR_ARGUMENT, "hidden");
    set_up(&t);
    t.members[bad].config.size = 3;
    run_team(&t, create_rank);
    expect_peers(&t, bad, WEFT_ERR_ARGUMENT, "size");
    set_up(&t);
    t.members[bad].config.workspace_budget = 100;
    run_team(&t, create_rank);
    expect_peers(&t, bad, WEFT_ERR_WORKSPACE, "workspace_budget");
    set_up(&t);
    t.members[bad].no_out = true;
    run_team(&t, create_rank);
    expect_peers(&t, bad, WEFT_ERR_ARGUMENT, "plan is NULL");
  }
}

/* ---- Calls ---- */

static weft_status call_rank(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  member *d = &t->members[rank];
  weft_ce_plan *plan = NULL;
  team fresh;
  weft_status status = weft_ce_plan_create(comm, &d->config, &plan);
  if (status != WEFT_OK) return status;
  const weft_ce_args *args = d->args.size == 1 ? NULL : &d->args;
  note(d, calls[d->phase](plan, args, d->stream));
  set_up(&fresh);
  status = weft_ce_step(plan, &fresh.members[rank].args, NULL);
  weft_comm_barrier(comm);
  weft_ce_plan_destroy(plan);
  return status;
}

static void calls_that_differ(void **state) {
  (void)state;
  static team t;
  float other = 2;
  for (int bad = 0; bad < RANKS; bad++)
    for (int phase = 0; phase < 3; phase++) {
#define DIFFER(what, name)                                                                         \
  set_up(&t);                                                                                      \
  for (int r = 0; r < RANKS; r++)                                                                  \
    t.members[r].phase = phase;                                                                    \
  what;                                                                                            \
  run_team(&t, call_rank);                                                                         \
  for (int r = 0; r < RANKS; r++)                                                                  \
    expect_rank(&t, r, WEFT_ERR_MISMATCH, name);
      DIFFER(t.members[bad].args.tokens = M - 1, "tokens")
      DIFFER(t.members[bad].args.temperature = 2, "temperature")
      DIFFER(t.members[bad].args.temperature_ptr = &other, "temperature")
      DIFFER(t.members[bad].args.dw_accumulate = 1, "dw_accumulate")
      DIFFER(t.members[bad].phase = (phase + 1) % 3, "ce_")
      if (phase == 0) continue;
      DIFFER(t.members[bad].args.g_nll = NULL, "gradients")
      DIFFER(t.members[bad].args.g_entropy = NULL, "gradients")
#undef DIFFER
    }
}

static void one_rank_passes_something_wrong(void **state) {
  (void)state;
  static team t;
  float zero = 0;
  for (int bad = 0; bad < RANKS; bad++)
    for (int phase = 0; phase < 3; phase++) {
#define WRONG(what, name)                                                                          \
  set_up(&t);                                                                                      \
  for (int r = 0; r < RANKS; r++)                                                                  \
    t.members[r].phase = phase;                                                                    \
  what;                                                                                            \
  run_team(&t, call_rank);                                                                         \
  expect_peers(&t, bad, WEFT_ERR_ARGUMENT, name);
      WRONG(t.members[bad].args.x = NULL, "args.x is NULL")
      WRONG(t.members[bad].args.w = NULL, "args.w is NULL")
      WRONG(t.members[bad].args.target = NULL, "args.target is NULL")
      WRONG(t.members[bad].args.tokens = -1, "tokens is -1")
      WRONG(t.members[bad].args.temperature = NAN, "temperature is nan")
      WRONG(t.members[bad].args.temperature_ptr = &zero, "temperature_ptr is 0")
      WRONG(t.members[bad].args.size = 1, "args is NULL")
      WRONG(t.members[bad].args.size = 2, "args.size is 2")
      WRONG(t.members[bad].stream = &t, "stream")
      if (phase == 0) continue;
      WRONG(t.members[bad].args.dx = NULL, "args.dx is NULL")
      WRONG(t.members[bad].args.dw = t.members[bad].dx, "overlaps")
#undef WRONG
    }
}

/* One target out of range: TARGET on all ranks, the rest is right, the team's error says so. */
static weft_status bad_target_rank(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  member *d = &t->members[rank];
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  weft_ce_plan *plan = NULL;
  weft_status status = weft_ce_plan_create(comm, &d->config, &plan);
  if (status != WEFT_OK) return status;
  note(d, weft_ce_step(plan, &d->args, NULL));
  weft_comm_barrier(comm);
  weft_comm_async_error(comm, &error);
  if (error.status != WEFT_ERR_TARGET || error.count < 1) status = WEFT_ERR_SYSTEM;
  d->target[5] = 5;
  if (weft_ce_step(plan, &d->args, NULL) != WEFT_OK) status = WEFT_ERR_SYSTEM;
  weft_comm_barrier(comm);
  weft_ce_plan_destroy(plan);
  return status;
}

static void a_target_out_of_range(void **state) {
  (void)state;
  static team t;
  set_up(&t);
  for (int r = 0; r < RANKS; r++)
    t.members[r].target[5] = V;
  run_team(&t, bad_target_rank);
  for (int r = 0; r < RANKS; r++) {
    expect_rank(&t, r, WEFT_ERR_TARGET, "token 5");
    expect_rank(&t, r, WEFT_ERR_TARGET, "11");
  }
}

/* ---- One plan, two threads ---- */

typedef struct contest {
  weft_ce_plan *plan;
  member *members;
  atomic_int busy, done;
} contest;

static weft_status contend(int64_t rank, weft_comm *comm, void *user) {
  (void)comm;
  contest *c = (contest *)user;
  if (rank == 0) {
    for (int i = 0; i < 2000; i++) {
      const weft_status status = weft_ce_step(c->plan, &c->members[0].args, NULL);
      if (status == WEFT_ERR_BUSY) continue;
      if (status != WEFT_OK) return status;
    }
    atomic_store(&c->done, 1);
    return WEFT_OK;
  }
  while (!atomic_load(&c->done)) {
    const weft_status status = weft_ce_forward(c->plan, &c->members[1].args, NULL);
    if (status == WEFT_ERR_BUSY) {
      if (strstr(weft_last_error(), "another call") == NULL) return WEFT_ERR_SYSTEM;
      atomic_fetch_add(&c->busy, 1);
    } else if (status != WEFT_OK) {
      return status;
    }
  }
  return WEFT_OK;
}

static void a_plan_in_use_is_busy(void **state) {
  (void)state;
  static team t;
  contest c = {.members = t.members};
  ranks_result results[2];
  set_up(&t);
  t.members[0].config.vocab_local = V;
  assert_int_equal(weft_ce_plan_create(NULL, &t.members[0].config, &c.plan), WEFT_OK);
  assert_int_equal(ranks_run_bare(2, contend, &c, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
  assert_int_equal(weft_ce_plan_destroy(c.plan), WEFT_OK);
}

/* A callback of the caller's exchange runs in the middle of a call: the plan can't go away there,
 * nor can its team. */
typedef struct meddler {
  weft_ce_plan *plan;
  weft_comm *comm;
  weft_status destroyed, nested, comm_destroyed;
} meddler;

static int gather_one(void *user, const void *send, void *recv, size_t bytes) {
  meddler *m = (meddler *)user;
  memcpy(recv, send, bytes);
  if (m->plan != NULL) {
    weft_ce_args a = WEFT_CE_ARGS_INIT;
    m->destroyed = weft_ce_plan_destroy(m->plan);
    m->nested = weft_ce_forward(m->plan, &a, NULL);
    m->comm_destroyed = weft_comm_destroy(m->comm);
  }
  return 0;
}

static int barrier_one(void *user) {
  (void)user;
  return 0;
}

static void a_plan_is_not_destroyed_in_its_call(void **state) {
  (void)state;
  static team t;
  meddler m = {NULL, NULL, WEFT_OK, WEFT_OK, WEFT_OK};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  weft_exchange exchange = WEFT_EXCHANGE_INIT;
  weft_ce_plan *plan = NULL;
  set_up(&t);
  t.members[0].config.vocab_local = V;
  exchange.user = &m;
  exchange.allgather = gather_one;
  exchange.barrier = barrier_one;
  assert_int_equal(weft_comm_create_external(&world, &exchange, &m.comm), WEFT_OK);
  assert_int_equal(weft_ce_plan_create(m.comm, &t.members[0].config, &plan), WEFT_OK);
  m.plan = plan;
  assert_int_equal(weft_ce_step(plan, &t.members[0].args, NULL), WEFT_OK);
  assert_int_equal(m.destroyed, WEFT_ERR_BUSY);
  assert_int_equal(m.nested, WEFT_ERR_BUSY);
  assert_int_equal(m.comm_destroyed, WEFT_ERR_BUSY);
  m.plan = NULL;
  assert_int_equal(weft_comm_destroy(m.comm), WEFT_ERR_BUSY);
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
  assert_int_equal(weft_comm_destroy(m.comm), WEFT_OK);
}

/* A rank that does not come is named, and so is the call that waited for it. */
static weft_status without_rank_2(int64_t rank, weft_comm *comm, void *user) {
  member *d = &((team *)user)->members[rank];
  weft_ce_plan *plan = NULL;
  weft_status status = weft_ce_plan_create(comm, &d->config, &plan);
  if (status != WEFT_OK) return status;
  if (rank == 2) ranks_sleep_ms(1500);
  d->status = rank == 2 ? WEFT_OK : weft_ce_step(plan, &d->args, NULL);
  snprintf(d->error, sizeof d->error, "%s", rank == 2 ? "" : weft_last_error());
  status = weft_comm_reset(comm);
  weft_ce_plan_destroy(plan);
  return status;
}

static void an_absent_rank(void **state) {
  (void)state;
  static team t;
  ranks_result results[RANKS];
  set_up(&t);
  assert_int_equal(ranks_run_simple(RANKS, 1, 1000, without_rank_2, &t, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  for (int r = 0; r < RANKS; r++) {
    if (r == 2) continue;
    assert_int_equal(t.members[r].status, WEFT_ERR_TIMEOUT);
    assert_non_null(strstr(t.members[r].error, "ce_step: rank 2 of 4 did not come within 1000 ms"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(configs_that_differ),
      cmocka_unit_test(ranges_that_do_not_fit),
      cmocka_unit_test(one_rank_has_a_bad_config),
      cmocka_unit_test(calls_that_differ),
      cmocka_unit_test(one_rank_passes_something_wrong),
      cmocka_unit_test(a_target_out_of_range),
      cmocka_unit_test(a_plan_in_use_is_busy),
      cmocka_unit_test(an_absent_rank),
      cmocka_unit_test(a_plan_is_not_destroyed_in_its_call),
  };
  return cmocka_run_group_tests_name("team misuse", tests, NULL, NULL);
}
