/* Plans: what a query says is what creation takes, budgets are kept, the caller's memory suffices
 * to the byte, and ranks that plan differently come to terms. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "law.h"
#include "support/ranks.h"

/* Configs of many kinds, by number. */
static weft_ce_config config_of(uint64_t seed) {
  static const int64_t tokens[] = {0, 1, 17, 96, 97, 480, 481, 1000, 3000, 10000};
  static const int64_t hiddens[] = {1, 16, 100, 1024, 4096, 5000, 9000};
  static const int64_t vocabs[] = {1, 507, 4097, 32768, 129920};
  static const int32_t wants[] = {0,
                                  WEFT_CE_DX,
                                  WEFT_CE_DW,
                                  WEFT_CE_DX | WEFT_CE_DW,
                                  WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP,
                                  WEFT_CE_STEP,
                                  WEFT_CE_DW | WEFT_CE_STEP | WEFT_CE_ENTROPY};
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  uint64_t n = 0;
#define PICK(list) list[(int)(noise_uniform(seed, n++) * (sizeof(list) / sizeof(list)[0]))]
  c.max_tokens = PICK(tokens);
  c.hidden = PICK(hiddens);
  c.vocab = PICK(vocabs);
  c.wants = PICK(wants);
#undef PICK
  c.vocab_local = c.vocab;
  c.dtype = WEFT_F32 + (int)(noise_uniform(seed, n++) * 3);
  c.dw_dtype = noise_uniform(seed, n++) < 0.5 ? WEFT_F32 : WEFT_DTYPE_DEFAULT;
  c.dx_dtype = noise_uniform(seed, n++) < 0.5 ? WEFT_F32 : WEFT_DTYPE_DEFAULT;
  c.threads = 1 + (int)(noise_uniform(seed, n++) * 4);
  return c;
}

static weft_ce_plan_info query(const weft_ce_config *c, int64_t ranks) {
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  machine.ranks = ranks;
  if (weft_ce_plan_query(c, &machine, &info) != WEFT_OK) fail_msg("%s", weft_last_error());
  return info;
}

static void query_equals_create(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < (THREADS_ONLY ? 20 : 150); seed++) {
    const weft_ce_config c = config_of(seed);
    const weft_ce_plan_info asked = query(&c, 1);
    weft_ce_plan_info made = WEFT_CE_PLAN_INFO_INIT;
    weft_ce_plan *plan = NULL;
    if (asked.local_bytes > 1 << 28) continue;
    assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
    assert_int_equal(weft_ce_plan_info_get(plan, &made), WEFT_OK);
    assert_memory_equal(&asked, &made, sizeof made);
    assert_int_equal(made.units, c.threads);
    assert_true(made.text[0] != '\0');
    assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
  }
}

/* The default is 64 MiB, or the least where that is more. */
static void budgets_are_kept(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 600; seed++)
    for (int64_t ranks = 1; ranks <= 4; ranks += 3) {
      weft_ce_config c = config_of(seed);
      const weft_ce_plan_info standard = query(&c, ranks);
      const int64_t least = standard.least_bytes, limit = 64 << 20;
      assert_true(standard.local_bytes + standard.symmetric_bytes <=
                  (least > limit ? least : limit));
      for (int k = 0; k < 6; k++) {
        c.workspace_budget = k == 0 ? least : least + ((int64_t)1 << (10 + 4 * k)) + k;
        const weft_ce_plan_info info = query(&c, ranks);
        assert_int_equal(info.least_bytes, least);
        assert_true(info.local_bytes + info.symmetric_bytes <= c.workspace_budget);
      }
      char text[32];
      weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
      weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
      machine.ranks = ranks;
      c.workspace_budget = least - 1;
      assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_ERR_WORKSPACE);
      snprintf(text, sizeof text, " %lld", (long long)least);
      assert_non_null(strstr(weft_last_error(), text));
      assert_non_null(strstr(weft_last_error(), "workspace_budget"));
    }
}

static void the_callers_memory_suffices_to_the_byte(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < (THREADS_ONLY ? 10 : 60); seed++) {
    weft_ce_config c = config_of(seed);
    const weft_ce_plan_info info = query(&c, 1);
    weft_ce_plan *plan = NULL;
    if (info.local_bytes > 1 << 28) continue;
    matrix memory = matrix_new(WEFT_F32, 1, info.local_bytes / 4, 0, 0);
    c.workspace = memory.data;
    c.workspace_bytes = info.local_bytes - 1;
    assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_ERR_WORKSPACE);
    assert_null(plan);
    char text[32];
    snprintf(text, sizeof text, " %lld", (long long)info.local_bytes);
    assert_non_null(strstr(weft_last_error(), text));
    c.workspace_bytes++;
    assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
    assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
    assert_true(matrix_intact(&memory));
    matrix_free(&memory);
  }
}

/* Step: with the budget for all logits, or an f32 dW, three GEMMs; with less, four. */
static void step_recomputes_where_it_must(void **state) {
  (void)state;
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  c.max_tokens = 1024;
  c.hidden = 1024;
  c.vocab = c.vocab_local = 32768;
  c.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  c.threads = 2;
  c.dtype = WEFT_BF16;
  assert_int_equal(query(&c, 1).step_gemms, 4);
  assert_int_equal(query(&c, 1).token_chunk, 0);
  c.workspace_budget = (int64_t)1 << 30;
  assert_int_equal(query(&c, 1).step_gemms, 3);
  assert_int_equal(query(&c, 1).token_chunk, 1024);
  c.workspace_budget = 0;
  c.dw_dtype = WEFT_F32;
  assert_int_equal(query(&c, 1).step_gemms, 3);
  assert_true(query(&c, 1).token_chunk < 1024 && query(&c, 1).token_chunk > 0);
  c.wants = WEFT_CE_DX | WEFT_CE_DW;
  assert_int_equal(query(&c, 1).step_gemms, 0);
}

/* On a GPU: with room for two bytes a logit, three GEMMs at every shape of the goals, within the
 * budget; with less, with a soft cap, or where H is so small that a product costs less, four. */
static void a_gpu_step_recomputes_where_it_must(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {
      {4096, 4096, 131072}, {8192, 2048, 151936}, {8192, 7168, 129280}, {16384, 4096, 131072}};
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  machine.arch = "sm90";
  machine.units = 132;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t m = shapes[i][0], h = shapes[i][1], v = shapes[i][2];
    const int64_t large = m * v * 2 + m * h * 4 + ((int64_t)192 << 20);
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
    weft_ce_config c = WEFT_CE_CONFIG_INIT;
    c.max_tokens = m;
    c.hidden = h;
    c.vocab = c.vocab_local = v;
    c.dtype = WEFT_BF16;
    c.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
    c.workspace_budget = large;
    assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
    assert_int_equal(info.step_gemms, 3);
    assert_int_equal(info.token_chunk, m);
    assert_true(info.local_bytes <= large && info.local_bytes > m * v * 2);
    c.workspace_budget = m * v * 2;
    assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
    assert_int_equal(info.step_gemms, 4);
    c.workspace_budget = 0;
    assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
    assert_int_equal(info.step_gemms, 4);
    assert_true(info.local_bytes <= m * h * 4 + ((int64_t)288 << 20));
    c.workspace_budget = large;
    c.softcap = 30;
    assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
    assert_int_equal(info.step_gemms, 4);
    c.softcap = 0;
    c.hidden = 64;
    assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
    assert_int_equal(info.step_gemms, 4);
  }
}

/* ---- Ranks that plan differently ---- */

typedef struct team {
  const ce_problem *p;
  ce_case c;
  uint64_t seed;
  matrix nll[4], dx[4], dw[4];
  weft_ce_plan_info info[4];
  char failure[4][300];
} team;

/* Each rank has its own budget, threads, and memory of exactly the size that the query names. */
static weft_status plan_and_step(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = NULL;
  c.max_tokens = t->c.tokens;
  c.hidden = t->c.hidden;
  c.vocab = t->c.vocab;
  ce_range(&t->c, rank, &c.vocab_start, &c.vocab_local);
  c.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  c.threads = 1 + (int)((t->seed + (uint64_t)rank) % 3);
  machine.ranks = t->c.ranks;
  weft_ce_plan_query(&c, &machine, &info);
  const double u = noise_uniform(t->seed, (uint64_t)rank);
  c.workspace_budget = info.least_bytes + (int64_t)(u * u * 8e6);
  weft_ce_plan_query(&c, &machine, &info);
  matrix memory = matrix_new(WEFT_F32, 1, info.local_bytes / 4, 0, 0);
  c.workspace = memory.data;
  c.workspace_bytes = info.local_bytes;
  weft_status status = weft_ce_plan_create(comm, &c, &plan);
  if (status == WEFT_OK) {
    t->info[rank] = info;
    weft_ce_plan_info_get(plan, &t->info[rank]);
    a.tokens = t->c.tokens;
    a.x = matrix_row(&t->p->x, 0);
    a.w = matrix_row(&t->p->w, c.vocab_start);
    a.target = matrix_row(&t->p->target, 0);
    a.g_nll = matrix_row(&t->p->up[0], 0);
    a.nll = matrix_row(&t->nll[rank], 0);
    a.dx = matrix_row(&t->dx[rank], 0);
    a.dw = matrix_row(&t->dw[rank], 0);
    status = weft_ce_step(plan, &a, NULL);
  }
  if (status != WEFT_OK)
    snprintf(t->failure[rank], sizeof t->failure[rank], "%s", weft_last_error());
  if (status == WEFT_OK &&
      t->info[rank].local_bytes + t->info[rank].symmetric_bytes > c.workspace_budget) {
    snprintf(t->failure[rank], sizeof t->failure[rank], "over budget");
    status = WEFT_ERR_SYSTEM;
  }
  weft_ce_plan_destroy(plan);
  if (!matrix_intact(&memory)) {
    snprintf(t->failure[rank], sizeof t->failure[rank],
             "wrote past the caller's workspace: query %lld bytes, plan %lld",
             (long long)info.local_bytes, (long long)t->info[rank].local_bytes);
    status = WEFT_ERR_SYSTEM;
  }
  matrix_free(&memory);
  return status;
}

static void ranks_of_different_budgets(void **state) {
  (void)state;
  ce_problem p;
  team t = {.p = &p, .c = ce_default};
  int differed = 0;
  t.c.ranks = 4;
  t.c.tokens = 700;
  t.c.hidden = 24;
  t.c.vocab = 3000;
  t.c.split = SPLIT_UNEVEN;
  ce_problem_make(&t.c, &p);
  ce_problem_solve(&t.c, &p);
  for (int64_t r = 0; r < 4; r++) {
    int64_t start, local;
    ce_range(&t.c, r, &start, &local);
    t.nll[r] = matrix_new(WEFT_F32, 1, t.c.tokens, 0, 0);
    t.dx[r] = matrix_new(WEFT_F32, t.c.tokens, t.c.hidden, 0, 0);
    t.dw[r] = matrix_new(WEFT_F32, local, t.c.hidden, 0, 0);
  }
  for (t.seed = 1; t.seed <= (SANITIZED ? 8 : 60); t.seed++) {
    ranks_result results[4];
    assert_int_equal(ranks_run_simple(4, 1, 60000, plan_and_step, &t, results), WEFT_OK);
    for (int r = 0; r < 4; r++)
      if (results[r].status != WEFT_OK)
        fail_msg("seed %d, rank %d: %s: %s", (int)t.seed, r, weft_status_string(results[r].status),
                 t.failure[r]);
    for (int r = 0; r < 4; r++) {
      differed += t.info[r].wave_rows != t.info[0].wave_rows;
      assert_int_equal(t.info[r].token_chunk, t.info[0].token_chunk);
      assert_true(matrix_equal(&t.nll[r], &t.nll[0]));
      assert_true(matrix_equal(&t.dx[r], &t.dx[0]));
    }
    double error = 0, norm = 0;
    for (int64_t i = 0; i < t.c.tokens; i++)
      for (int64_t k = 0; k < t.c.hidden; k++) {
        const double right = p.o.dx[i * t.c.hidden + k];
        error += pow(matrix_get(&t.dx[0], i, k) - right, 2);
        norm += right * right;
      }
    assert_true(sqrt(error) < 2e-5 * sqrt(norm));
  }
  assert_true(differed > 0);
  for (int64_t r = 0; r < 4; r++) {
    matrix_free(&t.nll[r]);
    matrix_free(&t.dx[r]);
    matrix_free(&t.dw[r]);
  }
  ce_problem_free(&p);
}

/* Sizes whose products pass 2⁶³: an honest refusal, or numbers that are not negative. */
static void enormous_problems(void **state) {
  (void)state;
  const int64_t big[] = {1, 1000, INT64_C(1) << 31, INT64_C(1) << 40};
  for (int m = 0; m < 4; m++)
    for (int v = 0; v < 4; v++)
      for (int h = 0; h < 3; h++)
        for (int r = 0; r < 3; r++) {
          weft_ce_config c = WEFT_CE_CONFIG_INIT;
          weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
          weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
          c.max_tokens = big[m];
          c.vocab = c.vocab_local = big[v];
          c.hidden = h == 2 ? 1 << 30 : big[h];
          c.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
          machine.ranks = r == 0 ? 1 : r == 1 ? 65536 : INT64_MAX;
          const weft_status status = weft_ce_plan_query(&c, &machine, &info);
          if (status != WEFT_OK) {
            assert_true(strlen(weft_last_error()) > 0);
            continue;
          }
          /* X in f32 for the tokens of the least chunk, and 16 bytes a token, at least */
          const double floor = 16.0 * (double)c.max_tokens;
          assert_true((double)info.least_bytes >= floor && (double)info.local_bytes >= floor);
          assert_true(info.local_bytes + info.symmetric_bytes >= info.least_bytes);
        }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(query_equals_create),
      cmocka_unit_test(budgets_are_kept),
      cmocka_unit_test(the_callers_memory_suffices_to_the_byte),
      cmocka_unit_test(step_recomputes_where_it_must),
      cmocka_unit_test(a_gpu_step_recomputes_where_it_must),
      cmocka_unit_test(ranks_of_different_budgets),
      cmocka_unit_test(enormous_problems),
  };
  return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
