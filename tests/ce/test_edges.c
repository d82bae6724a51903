/* The far ends of the contract: values and shapes that are allowed and unusual. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "law.h"

static const int dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};

/* An ignored row counts for nothing, whatever stands in its row of X. */
static void x_of_ignored_rows_may_be_anything(void **state) {
  (void)state;
  static const double odd[] = {NAN, INFINITY, -INFINITY, NAN};
  for (int d = 0; d < 3; d++)
    for (int variant = 0; variant < 12; variant++) {
      ce_case c = ce_default;
      ce_problem p;
      c.dtype = dtypes[d];
      c.tokens = 60;
      c.ignore = IGNORE_SOME;
      c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
      c.step = variant & 1;
      c.ranks = variant & 2 ? 3 : 1;
      c.budget = (ce_budget)(variant / 4);
      c.dw_dtype = WEFT_F32;
      ce_problem_make(&c, &p);
      ce_problem_solve(&c, &p);
      /* lse of these rows is not a number any more, on both sides; nothing else may change */
      int64_t seen = 0;
      for (int64_t i = 0; i < c.tokens; i++)
        if (p.targets[i] == c.ignore_index) {
          matrix_set(&p.x, i, 5, odd[seen++ % 4]);
          p.o.lse[i] = NAN;
          p.o.largest[i] = INFINITY;
        }
      assert_true(seen > 4);
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

/* Logits far beyond the cap: c' is small, and must keep its digits. */
static void saturated_soft_cap(void **state) {
  (void)state;
  for (int variant = 0; variant < 8; variant++) {
    ce_case c = ce_default;
    ce_problem p;
    c.cap = 2;
    c.step = variant & 1;
    c.ranks = variant & 2 ? 4 : 1;
    c.upstream = variant & 4 ? UP_NLL | UP_ENTROPY : UP_NLL;
    ce_problem_make(&c, &p);
    for (int64_t i = 0; i < c.tokens; i++)
      for (int64_t k = 0; k < c.hidden; k++)
        matrix_set(&p.x, i, k, k == 0 ? 10 + i % 4 : 0.01 * matrix_get(&p.x, i, k));
    for (int64_t j = 0; j < c.vocab; j++)
      matrix_set(&p.w, j, 0, (j % 2 ? 1 : -1) * (1 + 0.1 * noise_uniform(3, (uint64_t)j)));
    ce_problem_solve(&c, &p);
    law_holds_for(&c, &p);
    ce_problem_free(&p);
  }
}

/* Caps and temperatures of any positive size. */
static void extreme_caps_and_temperatures(void **state) {
  (void)state;
  static const double pairs[][2] = {{1e-3, 1}, {1e-6, 1e-6}, {1e-30, 1e-30}, {1e30, 1},
                                    {1e20, 3}, {1e-36, 1e3}, {5, 1e6},       {1e-38, 1e-38},
                                    {1e38, 1}, {0, 1e20},    {3e38, 0.5},    {0, 1e38}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    for (int step = 0; step < 2; step++) {
      ce_case c = ce_default;
      ce_problem p;
      c.cap = pairs[i][0];
      c.temperature = pairs[i][1];
      c.step = step;
      c.entropy = true;
      c.tokens = 5;
      c.hidden = 12;
      ce_problem_make(&c, &p);
      ce_problem_solve(&c, &p);
      double largest = 0;
      for (int64_t k = 0; k < c.tokens * c.hidden; k++)
        largest = fmax(largest, fabs(p.o.dx[k]));
      c.no_dx = c.no_dw = largest < 1e-30; /* f32 has no room for these */
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

/* Logits whose differences reach towards the largest f32. */
static void logits_of_any_finite_size(void **state) {
  (void)state;
  static const double sizes[] = {1e5, 1e10, 1e30, 1e38, 1.6e38};
  for (int s = 0; s < 5; s++)
    for (int variant = 0; variant < 8; variant++) {
      ce_case c = ce_default;
      ce_problem p;
      c.vocab = 1300;
      c.hidden = 16;
      c.ranks = variant & 1 ? 4 : 1;
      c.step = variant & 2;
      c.dtype = variant & 4 ? WEFT_BF16 : WEFT_F32;
      c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
      c.dx_dtype = c.dw_dtype = WEFT_F32; /* few values: their rounding does not average out */
      c.no_dx = sizes[s] > 1e37;          /* dX is as large as W, its sums pass all of f32 */
      ce_problem_make(&c, &p);
      for (int64_t i = 0; i < c.tokens; i++)
        for (int64_t k = 0; k < c.hidden; k++)
          matrix_set(&p.x, i, k, k == 0 ? 1 : 0);
      for (int64_t j = 0; j < c.vocab; j++) /* one large, some far below, the rest at 0 */
        matrix_set(&p.w, j, 0, j == 700 ? sizes[s] : j % 7 == 0 ? -sizes[s] : 0);
      ce_problem_solve(&c, &p);
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

static void wide_hidden_states(void **state) {
  (void)state;
  static const int64_t hiddens[] = {4096, 4097, 8192, 8193, 12288, 20001};
  for (int h = 0; h < 6; h++)
    for (int variant = 0; variant < 8; variant++) {
      ce_case c = ce_default;
      if (THREADS_ONLY && h != 1 && h != 3) continue; /* one width of each smaller tile */
      c.hidden = hiddens[h];
      c.vocab = 40;
      c.tokens = 3;
      c.dtype = dtypes[variant % 3];
      c.accumulate = variant & 1;
      c.step = variant & 2;
      c.ranks = variant & 4 ? 2 : 1;
      c.own_workspace = true;
      c.budget = h % 2 ? BUDGET_LEAST : BUDGET_DEFAULT;
      law_holds(&c);
    }
}

static void no_tokens(void **state) {
  (void)state;
  for (int variant = 0; variant < 48; variant++) {
    ce_case c = ce_default;
    c.tokens = 0;
    c.spare_tokens = variant & 1 ? 10 : 0;
    c.step = variant & 2;
    c.ranks = variant & 4 ? 3 : 1;
    c.accumulate = variant & 8;
    c.dx_mode = variant / 16;
    c.padding = 4;
    law_holds(&c);
  }
}

/* A team whose messages travel by the caller's exchange gives the bits of one in process. */
static void external_equals_inproc(void **state) {
  (void)state;
  for (int variant = 0; variant < 24; variant++) {
    ce_case c = ce_default;
    ce_problem p;
    ce_errors errors;
    c.ranks = 3 + variant % 2;
    c.dtype = dtypes[variant % 3];
    c.step = variant & 4;
    c.tokens = 50;
    c.dx_mode = variant / 8;
    c.ignore = IGNORE_SOME;
    ce_problem_make(&c, &p);
    ce_problem_solve(&c, &p);
    ce_output *a = law_outputs(&c, &p, &errors);
    c.world = WORLD_EXTERNAL;
    ce_output *b = law_outputs(&c, &p, &errors);
    for (int64_t r = 0; r < c.ranks; r++)
      assert_true(matrix_equal(&a[r].nll, &b[r].nll) && matrix_equal(&a[r].lse, &b[r].lse) &&
                  matrix_equal(&a[r].stats, &b[r].stats) && matrix_equal(&a[r].dx, &b[r].dx) &&
                  matrix_equal(&a[r].dw, &b[r].dw));
    law_free(&c, a);
    law_free(&c, b);
    ce_problem_free(&p);
  }
}

/* Gradients far below 1, as a mean over a large batch has them, and none that vanish in f16. */
static void small_upstream_gradients(void **state) {
  (void)state;
  static const double sizes[] = {1e-4, 1e-8, 1e-20, 1e-30, 1e10};
  for (int d = 0; d < 3; d++)
    for (int s = 0; s < 5; s++) {
      ce_case c = ce_default;
      ce_problem p;
      c.dtype = dtypes[d];
      c.dx_dtype = c.dw_dtype = WEFT_F32;
      c.step = s % 2;
      ce_problem_make(&c, &p);
      for (int64_t i = 0; i < c.tokens; i++)
        matrix_set(&p.up[0], 0, i, sizes[s] * matrix_get(&p.up[0], 0, i));
      ce_problem_solve(&c, &p);
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

/* One token, one hidden column: sums without anything to average over. */
static void entropy_gradients_of_single_tokens(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= (THREADS_ONLY ? 24 : 300); seed++) {
    ce_case c = ce_default;
    c.tokens = 1 + (int64_t)(seed % 3);
    c.hidden = 1 + (int64_t)(seed % 5);
    c.vocab = 1277;
    c.ranks = 1 + (int64_t)(seed % 4);
    c.upstream = UP_ENTROPY;
    c.step = seed % 2;
    c.seed = seed;
    law_holds(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(x_of_ignored_rows_may_be_anything),
      cmocka_unit_test(saturated_soft_cap),
      cmocka_unit_test(extreme_caps_and_temperatures),
      cmocka_unit_test(logits_of_any_finite_size),
      cmocka_unit_test(wide_hidden_states),
      cmocka_unit_test(no_tokens),
      cmocka_unit_test(external_equals_inproc),
      cmocka_unit_test(small_upstream_gradients),
      cmocka_unit_test(entropy_gradients_of_single_tokens),
  };
  return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
