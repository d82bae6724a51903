/* The law: the oracle is the contract's formulas. It is held against a case worked out by hand,
 * against central differences of its own losses (which are first held against the textbook sum),
 * and its tiled passes against plain loops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cmocka_all.h"
#include "dtype.h"
#include "oracle.h"

static void close_to(double got, double wanted, double tolerance) {
  if (!(fabs(got - wanted) <= tolerance * (1 + fabs(wanted))))
    fail_msg("%.15g; expected %.15g", got, wanted);
}

static problem make(int count, char **arguments) {
  ce_options o;
  problem p;
  error e = {""};
  if (!ce_options_parse(&o, count, arguments, &e)) fail_msg("%s", e.text);
  if (problem_load(&p, &o, &e) != EXIT_RIGHT) fail_msg("%s", e.text);
  return p;
}

#define MAKE(...) make(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

/* One token, two vocabulary rows, logits ln 3 and 0: p = (3/4, 1/4). */
static void by_hand(void **state) {
  (void)state;
  problem p = MAKE("--tokens", "1", "--hidden", "1", "--vocab", "2", "--entropy");
  ((float *)p.x.data)[0] = 1;
  ((float *)p.w.data)[0] = logf(3);
  ((float *)p.w.data)[1] = 0;
  ((int64_t *)p.target.data)[0] = 1;
  p.g_nll[0] = 1;
  p.g_lse[0] = 2;
  p.g_entropy[0] = 4;
  oracle o;
  error e;
  assert_true(oracle_compute(&o, &p, true, ORACLE_FULL, 1, &e));
  const double ln3 = log(3), ln4 = log(4), entropy = ln4 - 0.75 * ln3;
  close_to(o.lse[0], ln4, 1e-7);
  close_to(o.nll[0], ln4, 1e-7);
  close_to(o.entropy[0], entropy, 1e-7);
  close_to(o.size[0], ln3, 1e-7);
  const double dz0 = 0.75 - 4 * 0.75 * (ln3 - ln4 + entropy) + 2 * 0.75;
  const double dz1 = 0.25 - 1 - 4 * 0.25 * (-ln4 + entropy) + 2 * 0.25;
  close_to(o.dw[0], dz0, 1e-7);
  close_to(o.dw[1], dz1, 1e-7);
  close_to(o.dx[0], dz0 * ln3, 1e-7);
  oracle_free(&o);
  problem_free(&p);
}

static double dot(const problem *p, int64_t m, int64_t v) {
  double sum = 0, x, w;
  const int64_t bytes = dtype_bytes(p->dtype);
  for (int64_t h = 0; h < p->hidden; h++) {
    dtype_load(&x, (char *)p->x.data + (m * p->hidden + h) * bytes, p->dtype, 1);
    dtype_load(&w, (char *)p->w.data + (v * p->hidden + h) * bytes, p->dtype, 1);
    sum += x * w;
  }
  return sum;
}

static double logit_of(const problem *p, double a) {
  return (p->softcap > 0 ? p->softcap * tanh(a / p->softcap) : a) / p->temperature;
}

/* The textbook: no maximum is subtracted, which small logits allow. */
static void plain_losses(const problem *p, int64_t m, double *nll, double *lse, double *entropy) {
  const int64_t target = dtype_int(p->target.data, p->target.dtype, m);
  double sum = 0;
  for (int64_t v = 0; v < p->vocab; v++)
    sum += exp(logit_of(p, dot(p, m, v)));
  *lse = log(sum);
  *nll = *entropy = 0;
  if (target == p->ignore_index) return;
  *nll = *lse - logit_of(p, dot(p, m, target));
  for (int64_t v = 0; v < p->vocab; v++) {
    const double prob = exp(logit_of(p, dot(p, m, v))) / sum;
    *entropy -= prob * log(prob);
  }
}

/* Sizes beside the edges of every tile, so that tails and whole tiles both occur. */
static void tiles_and_tails(void **state) {
  (void)state;
  static const char *const sizes[][3] = {{"1", "1", "1"},
                                         {"3", "7", "5"},
                                         {"129", "17", "257"},
                                         {"130", "257", "259"},
                                         {"128", "256", "256"}};
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  for (int k = 0; k < 5; k++) {
    problem p = MAKE("--tokens", (char *)sizes[k][0], "--hidden", (char *)sizes[k][1], "--vocab",
                     (char *)sizes[k][2], "--dtype", (char *)dtypes[k % 3], "--entropy", "--ignore",
                     "0.3", "--temperature", "0.7", "--softcap", "1.5");
    oracle o;
    error e;
    assert_true(oracle_compute(&o, &p, true, ORACLE_FULL, 1, &e));
    assert_false(o.sampled);
    const int64_t H = p.hidden;
    double *dx = calloc((size_t)(p.tokens * H), sizeof *dx);
    double *dw = calloc((size_t)(p.vocab * H), sizeof *dw), x, w;
    const int64_t bytes = dtype_bytes(p.dtype);
    for (int64_t m = 0; m < p.tokens; m++) {
      double nll, lse, entropy;
      plain_losses(&p, m, &nll, &lse, &entropy);
      close_to(o.nll[m], nll, 1e-12);
      close_to(o.lse[m], lse, 1e-12);
      close_to(o.entropy[m], entropy, 1e-12);
      if (!problem_counts(&p, m)) continue;
      for (int64_t v = 0; v < p.vocab; v++) {
        const double a = dot(&p, m, v), log_p = logit_of(&p, a) - lse, prob = exp(log_p);
        const double th = tanh(a / p.softcap);
        const double hot = v == dtype_int(p.target.data, p.target.dtype, m);
        const double dz = (p.g_nll[m] * (prob - hot) - p.g_entropy[m] * prob * (log_p + entropy) +
                           p.g_lse[m] * prob) /
                          p.temperature * (1 - th * th);
        for (int64_t h = 0; h < H; h++) {
          dtype_load(&x, (char *)p.x.data + (m * H + h) * bytes, p.dtype, 1);
          dtype_load(&w, (char *)p.w.data + (v * H + h) * bytes, p.dtype, 1);
          dx[m * H + h] += dz * w;
          dw[v * H + h] += dz * x;
        }
      }
    }
    for (int64_t i = 0; i < p.tokens * H; i++)
      close_to(o.dx[i], dx[i], 1e-12);
    for (int64_t i = 0; i < p.vocab * H; i++)
      close_to(o.dw[i], dw[i], 1e-12);
    free(dx);
    free(dw);
    oracle_free(&o);
    problem_free(&p);
  }
}

static double objective(const problem *p) {
  double sum = 0;
  oracle o;
  error e;
  assert_true(oracle_compute(&o, p, false, ORACLE_FULL, 1, &e));
  for (int64_t m = 0; m < p->tokens; m++)
    if (problem_counts(p, m))
      sum += p->g_nll[m] * o.nll[m] + p->g_lse[m] * o.lse[m] + p->g_entropy[m] * o.entropy[m];
  oracle_free(&o);
  return sum;
}

/* The gradients are those of Σ g_nll·nll + g_lse·lse + g_entropy·entropy over counted tokens. */
static void differences(void **state) {
  (void)state;
  problem p = MAKE("--tokens", "5", "--hidden", "3", "--vocab", "11", "--entropy", "--temperature",
                   "0.8", "--softcap", "2");
  ((int64_t *)p.target.data)[1] = p.ignore_index;
  oracle o;
  error e;
  assert_true(oracle_compute(&o, &p, true, ORACLE_FULL, 1, &e));
  for (int which = 0; which < 2; which++) {
    float *values = which == 0 ? p.x.data : p.w.data;
    const double *gradient = which == 0 ? o.dx : o.dw;
    const int64_t count = which == 0 ? p.x.count : p.w.count;
    for (int64_t i = 0; i < count; i++) {
      const float kept = values[i];
      values[i] = kept + 0x1p-8f;
      const double high = values[i], above = objective(&p);
      values[i] = kept - 0x1p-8f;
      const double low = values[i], below = objective(&p);
      values[i] = kept;
      close_to((above - below) / (high - low), gradient[i], 1e-4);
    }
  }
  oracle_free(&o);
  problem_free(&p);
}

/* Logits of ±1e5 and of −200 everywhere. */
static void large_logits(void **state) {
  (void)state;
  problem p = MAKE("--tokens", "1", "--hidden", "1", "--vocab", "3", "--entropy");
  ((float *)p.x.data)[0] = 1;
  float *w = p.w.data;
  w[0] = -1e5f;
  w[1] = 1e5f;
  w[2] = 0;
  ((int64_t *)p.target.data)[0] = 0;
  oracle o;
  error e;
  assert_true(oracle_compute(&o, &p, true, ORACLE_FULL, 1, &e));
  close_to(o.lse[0], 1e5, 1e-15);
  close_to(o.nll[0], 2e5, 1e-15);
  close_to(o.entropy[0], 0, 1e-15);
  for (int i = 0; i < 3; i++)
    assert_true(isfinite(o.dw[i]));
  oracle_free(&o);
  w[0] = w[1] = w[2] = -200;
  assert_true(oracle_compute(&o, &p, false, ORACLE_FULL, 1, &e));
  close_to(o.nll[0], log(3), 1e-13);
  close_to(o.entropy[0], log(3), 1e-13);
  oracle_free(&o);
  problem_free(&p);
}

/* A sample has the full oracle's values at its tokens and rows, half of the rows being targets. */
static void sample(void **state) {
  (void)state;
  problem p =
      MAKE("--tokens", "300", "--hidden", "9", "--vocab", "700", "--entropy", "--ignore", "0.1");
  oracle full, part, losses;
  error e;
  assert_true(oracle_compute(&full, &p, true, ORACLE_FULL, 1, &e));
  assert_true(oracle_compute(&part, &p, true, 1000, 1, &e));
  assert_true(oracle_compute(&losses, &p, false, 1000, 1, &e));
  assert_true(part.sampled && losses.sampled && part.tokens_count == 64 && part.rows_count == 64);
  int targets = 0;
  for (int i = 0; i < 64; i++) {
    const int64_t m = part.tokens[i], v = part.rows[i];
    assert_int_equal(m, losses.tokens[i]);
    assert_true(m >= 0 && m < 300 && v >= 0 && v < 700);
    close_to(losses.nll[m], full.nll[m], 1e-13);
    close_to(losses.lse[m], full.lse[m], 1e-13);
    close_to(losses.entropy[m], full.entropy[m], 1e-13);
    for (int h = 0; h < 9; h++) {
      close_to(part.dx[i * 9 + h], full.dx[m * 9 + h], 1e-13);
      close_to(part.dw[i * 9 + h], full.dw[v * 9 + h], 1e-13);
    }
    targets += v == ((int64_t *)p.target.data)[m];
  }
  assert_true(targets >= 20);
  for (int64_t m = 0; m < 300; m++)
    close_to(part.nll[m], full.nll[m], 1e-13);
  oracle_free(&full);
  oracle_free(&part);
  oracle_free(&losses);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(by_hand), cmocka_unit_test(tiles_and_tails),
                                     cmocka_unit_test(differences), cmocka_unit_test(large_logits),
                                     cmocka_unit_test(sample)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
