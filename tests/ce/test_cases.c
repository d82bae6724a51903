/* Faults that users of such libraries have met, by their number in the list of cases (C1 to C17).
 * Those that need gigabytes are in test_large.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "law.h"

static const int dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};

/* All logits equal: with the answer known in closed form, beside the oracle's. */
static void uniform_logits(ce_case c, double x0, double w0, double expected) {
  for (int d = 0; d < 3; d++)
    for (c.ranks = 1; c.ranks <= 4; c.ranks++)
      for (int step = 0; step < 2; step++) {
        ce_problem p;
        ce_errors errors;
        c.dtype = dtypes[d];
        c.step = step;
        /* all entries of a gradient are alike here, so their rounding does not average out */
        c.dx_dtype = c.dw_dtype = WEFT_F32;
        ce_problem_make(&c, &p);
        for (int64_t i = 0; i < c.tokens; i++)
          for (int64_t k = 0; k < c.hidden; k++)
            matrix_set(&p.x, i, k, k == 0 ? x0 : 0);
        for (int64_t j = 0; j < c.vocab; j++)
          matrix_set(&p.w, j, 0, w0);
        ce_problem_solve(&c, &p);
        ce_output *out = law_outputs(&c, &p, &errors);
        for (int64_t i = 0; i < c.tokens; i++) {
          assert_true(fabs(matrix_get(&out[0].nll, 0, i) - expected) < 2e-4);
          assert_true(fabs(matrix_get(&out[0].entropy, 0, i) - expected) < 2e-4);
        }
        law_free(&c, out);
        ce_problem_free(&p);
      }
}

static void c1_columns_past_the_vocabulary(void **state) {
  (void)state;
  ce_case c = ce_default;
  c.hidden = 8;
  c.vocab = 1025;
  c.tokens = 9;
  c.entropy = true;
  uniform_logits(c, 1, -10, 6.9324);
  c.padding = 300;
  uniform_logits(c, 1, -10, 6.9324);
}

static void c2_vocabularies_of_no_multiple(void **state) {
  (void)state;
  static const int64_t vocabs[] = {129920, 50257, 1, 7}, ranks[] = {1, 2, 3, 4, 8};
  for (int v = 0; v < 4; v++) {
    ce_case c = ce_default;
    ce_problem p;
    c.vocab = vocabs[v];
    c.hidden = 8;
    c.tokens = 16;
    c.upstream = UP_NLL | UP_ENTROPY;
    ce_problem_make(&c, &p);
    ce_problem_solve(&c, &p);
    for (int r = 0; r < 5; r++)
      for (int split = 0; split < 2; split++) {
        if (THREADS_ONLY && vocabs[v] > 1000 && split != v) continue;
        c.ranks = ranks[r];
        c.split = split == 0 ? SPLIT_EVEN : SPLIT_UNEVEN;
        c.step = (r + split) % 2;
        law_holds_for(&c, &p);
      }
    ce_problem_free(&p);
  }
}

static void c3_all_logits_far_below_zero(void **state) {
  (void)state;
  ce_case c = ce_default;
  c.hidden = 8;
  c.vocab = 2048;
  c.entropy = true;
  uniform_logits(c, 20, -10, 7.6246);
}

static double dw_error(int64_t tokens, bool step, ce_budget budget) {
  ce_case c = ce_default;
  ce_problem p;
  ce_errors errors;
  c.tokens = tokens;
  c.hidden = SANITIZED ? 32 : 256;
  c.vocab = SANITIZED ? 64 : 512;
  c.dtype = WEFT_BF16;
  c.threads = 2;
  c.step = step;
  c.budget = budget;
  ce_problem_make(&c, &p);
  ce_problem_solve(&c, &p);
  law_free(&c, law_outputs(&c, &p, &errors));
  ce_problem_free(&p);
  return errors.dw;
}

static void c4_dw_error_is_flat_in_tokens(void **state) {
  (void)state;
  for (int step = 0; step < 2; step++)
    for (int budget = 0; budget < 2; budget++) {
      if (THREADS_ONLY && step != budget) continue;
      const double few = dw_error(1024, step, budget ? BUDGET_LEAST : BUDGET_DEFAULT);
      const double many = dw_error(16384, step, budget ? BUDGET_LEAST : BUDGET_DEFAULT);
      if (many > 1.05 * few)
        fail_msg("dW error %.4g of 16384 tokens, %.4g of 1024 (step %d)", many, few, step);
    }
}

static void c6_every_target_ignored(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int hot = 0; hot < 2; hot++)
      for (int variant = 0; variant < 4; variant++) {
        ce_case c = ce_default;
        c.dtype = dtypes[d];
        c.ignore = IGNORE_ALL;
        c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
        c.ranks = variant & 1 ? 4 : 1;
        c.step = variant >> 1;
        if (hot) {
          c.x_scale = c.w_scale = 20;
          c.temperature = 0.1;
        }
        law_holds(&c);
      }
}

static void c7_one_valid_target_among_4096(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int variant = 0; variant < 4; variant++) {
      ce_case c = ce_default;
      ce_problem p;
      ce_errors errors;
      if (THREADS_ONLY && d != variant % 3) continue;
      c.dtype = dtypes[d];
      c.tokens = 4096;
      c.hidden = 40;
      c.vocab = 300;
      c.ignore = IGNORE_ALL_BUT_ONE;
      c.ranks = variant & 1 ? 3 : 1;
      c.step = variant >> 1;
      c.dw_dtype = c.dx_dtype = WEFT_F32;
      ce_problem_make(&c, &p);
      matrix_set(&p.up[0], 0, c.tokens / 2, 1.0 / 4096); /* as a mean over the batch has it */
      ce_problem_solve(&c, &p);
      ce_output *out = law_outputs(&c, &p, &errors);
      double norm = 0;
      for (int64_t k = 0; k < c.hidden; k++)
        norm += fabs(matrix_get(&out[0].dx, c.tokens / 2, k));
      assert_true(norm > 0);
      law_free(&c, out);
      ce_problem_free(&p);
    }
}

/* nll of the same problem on one rank and on several. */
static void equals_one_rank(ce_case c) {
  ce_problem p;
  ce_errors errors;
  ce_case alone = c;
  alone.ranks = 1;
  ce_problem_make(&c, &p);
  ce_problem_solve(&c, &p);
  ce_output *many = law_outputs(&c, &p, &errors), *one = law_outputs(&alone, &p, &errors);
  for (int64_t i = 0; i < c.tokens; i++) {
    const double a = matrix_get(&many[0].nll, 0, i), b = matrix_get(&one[0].nll, 0, i);
    assert_true(isfinite(a) && fabs(a - b) <= 2e-6 * (1 + p.o.largest[i]));
  }
  law_free(&c, many);
  law_free(&alone, one);
  ce_problem_free(&p);
}

static void c8_c10_c17_four_ranks_equal_one(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int step = 0; step < 2; step++) {
      ce_case c = ce_default; /* 507 rows over 4 ranks: 127, 127, 127, 126 */
      c.ranks = 4;
      c.tokens = 64;
      c.dtype = dtypes[d];
      c.step = step;
      int64_t start, local;
      ce_range(&c, 3, &start, &local);
      assert_int_equal(start, 381);
      assert_int_equal(local, 126);
      equals_one_rank(c);
      c.padding = 5; /* 128 rows each, the last with padding */
      equals_one_rank(c);
    }
}

static void c9_all_targets_on_the_last_rank(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int64_t ranks = 2; ranks <= 8; ranks *= 2) {
      ce_case c = ce_default;
      c.ranks = ranks;
      c.dtype = dtypes[d];
      c.targets = TARGETS_LAST_RANK;
      law_holds(&c);
      c.step = true;
      law_holds(&c);
      c.targets = TARGETS_FIRST_ROW;
      law_holds(&c);
    }
}

static void c12_strided_rows(void **state) {
  (void)state;
  static const int64_t extra[] = {0, 1, 3, 16, 1000};
  for (int d = 0; d < 3; d++)
    for (int e = 0; e < 5; e++) {
      ce_case c = ce_default;
      c.dtype = dtypes[d];
      c.stride_extra = extra[e];
      c.ranks = 1 + e % 3;
      law_holds(&c);
    }
}

static void c12_a_transposed_view_is_refused(void **state) {
  (void)state;
  float data[8 * 8] = {0}, nll[8];
  int64_t target[8] = {0};
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = NULL;
  config.max_tokens = config.hidden = config.vocab = config.vocab_local = 8;
  assert_int_equal(weft_ce_plan_create(NULL, &config, &plan), WEFT_OK);
  a.tokens = 8;
  a.x = a.w = data;
  a.target = target;
  a.nll = nll;
  a.x_stride = 1;
  assert_int_equal(weft_ce_forward(plan, &a, NULL), WEFT_ERR_ARGUMENT);
  assert_non_null(strstr(weft_last_error(), "x_stride is 1"));
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

static void c13_a_rank_without_vocabulary(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int variant = 0; variant < 12; variant++) {
      ce_case c = ce_default;
      c.dtype = dtypes[d];
      c.ranks = 2 + variant % 3;
      c.split = variant & 1 ? SPLIT_ONE_EMPTY : SPLIT_ONE_FULL;
      c.step = variant & 2;
      c.dx_mode = variant / 4;
      c.seed = (uint64_t)variant;
      law_holds(&c);
    }
}

static void c14_logits_of_a_hundred_thousand(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int variant = 0; variant < 4; variant++) {
      ce_case c = ce_default;
      ce_problem p;
      double largest = 0;
      c.dtype = dtypes[d];
      c.x_scale = 170;
      c.w_scale = 170;
      c.temperature = 1e3;
      c.entropy = true;
      c.step = variant & 1;
      c.ranks = variant & 2 ? 4 : 1;
      ce_problem_make(&c, &p);
      ce_problem_solve(&c, &p);
      for (int64_t i = 0; i < c.tokens; i++)
        largest = fmax(largest, p.o.largest[i]);
      assert_true(largest > 100);
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

/* Every problem of this suite has NaN upstream gradients at ignored rows; here some are infinite.
 */
static void c15_nan_upstream_on_ignored_rows(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++)
    for (int step = 0; step < 2; step++) {
      ce_case c = ce_default;
      ce_problem p;
      c.dtype = dtypes[d];
      c.ignore = IGNORE_SOME;
      c.tokens = 60;
      c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
      c.step = step;
      ce_problem_make(&c, &p);
      int ignored = 0;
      for (int64_t i = 0; i < c.tokens; i++) {
        if (p.targets[i] != c.ignore_index) continue;
        assert_true(isnan(matrix_get(&p.up[0], 0, i)));
        if (ignored++ % 2) matrix_set(&p.up[1], 0, i, INFINITY);
      }
      assert_true(ignored > 2);
      ce_problem_solve(&c, &p);
      law_holds_for(&c, &p);
      ce_problem_free(&p);
    }
}

static void c16_targets_out_of_range(void **state) {
  (void)state;
  static const int64_t wide[] = {(INT64_C(1) << 32) + 5, 100, -1, INT64_MIN, INT64_MAX,
                                 -(INT64_C(1) << 32) + 5};
  for (int d = 0; d < 3; d++)
    for (int variant = 0; variant < 8; variant++) {
      ce_case c = ce_default;
      ce_problem p;
      ce_errors errors;
      c.dtype = dtypes[d];
      c.vocab = 100;
      c.ranks = variant & 1 ? 4 : 1;
      c.step = variant & 2;
      c.padding = variant & 4 ? 28 : 0; /* target 100 is a row of W then, and still wrong */
      ce_problem_make(&c, &p);
      for (int i = 0; i < 6; i++) {
        p.targets[2 * i + 1] = wide[i];
        memcpy(p.target.data + (2 * i + 1) * 8, &wide[i], 8);
      }
      ce_problem_solve(&c, &p);
      ce_output *out = law_outputs(&c, &p, &errors);
      for (int64_t r = 0; r < c.ranks; r++) {
        assert_int_equal(out[r].status, WEFT_ERR_TARGET);
        for (int i = 0; i < 6; i++)
          assert_true(isnan(matrix_get(&out[r].nll, 0, 2 * i + 1)));
        assert_true(isfinite(matrix_get(&out[r].nll, 0, 0)));
      }
      law_free(&c, out);
      ce_problem_free(&p);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(c1_columns_past_the_vocabulary),
      cmocka_unit_test(c2_vocabularies_of_no_multiple),
      cmocka_unit_test(c3_all_logits_far_below_zero),
      cmocka_unit_test(c4_dw_error_is_flat_in_tokens),
      cmocka_unit_test(c6_every_target_ignored),
      cmocka_unit_test(c7_one_valid_target_among_4096),
      cmocka_unit_test(c8_c10_c17_four_ranks_equal_one),
      cmocka_unit_test(c9_all_targets_on_the_last_rank),
      cmocka_unit_test(c12_strided_rows),
      cmocka_unit_test(c12_a_transposed_view_is_refused),
      cmocka_unit_test(c13_a_rank_without_vocabulary),
      cmocka_unit_test(c14_logits_of_a_hundred_thousand),
      cmocka_unit_test(c15_nan_upstream_on_ignored_rows),
      cmocka_unit_test(c16_targets_out_of_range),
  };
  return cmocka_run_group_tests_name("cases", tests, NULL, NULL);
}
