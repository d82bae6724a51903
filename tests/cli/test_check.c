/* The law of `#wrong`: outputs rounded from the oracle pass; each planted fault is counted, in the
 * rows where it was planted, and one just inside the bound is not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cmocka_all.h"
#include "dtype.h"

enum { M = 40, H = 24, V = 50 };

typedef struct fixture {
  problem problem;
  oracle oracle;
  float nll[M], lse[M], entropy[M], dx[M * H], dw[V * H];
  const void *parts[2];
} fixture;

static fixture *make(void) {
  fixture *f = calloc(1, sizeof *f);
  char *arguments[] = {"--tokens", "40",        "--hidden", "24", "--vocab",
                       "50",       "--entropy", "--ignore", "0.2"};
  ce_options o;
  error e;
  assert_true(ce_options_parse(&o, 9, arguments, &e));
  assert_int_equal(problem_load(&f->problem, &o, &e), EXIT_RIGHT);
  assert_true(oracle_compute(&f->oracle, &f->problem, true, ORACLE_FULL, 1, &e));
  for (int m = 0; m < M; m++) {
    f->nll[m] = (float)f->oracle.nll[m];
    f->lse[m] = (float)f->oracle.lse[m];
    f->entropy[m] = (float)f->oracle.entropy[m];
  }
  for (int i = 0; i < M * H; i++)
    f->dx[i] = (float)f->oracle.dx[i];
  for (int i = 0; i < V * H; i++)
    f->dw[i] = (float)f->oracle.dw[i];
  f->parts[0] = f->dx;
  return f;
}

static check judge(fixture *f) {
  const outputs out = {f->nll, f->lse, f->entropy, f->parts, f->parts[1] ? 2 : 1, f->dw, WEFT_F32};
  check c;
  error e;
  assert_true(check_outputs(&c, &out, &f->oracle, &f->problem, &e));
  return c;
}

static void drop(fixture *f) {
  oracle_free(&f->oracle);
  problem_free(&f->problem);
  free(f);
}

static int counted(const fixture *f, bool wanted) {
  for (int m = 0; m < M; m++)
    if (problem_counts(&f->problem, m) == wanted) return m;
  return -1;
}

static void right(void **state) {
  (void)state;
  fixture *f = make();
  check c = judge(f);
  assert_int_equal(c.wrong, 0);
  assert_true(c.within);
  for (int kind = 0; kind < CHECK_COUNT; kind++)
    assert_true(c.error[kind] > 0 && c.error[kind] < 1e-6);
  const outputs nothing = {f->nll, f->lse, NULL, NULL, 0, NULL, WEFT_F32};
  error e;
  assert_true(check_outputs(&c, &nothing, &f->oracle, &f->problem, &e));
  assert_true(isnan(c.error[CHECK_ENTROPY]) && isnan(c.error[CHECK_DX]) && c.within);
  drop(f);
}

static void losses(void **state) {
  (void)state;
  fixture *f = make();
  const int m = counted(f, true);
  float *const arrays[] = {f->nll, f->lse, f->entropy};
  for (int kind = 0; kind < 3; kind++) {
    const float kept = arrays[kind][m], unit = (float)(2e-5 * (1 + f->oracle.size[m]));
    arrays[kind][m] = kept + 0.9f * unit;
    assert_int_equal(judge(f).wrong, 0);
    arrays[kind][m] = kept - 1.1f * unit;
    assert_int_equal(judge(f).wrong, 1);
    assert_false(judge(f).within);
    arrays[kind][m] = NAN;
    assert_int_equal(judge(f).wrong, 1);
    arrays[kind][m] = kept;
  }
  drop(f);
}

/* Scales an error of `norm` into a row. */
static void push(float *row, double norm) {
  row[3] += (float)norm;
}

static double norm_of(const double *row) {
  double sum = 0;
  for (int h = 0; h < H; h++)
    sum += row[h] * row[h];
  return sqrt(sum);
}

static void gradients(void **state) {
  (void)state;
  for (int kind = 0; kind < 2; kind++) {
    fixture *f = make();
    const int rows = kind == 0 ? M : V, at = kind == 0 ? counted(f, true) : 7;
    const double *exact = kind == 0 ? f->oracle.dx : f->oracle.dw;
    float *given = kind == 0 ? f->dx : f->dw;
    double mean = 0;
    for (int i = 0; i < rows; i++)
      mean += norm_of(exact + i * H) / rows;
    const double limit = 4 * 2e-5 * norm_of(exact + at * H) + 1e-3 * mean;
    const float kept = given[at * H + 3];
    push(given + at * H, 0.9 * limit);
    check c = judge(f);
    assert_int_equal(c.wrong, 0);
    /* The row passes; the norm of the whole is past 2e-5 all the same, and that is not right. */
    assert_true(c.error[kind == 0 ? CHECK_DX : CHECK_DW] > 2e-5);
    assert_false(c.within);
    given[at * H + 3] = kept;
    push(given + at * H, 1.1 * limit);
    assert_int_equal(judge(f).wrong, 1);
    given[at * H + 3] = NAN;
    c = judge(f);
    assert_int_equal(c.wrong, 1);
    assert_false(c.within);
    given[at * H + 3] = kept;
    assert_true(judge(f).within);
    drop(f);
  }
}

/* What does not count must be exactly 0. */
static void ignored(void **state) {
  (void)state;
  fixture *f = make();
  const int m = counted(f, false);
  assert_true(m >= 0);
  f->nll[m] = 1e-30f;
  assert_int_equal(judge(f).wrong, 1);
  f->nll[m] = 0;
  f->dx[m * H + 1] = 1e-30f;
  assert_int_equal(judge(f).wrong, 1);
  f->dx[m * H + 1] = 0;
  assert_int_equal(judge(f).wrong, 0);
  drop(f);
}

static void parts(void **state) {
  (void)state;
  fixture *f = make();
  float other[M * H];
  for (int i = 0; i < M * H; i++)
    other[i] = 0.5f * f->dx[i];
  for (int i = 0; i < M * H; i++)
    f->dx[i] -= other[i];
  assert_true(judge(f).wrong > 0);
  f->parts[1] = other;
  assert_int_equal(judge(f).wrong, 0);
  drop(f);
}

static void bits(void **state) {
  (void)state;
  float a[6] = {1, 2, 3, 4, 0.0f, NAN}, b[6] = {1, 2, 3, 4, -0.0f, NAN};
  assert_int_equal(check_same_bits(a, b, 6, sizeof(float)), 1);
  assert_int_equal(check_same_bits(a, b, 2, 3 * sizeof(float)), 1);
  assert_int_equal(check_same_bits(a, a, 6, sizeof(float)), 0);
}

static void ranges(void **state) {
  (void)state;
  int64_t start, rows;
  static const int64_t wanted[] = {127, 127, 127, 126};
  for (int r = 0; r < 4; r++) {
    vocab_range(507, 4, r, &start, &rows);
    assert_int_equal(rows, wanted[r]);
    assert_int_equal(start, 127 * r);
  }
  for (int64_t vocab = 1; vocab < 40; vocab++)
    for (int64_t ranks = 1; ranks < 20; ranks++) {
      int64_t next = 0;
      for (int64_t r = 0; r < ranks; r++) {
        vocab_range(vocab, ranks, r, &start, &rows);
        assert_int_equal(start, next);
        assert_true(rows == vocab / ranks || rows == vocab / ranks + 1);
        next += rows;
      }
      assert_int_equal(next, vocab);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(right),     cmocka_unit_test(losses),
                                     cmocka_unit_test(gradients), cmocka_unit_test(ignored),
                                     cmocka_unit_test(parts),     cmocka_unit_test(bits),
                                     cmocka_unit_test(ranges)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
