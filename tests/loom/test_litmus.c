/* The law: each broken form is flagged in every seed (a form that branches on a word looked at
 * once, in some), with the expected kind among its findings; each mended form is clean in every
 * seed; in the strict reading and in the lenient one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

static int check(const struct loom_protocol *p, int lenient, int seeds, int verbose) {
  const enum loom_expectation expected = lenient ? p->lenient : p->strict;
  const struct loom_options options = {0, 0};
  int flagged = 0, kind_seen = 0, first_odd = -1;
  char odd[512] = "";
  for (int seed = 0; seed < seeds; seed++) {
    struct loom_config config = LOOM_CONFIG_INIT;
    config.seed = (uint64_t)seed;
    config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
    config.lenient = lenient;
    const int n = loom_protocol_run(p, &options, &config);
    if (n < 0) return printf("FAIL %s: the world could not begin\n", p->name), 1;
    flagged += n > 0;
    for (int i = 0; i < n; i++)
      kind_seen |= loom_finding_at(i)->kind == p->kind;
    if (first_odd < 0 && (expected == LOOM_FLAGGED ? n == 0 : expected == LOOM_CLEAN && n > 0)) {
      first_odd = seed;
      if (n) snprintf(odd, sizeof odd, "%s", loom_finding_at(0)->text);
    }
    if (verbose && seed == 0)
      for (int i = 0; i < n; i++)
        printf("    %s\n", loom_finding_at(i)->text);
  }
  const int good = expected == LOOM_CLEAN     ? flagged == 0
                   : expected == LOOM_FLAGGED ? flagged == seeds && kind_seen
                                              : flagged > 0 && kind_seen;
  printf("%s %s (%s): flagged in %d of %d seeds%s\n", good ? "ok  " : "FAIL", p->name,
         lenient ? "lenient" : "strict", flagged, seeds,
         flagged && !kind_seen ? ", never of the expected kind" : "");
  if (!good && first_odd >= 0) printf("    seed %d: %s\n", first_odd, odd);
  return !good;
}

int main(int argc, char **argv) {
  const int seeds = argc > 1 ? atoi(argv[1]) : 200;
  const char *only = argc > 2 ? argv[2] : NULL;
  loom_litmus_register();
  int failed = 0;
  for (int lenient = 0; lenient < 2; lenient++)
    for (int i = 0; i < loom_protocol_count(); i++)
      if (!only || strstr(loom_protocol_at(i)->name, only))
        failed += check(loom_protocol_at(i), lenient, seeds, only != NULL);
  loom_end();
  printf("%d of %d failed\n", failed, 2 * loom_protocol_count());
  return failed != 0;
}
