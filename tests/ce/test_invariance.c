/* What must not change a row's bits: the number of tokens, its place, the other rows, threads,
 * budgets, the plan's size, step or forward. And what may change last bits only: instruction sets,
 * thread counts in dX and dW. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "law.h"

enum { ROWS = 1100 };

typedef struct shape {
  int dtype;
  int64_t hidden, vocab;
  double cap;
} shape;

static const shape shapes[] = {
    {WEFT_F32, 1, 507, 0},     {WEFT_F32, 7, 1277, 0},   {WEFT_F32, 64, 1024, 0},
    {WEFT_BF16, 129, 513, 30}, {WEFT_F16, 257, 700, 0},  {WEFT_F32, 400, 300, 5},
    {WEFT_BF16, 769, 100, 0},  {WEFT_F32, 1000, 17, 0},  {WEFT_F32, 16, 5000, 0},
    {WEFT_F32, 1536, 530, 0},  {WEFT_F16, 4100, 260, 0},
};

typedef struct engine {
  weft_ce_plan *plan;
  weft_ce_args args;
} engine;

static engine engine_new(const shape *s, const ce_problem *p, int64_t max_tokens, int threads,
                         int64_t budget, int32_t wants) {
  engine e = {NULL, WEFT_CE_ARGS_INIT};
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = max_tokens;
  config.hidden = s->hidden;
  config.vocab = config.vocab_local = s->vocab;
  config.dtype = s->dtype;
  config.softcap = (float)s->cap;
  config.threads = threads;
  config.workspace_budget = budget;
  config.wants = WEFT_CE_ENTROPY | wants;
  if (weft_ce_plan_create(NULL, &config, &e.plan) != WEFT_OK) fail_msg("%s", weft_last_error());
  e.args.w = matrix_row(&p->w, 0);
  e.args.temperature = 0.9f;
  return e;
}

static ce_problem problem_of(const shape *s, int64_t rows) {
  ce_problem p;
  ce_case c = ce_default;
  c.dtype = s->dtype;
  c.hidden = s->hidden;
  c.vocab = s->vocab;
  c.tokens = rows;
  c.ignore = IGNORE_SOME;
  ce_problem_make(&c, &p);
  return p;
}

/* Loss of rows first … first + count − 1 of the problem. */
static void loss_of(engine *e, const ce_problem *p, int64_t first, int64_t count, matrix out[4]) {
  e->args.tokens = count;
  e->args.x = matrix_row(&p->x, first);
  e->args.target = p->target.data + first * 8;
  e->args.nll = matrix_row(&out[0], 0);
  e->args.lse = matrix_row(&out[1], 0);
  e->args.entropy = matrix_row(&out[2], 0);
  e->args.stats = matrix_row(&out[3], 0);
  if (weft_ce_forward(e->plan, &e->args, NULL) != WEFT_OK) fail_msg("%s", weft_last_error());
}

static void outputs_new(matrix out[4], int64_t rows) {
  for (int i = 0; i < 3; i++)
    out[i] = matrix_new(WEFT_F32, 1, rows, 0, 0);
  out[3] = matrix_new(WEFT_F32, rows, 4, 0, 0);
}

static void outputs_free(matrix out[4]) {
  for (int i = 0; i < 4; i++)
    matrix_free(&out[i]);
}

/* The bits of `count` rows in `part`, whose first is row `first` of `whole`. */
static void same_bits(const matrix whole[4], const matrix part[4], int64_t first, int64_t count,
                      const shape *s, const char *what) {
  static const char *const names[] = {"nll", "lse", "entropy", "stats"};
  for (int o = 0; o < 4; o++) {
    const int64_t width = o == 3 ? 4 : 1;
    for (int64_t i = 0; i < count * width; i++)
      if (memcmp(whole[o].data + (first * width + i) * 4, part[o].data + i * 4, 4) != 0)
        fail_msg("%s of row %lld (H=%lld V=%lld dtype %d) has other bits: %s, rows %lld + %lld",
                 names[o], (long long)(first + i / width), (long long)s->hidden,
                 (long long)s->vocab, s->dtype, what, (long long)first, (long long)count);
  }
}

static void rows_do_not_depend_on_the_batch(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    ce_problem p = problem_of(s, ROWS);
    matrix whole[4], part[4];
    outputs_new(whole, ROWS);
    outputs_new(part, ROWS);
    engine e = engine_new(s, &p, ROWS, 2, 0, 0);
    loss_of(&e, &p, 0, ROWS, whole);
    static const int64_t counts[] = {1,   2,   3,   5,   16,  17,  31,  32,  33,   63,   65,  95,
                                     96,  97,  99,  128, 191, 193, 255, 479, 480,  481,  511, 512,
                                     513, 521, 575, 600, 777, 959, 960, 961, 1023, 1025, 1100};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
      for (int place = 0; place < 3; place++) {
        const int64_t room = ROWS - counts[k];
        const int64_t first = place == 0 ? 0 : place == 1 ? room : room * 37 / 101;
        if (SANITIZED && (k % 5 != 0 || place == 0)) continue;
        loss_of(&e, &p, first, counts[k], part);
        same_bits(whole, part, first, counts[k], s, "fewer rows");
      }
    weft_ce_plan_destroy(e.plan);
    outputs_free(whole);
    outputs_free(part);
    ce_problem_free(&p);
  }
}

static void rows_do_not_depend_on_the_plan(void **state) {
  (void)state;
  static const struct {
    int64_t max_tokens, budget;
    int threads, wants;
  } plans[] = {{ROWS, 0, 1, 0},
               {ROWS, 0, 3, 0},
               {ROWS, 0, 7, WEFT_CE_DX | WEFT_CE_DW},
               {5 * ROWS, 0, 2, WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP},
               {ROWS, (int64_t)1 << 32, 2, WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP},
               {ROWS, -1, 2, WEFT_CE_DX}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    ce_problem p = problem_of(s, ROWS);
    matrix whole[4], other[4];
    outputs_new(whole, ROWS);
    outputs_new(other, ROWS);
    engine e = engine_new(s, &p, ROWS, 2, 0, 0);
    loss_of(&e, &p, 0, ROWS, whole);
    weft_ce_plan_destroy(e.plan);
    for (size_t k = 0; k < sizeof plans / sizeof plans[0]; k++) {
      int64_t budget = plans[k].budget;
      if (THREADS_ONLY && k % 2 != i % 2) continue;
      if (budget < 0) {
        weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
        e = engine_new(s, &p, plans[k].max_tokens, plans[k].threads, 0, plans[k].wants);
        weft_ce_plan_info_get(e.plan, &info);
        weft_ce_plan_destroy(e.plan);
        budget = info.least_bytes;
      }
      e = engine_new(s, &p, plans[k].max_tokens, plans[k].threads, budget, plans[k].wants);
      loss_of(&e, &p, 0, ROWS, other);
      same_bits(whole, other, 0, ROWS, s, "another plan");
      weft_ce_plan_destroy(e.plan);
    }
    outputs_free(whole);
    outputs_free(other);
    ce_problem_free(&p);
  }
}

/* Rows that hold other numbers, some of them not finite. */
static void rows_do_not_depend_on_each_other(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    ce_problem p = problem_of(s, 200);
    matrix before[4], after[4];
    outputs_new(before, 200);
    outputs_new(after, 200);
    engine e = engine_new(s, &p, 200, 2, 0, 0);
    loss_of(&e, &p, 0, 200, before);
    for (int64_t row = 0; row < 200; row++)
      if (row % 10 != 3)
        for (int64_t k = 0; k < s->hidden; k++)
          matrix_set(&p.x, row, k, row % 10 == 4 ? NAN : row % 10 == 5 ? INFINITY : 1000.0 + row);
    loss_of(&e, &p, 0, 200, after);
    for (int64_t row = 3; row < 200; row += 10)
      for (int o = 0; o < 4; o++) {
        const int64_t bytes = o == 3 ? 16 : 4;
        assert_memory_equal(before[o].data + row * bytes, after[o].data + row * bytes, bytes);
      }
    weft_ce_plan_destroy(e.plan);
    outputs_free(before);
    outputs_free(after);
    ce_problem_free(&p);
  }
}

/* Teams: the number of tokens and the place, and forward against step. */
static void teams_are_invariant_too(void **state) {
  (void)state;
  int recomputed = 0;
  for (int variant = 0; variant < 12; variant++) {
    ce_case c = ce_default;
    ce_problem p;
    ce_errors errors;
    c.ranks = 1 + variant % 4;
    c.dtype = variant % 3 == 0 ? WEFT_F32 : WEFT_BF16;
    c.dw_dtype = variant & 2 ? WEFT_F32 : WEFT_DTYPE_DEFAULT;
    c.hidden = 65;
    c.vocab = 1277;
    c.tokens = 521;
    c.entropy = true;
    c.cap = variant & 1 ? 20 : 0;
    c.threads = 1 + variant % 3;
    c.split = SPLIT_UNEVEN;
    ce_problem_make(&c, &p);
    ce_problem_solve(&c, &p);
    ce_output *a = law_outputs(&c, &p, &errors);
    for (int budget = 0; budget < 3; budget++) {
      if (THREADS_ONLY && budget != variant / 4) continue;
      c.step = true;
      c.budget = (ce_budget)budget;
      ce_output *b = law_outputs(&c, &p, &errors);
      recomputed += b[0].info.step_gemms == 4;
      if (budget == BUDGET_LARGE) assert_int_equal(b[0].info.step_gemms, 3);
      assert_true(matrix_equal(&a[0].nll, &b[0].nll));
      assert_true(matrix_equal(&a[0].lse, &b[0].lse));
      assert_true(matrix_equal(&a[0].entropy, &b[0].entropy));
      assert_true(matrix_equal(&a[0].stats, &b[0].stats));
      law_free(&c, b);
    }
    c.step = false;
    c.tokens = 40; /* the same rows, fewer */
    ce_problem q;
    ce_problem_make(&c, &q);
    for (int64_t i = 0; i < c.tokens; i++)
      matrix_set(&q.target, 0, i, (double)(q.targets[i] = p.targets[i]));
    ce_problem_solve(&c, &q);
    ce_output *few = law_outputs(&c, &q, &errors);
    assert_memory_equal(few[0].nll.data, a[0].nll.data, 160);
    assert_memory_equal(few[0].lse.data, a[0].lse.data, 160);
    assert_memory_equal(few[0].entropy.data, a[0].entropy.data, 160);
    law_free(&c, few);
    ce_problem_free(&q);
    c.tokens = 521;
    law_free(&c, a);
    ce_problem_free(&p);
  }
  assert_true(recomputed > 0); /* both kinds of step were seen */
}

/* Every instruction set is right by the oracle. */
static void instruction_sets_agree(void **state) {
  (void)state;
  static const char *const names[] = {"baseline", "avx2", "avx512"};
  for (int isa = THREADS_ONLY ? 2 : 0; isa < 3; isa++) {
    assert_int_equal(setenv("WEFT_ISA", names[isa], 1), 0);
    for (int variant = 0; variant < 18; variant++) {
      ce_case c = ce_default;
      c.dtype = variant % 3 == 0 ? WEFT_F32 : variant % 3 == 1 ? WEFT_BF16 : WEFT_F16;
      c.hidden = 33;
      c.vocab = 600 + variant;
      c.tokens = 37;
      c.cap = variant & 1 ? 3 : 0;
      c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
      c.accumulate = variant & 2;
      c.step = variant & 4;
      c.ranks = 1 + variant % 2;
      law_holds(&c);
    }
  }
  unsetenv("WEFT_ISA");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_do_not_depend_on_the_batch),
      cmocka_unit_test(rows_do_not_depend_on_the_plan),
      cmocka_unit_test(rows_do_not_depend_on_each_other),
      cmocka_unit_test(teams_are_invariant_too),
      cmocka_unit_test(instruction_sets_agree),
  };
  return cmocka_run_group_tests_name("invariance", tests, NULL, NULL);
}
