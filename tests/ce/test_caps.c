/* Soft caps that are narrow beside the logits, and steep ones (cap/T far above 1), where c' and the
 * softmax live on the few logits between the two ends: on each instruction set, by the bounds of
 * every other case. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "law.h"

static const char *const isas[] = {"baseline", "avx2", "avx512"};

static void on_each_isa(ce_case *c) {
  ce_problem p;
  ce_problem_make(c, &p);
  ce_problem_solve(c, &p);
  for (int i = THREADS_ONLY ? 2 : 0; i < 3; i++)
    for (int variant = 0; variant < 3; variant++) {
      setenv("WEFT_ISA", isas[i], 1);
      c->step = variant > 0;
      c->ranks = variant == 2 ? 3 : 1;
      law_holds_for(c, &p);
    }
  unsetenv("WEFT_ISA");
  ce_problem_free(&p);
}

/* |a|/cap up to some thousands. */
static void narrow_caps(void **state) {
  (void)state;
  static const double caps[] = {1e-3, 1e-2, 0.3}, temperatures[] = {1, 1e-3, 1e-6};
  for (int cap = 0; cap < 3; cap++)
    for (int t = 0; t < 3; t++) {
      ce_case c = ce_default;
      if (THREADS_ONLY && cap != t) continue;
      c.cap = caps[cap];
      c.temperature = temperatures[t];
      c.tokens = 40;
      c.hidden = 256;
      c.vocab = 3001; /* the last tile is narrow */
      c.entropy = true;
      c.upstream = t == 1 ? UP_NLL | UP_ENTROPY | UP_LSE : UP_NLL;
      c.dtype = cap == 1 && t == 2 ? WEFT_BF16 : WEFT_F32;
      on_each_isa(&c);
    }
}

/* Large logits under a cap of the usual size are the same thing. */
static void large_logits(void **state) {
  (void)state;
  ce_case c = ce_default;
  c.cap = 30;
  c.x_scale = 3e4;
  c.tokens = 40;
  c.hidden = 256;
  c.vocab = 3001;
  on_each_isa(&c);
}

/* All logits at the lower end of the cap, or around its middle, with cap/T = 3·10⁵. */
static void steep_caps(void **state) {
  (void)state;
  for (int variant = 0; variant < 3; variant++) {
    ce_case c = ce_default;
    ce_problem p;
    c.cap = 3;
    c.temperature = 1e-5;
    c.tokens = 12;
    c.hidden = 16;
    c.entropy = true;
    c.upstream = UP_NLL | UP_ENTROPY;
    ce_problem_make(&c, &p);
    /* a = x₀·w₀, and few enough bits in both that a is exact */
    for (int64_t i = 0; i < c.tokens; i++)
      for (int64_t k = 0; k < c.hidden; k++)
        matrix_set(&p.x, i, k, k == 0 ? (variant == 0 ? -1 : 1) * (12 + 0.5 * (double)(i % 5)) : 0);
    for (int64_t j = 0; j < c.vocab; j++)
      for (int64_t k = 0; k < c.hidden; k++)
        matrix_set(&p.w, j, k,
                   k > 0          ? 0
                   : variant == 2 ? (double)(j % 64 - 32) / 4096
                                  : 1 + (double)(j % 256) / 256);
    ce_problem_solve(&c, &p);
    for (int i = 0; i < 3; i++) {
      setenv("WEFT_ISA", isas[i], 1);
      for (int step = 0; step < 2; step++) {
        c.step = step;
        law_holds_for(&c, &p);
      }
    }
    unsetenv("WEFT_ISA");
    ce_problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(narrow_caps),
      cmocka_unit_test(large_logits),
      cmocka_unit_test(steep_caps),
  };
  return cmocka_run_group_tests_name("caps", tests, NULL, NULL);
}
