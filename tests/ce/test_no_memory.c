/* Every allocation of ce fails in turn: the rank that has none says MEMORY, its peers PEER, nothing
 * leaks, nothing hangs, and with memory all works again. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "law.h"
#include "support/ranks.h"

/* ---- An allocator that counts, and refuses one request ---- */

static atomic_llong live, asked;
static long long refused_from, refused_to; /* requests by number, from 1; 0: none */

static void *counting_alloc(void *user, size_t alignment, size_t bytes) {
  (void)user;
  const long long number = atomic_fetch_add(&asked, 1) + 1;
  if (number >= refused_from && number <= refused_to) return NULL;
  atomic_fetch_add(&live, 1);
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counting_free(void *user, void *pointer) {
  (void)user;
  atomic_fetch_sub(&live, 1);
  free(pointer);
}

static void count_from_here(long long from, long long to) {
  atomic_store(&asked, 0);
  refused_from = from;
  refused_to = to;
}

/* ---- One problem for all ---- */

typedef struct team {
  ce_case c;
  ce_problem p;
  weft_status created[8], called[8];
  char error[8][512];
} team;

static weft_status plan_and_call(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  const ce_case *c = &t->c;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = NULL;
  config.max_tokens = c->tokens;
  config.hidden = c->hidden;
  config.vocab = c->vocab;
  ce_range(c, rank, &config.vocab_start, &config.vocab_local);
  config.dtype = c->dtype;
  config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  config.threads = 2;
  t->created[rank] = weft_ce_plan_create(comm, &config, &plan);
  snprintf(t->error[rank], sizeof t->error[rank], "%s", weft_last_error());
  if (t->created[rank] != WEFT_OK) return plan == NULL ? WEFT_OK : WEFT_ERR_SYSTEM;
  matrix dx = matrix_new(c->dtype, c->tokens, c->hidden, 0, 0);
  matrix dw = matrix_new(c->dtype, config.vocab_local, c->hidden, 0, 0);
  matrix stats = matrix_new(WEFT_F32, c->tokens, 4, 0, 0);
  a.tokens = c->tokens;
  a.x = matrix_row(&t->p.x, 0);
  a.w = matrix_row(&t->p.w, config.vocab_start);
  a.target = matrix_row(&t->p.target, 0);
  a.g_nll = matrix_row(&t->p.up[0], 0);
  a.stats = matrix_row(&stats, 0);
  a.dx = matrix_row(&dx, 0);
  a.dw = matrix_row(&dw, 0);
  t->called[rank] = weft_ce_forward(plan, &a, NULL);
  if (t->called[rank] == WEFT_OK) t->called[rank] = weft_ce_backward(plan, &a, NULL);
  if (t->called[rank] == WEFT_OK) t->called[rank] = weft_ce_step(plan, &a, NULL);
  snprintf(t->error[rank], sizeof t->error[rank], "%s", weft_last_error());
  if (comm != NULL) weft_comm_barrier(comm);
  weft_ce_plan_destroy(plan);
  matrix_free(&dx);
  matrix_free(&dw);
  matrix_free(&stats);
  return WEFT_OK;
}

typedef struct world_run {
  team *t;
  weft_comm *const *comms;
} world_run;

static weft_status on_rank(int64_t rank, weft_comm *none, void *user) {
  (void)none;
  const world_run *w = (const world_run *)user;
  return plan_and_call(rank, w->comms != NULL ? w->comms[rank] : NULL, w->t);
}

static void run(team *t, weft_comm *const *comms) {
  world_run w = {t, comms};
  ranks_result results[8];
  assert_int_equal(ranks_run_bare(t->c.ranks, on_rank, &w, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, t->c.ranks, WEFT_OK), -1);
}

/* Which requests fail: the k-th alone, or all from the k-th on. */
static void every_request_fails_in_turn(int64_t ranks, bool all_after) {
  static team t;
  weft_comm *comms[8] = {NULL};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  t.c = ce_default;
  t.c.ranks = ranks;
  t.c.dtype = WEFT_BF16;
  ce_problem_make(&t.c, &t.p);
  assert_int_equal(weft_allocator_set(counting_alloc, counting_free, NULL), WEFT_OK);
  count_from_here(0, 0);
  const bool team = ranks > 1;
  world.ranks = ranks;
  world.timeout_ms = 20000;
  if (team) assert_int_equal(weft_comm_create_inproc(&world, comms), WEFT_OK);
  /* Once with memory: what is found out once for the process is behind us, then count. */
  run(&t, team ? comms : NULL);
  const long long before = atomic_load(&live);
  count_from_here(0, 0);
  run(&t, team ? comms : NULL);
  const long long requests = atomic_load(&asked);
  assert_true(requests >= 3 * ranks);
  for (long long k = 1; k <= requests; k++) {
    count_from_here(k, all_after ? INT64_MAX : k);
    run(&t, team ? comms : NULL);
    int memory = 0;
    for (int64_t r = 0; r < ranks; r++) {
      const weft_status status = t.created[r] != WEFT_OK ? t.created[r] : t.called[r];
      memory += status == WEFT_ERR_MEMORY;
      if (status == WEFT_ERR_MEMORY) assert_non_null(strstr(t.error[r], "no memory for"));
      if (status != WEFT_ERR_MEMORY && status != WEFT_ERR_PEER)
        fail_msg("request %lld of %lld refused: rank %lld says %s: %s", k, requests, (long long)r,
                 weft_status_string(status), t.error[r]);
    }
    assert_true(memory >= 1);
    if (!all_after) assert_int_equal(memory, 1);
    if (atomic_load(&live) != before)
      fail_msg("request %lld refused: %lld blocks leak", k, (long long)atomic_load(&live) - before);
  }
  count_from_here(0, 0);
  run(&t, team ? comms : NULL);
  for (int64_t r = 0; r < ranks; r++)
    assert_true(t.created[r] == WEFT_OK && t.called[r] == WEFT_OK);
  for (int64_t r = 0; r < ranks && team; r++)
    assert_int_equal(weft_comm_destroy(comms[r]), WEFT_OK);
  assert_int_equal(atomic_load(&live), 0);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
  ce_problem_free(&t.p);
}

static void one_rank(void **state) {
  (void)state;
  every_request_fails_in_turn(1, false);
  every_request_fails_in_turn(1, true);
}

static void four_ranks(void **state) {
  (void)state;
  every_request_fails_in_turn(4, false);
  every_request_fails_in_turn(4, true);
}

/* Calls allocate nothing: what a plan can do does not depend on memory any more. */
static void calls_allocate_nothing(void **state) {
  (void)state;
  static float x[8 * 4], w[10 * 4], g[8], stats[8 * 4], dx[8 * 4], dw[10 * 4];
  int64_t target[8] = {0};
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = NULL;
  c.max_tokens = 8;
  c.hidden = 4;
  c.vocab = c.vocab_local = 10;
  c.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  assert_int_equal(weft_allocator_set(counting_alloc, counting_free, NULL), WEFT_OK);
  count_from_here(0, 0);
  assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
  count_from_here(1, INT64_MAX);
  a.tokens = 8;
  a.x = x;
  a.w = w;
  a.target = target;
  a.g_nll = g;
  a.stats = stats;
  a.dx = dx;
  a.dw = dw;
  assert_int_equal(weft_ce_forward(plan, &a, NULL), WEFT_OK);
  assert_int_equal(weft_ce_backward(plan, &a, NULL), WEFT_OK);
  assert_int_equal(weft_ce_step(plan, &a, NULL), WEFT_OK);
  assert_int_equal(atomic_load(&asked), 0);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_ERR_BUSY);
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
}

/* An arena that holds one plan and not two: MEMORY, and given back with the first plan. */
static weft_status fill_arena(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_plan *first = NULL, *second = NULL;
  config.max_tokens = 16;
  config.hidden = 16;
  config.vocab = 40;
  config.vocab_start = rank * 10;
  config.vocab_local = 10;
  config.wants = WEFT_CE_DX;
  if (weft_ce_plan_create(comm, &config, &first) != WEFT_OK) return WEFT_ERR_SYSTEM;
  t->created[rank] = weft_ce_plan_create(comm, &config, &second);
  snprintf(t->error[rank], sizeof t->error[rank], "%s", weft_last_error());
  if (second != NULL) return WEFT_ERR_SYSTEM;
  weft_ce_plan_destroy(first);
  weft_comm_barrier(comm);
  const weft_status again = weft_ce_plan_create(comm, &config, &second);
  weft_ce_plan_destroy(second);
  return again;
}

static void the_arena_is_full(void **state) {
  (void)state;
  static team t;
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  ranks_result results[4];
  world.ranks = 4;
  world.timeout_ms = 20000;
  world.arena_bytes = 16 * 16 * 4;
  assert_int_equal(ranks_run(&world, fill_arena, &t, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 4, WEFT_OK), -1);
  for (int r = 0; r < 4; r++) {
    assert_int_equal(t.created[r], WEFT_ERR_MEMORY);
    assert_non_null(strstr(t.error[r], "arena"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank),
      cmocka_unit_test(four_ranks),
      cmocka_unit_test(calls_allocate_nothing),
      cmocka_unit_test(the_arena_is_full),
  };
  return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
