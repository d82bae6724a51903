/* The law: values follow the stated distributions, and depend on seed, array and index alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "dtype.h"
#include "synth.h"

static tensor make(weft_dtype dtype, int64_t count) {
  tensor t = {.dtype = dtype, .dims = 1, .shape = {count}};
  error e;
  assert_true(tensor_allocate(&t, &e));
  return t;
}

static void normal(void **state) {
  (void)state;
  enum { COUNT = 1 << 20 };
  tensor t = make(WEFT_F32, COUNT);
  synth_normal(&t, 3, SYNTH_X, 1.0f);
  const float *x = t.data;
  double sum[5] = {0}, neighbours = 0;
  int below[4] = {0};
  static const double at[4] = {-2, -1, 0, 1.5};
  for (int i = 0; i < COUNT; i++) {
    double power = 1;
    for (int k = 1; k < 5; k++)
      sum[k] += power *= x[i];
    if (i > 0) neighbours += (double)x[i] * x[i - 1];
    for (int k = 0; k < 4; k++)
      below[k] += x[i] < at[k];
  }
  /* Five standard deviations of each estimate. */
  const double unit = 5 / sqrt(COUNT);
  assert_true(fabs(sum[1] / COUNT) < unit);
  assert_true(fabs(sum[2] / COUNT - 1) < unit * sqrt(2));
  assert_true(fabs(sum[3] / COUNT) < unit * sqrt(15));
  assert_true(fabs(sum[4] / COUNT - 3) < unit * sqrt(96));
  assert_true(fabs(neighbours / COUNT) < unit);
  for (int k = 0; k < 4; k++) {
    const double share = 0.5 * erfc(-at[k] / sqrt(2));
    assert_true(fabs((double)below[k] / COUNT - share) < unit * sqrt(share * (1 - share)));
  }
  tensor_free(&t);
}

/* A shorter array is the beginning of a longer one, in every dtype; seeds and arrays differ. */
static void by_index(void **state) {
  (void)state;
  enum { LONG = 5000, SHORT = 777 };
  tensor a = make(WEFT_F32, LONG), b = make(WEFT_F32, SHORT), c = make(WEFT_BF16, LONG);
  synth_normal(&a, 1, SYNTH_W, 0.5f);
  synth_normal(&b, 1, SYNTH_W, 0.5f);
  synth_normal(&c, 1, SYNTH_W, 0.5f);
  assert_memory_equal(a.data, b.data, SHORT * sizeof(float));
  for (int i = 0; i < LONG; i++)
    assert_int_equal(((uint16_t *)c.data)[i], bf16_from_float(((float *)a.data)[i]));
  synth_normal(&b, 2, SYNTH_W, 0.5f);
  assert_memory_not_equal(a.data, b.data, SHORT * sizeof(float));
  synth_normal(&b, 1, SYNTH_X, 0.5f);
  assert_memory_not_equal(a.data, b.data, SHORT * sizeof(float));
  tensor_free(&a);
  tensor_free(&b);
  tensor_free(&c);
}

static void gradients(void **state) {
  (void)state;
  enum { COUNT = 100000 };
  float *g = malloc(COUNT * sizeof *g);
  synth_gradient(g, COUNT, 1, SYNTH_G_NLL);
  double sum = 0;
  for (int i = 0; i < COUNT; i++) {
    assert_true(g[i] >= 0.25f && g[i] < 1.25f);
    sum += g[i];
  }
  assert_true(fabs(sum / COUNT - 0.75) < 5 * sqrt(1.0 / 12 / COUNT));
  free(g);
}

static void targets(void **state) {
  (void)state;
  enum { COUNT = 100000, VOCAB = 10 };
  tensor t = make(WEFT_I64, COUNT);
  synth_targets(&t, 1, VOCAB, 0.2, -7);
  const int64_t *target = t.data;
  int seen[VOCAB] = {0}, ignored = 0;
  for (int i = 0; i < COUNT; i++) {
    assert_true(target[i] == -7 || (target[i] >= 0 && target[i] < VOCAB));
    if (target[i] == -7)
      ignored++;
    else
      seen[target[i]]++;
  }
  assert_true(abs(ignored - COUNT / 5) < 5 * sqrt(COUNT * 0.16));
  for (int v = 0; v < VOCAB; v++)
    assert_true(abs(seen[v] - COUNT * 8 / 100) < 5 * sqrt(COUNT * 0.08));
  synth_targets(&t, 1, VOCAB, 0, -7);
  for (int i = 0; i < COUNT; i++)
    assert_true(target[i] >= 0);
  synth_targets(&t, 1, VOCAB, 1, -7);
  for (int i = 0; i < COUNT; i++)
    assert_true(target[i] == -7);
  tensor_free(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(normal), cmocka_unit_test(by_index),
                                     cmocka_unit_test(gradients), cmocka_unit_test(targets)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
