/* The law: of each pair of kernels the allowed form is clean in every seed and does what it should,
 * the other is flagged, with the kind that its rule says. And: a seed gives the same run each time,
 * to the last operation. */
#define _GNU_SOURCE /* mkstemp, fdopen */
#include "rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

#define KERNELS(X)                                                                                 \
  X(writer)                                                                                        \
  X(reader)                                                                                        \
  X(grid)                                                                                          \
  X(chain)                                                                                         \
  X(init)                                                                                          \
  X(bar_arrive)                                                                                    \
  X(groups)                                                                                        \
  X(uncommitted)                                                                                   \
  X(spin)                                                                                          \
  X(illegal)                                                                                       \
  X(illegal_shared)                                                                                \
  X(misaligned)                                                                                    \
  X(peer)                                                                                          \
  X(timeout)                                                                                       \
  X(divergent)                                                                                     \
  X(accumulators)                                                                                  \
  X(shuffle)                                                                                       \
  X(neighbours)                                                                                    \
  X(alias)                                                                                         \
  X(pattern)                                                                                       \
  X(shared_id)                                                                                     \
  X(registers)                                                                                     \
  X(early)                                                                                         \
  X(owner)
#define DECLARE(name) extern const struct loom_kernel rules_##name;
KERNELS(DECLARE)

static int failed;
static struct rules_args args;

static void check(int good, const char *what, int a, int b) {
  if (good) return;
  failed++;
  printf("FAIL %s (%d, %d)\n", what, a, b);
  for (int i = 0; i < loom_finding_count(); i++)
    printf("    %s\n", loom_finding_at(i)->text);
}

static struct loom_config config_of(uint64_t seed) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  config.max_steps = 200000;
  return config;
}

static void begin(const struct loom_config *config, int good) {
  check(loom_begin(config) == 0, "begin", 0, 0);
  args.data.a = loom_alloc(0, 8192);
  args.out.a = loom_alloc(0, 8192);
  args.alias.a = loom_alias(args.data.a);
  args.flag.a = loom_alloc(0, 64);
  args.error.a = loom_alloc(0, 64);
  args.good = (uint32_t)good;
  args.rank = 0;
  loom_fill(args.data.a, 0, 8192);
  loom_fill(args.out.a, 0, 8192);
  loom_fill(args.flag.a, 0, 64);
  loom_fill(args.error.a, 0, 64);
}

static void launch(const struct loom_kernel *k, uint32_t gpu, uint32_t ctas, int concurrent,
                   int cooperative) {
  const struct loom_launch l = {k, &args, gpu, ctas, 16384, cooperative};
  check((concurrent ? loom_launch_concurrent : loom_launch)(&l) == 0, k->name, (int)gpu, 0);
}

static uint32_t out_word(uint32_t i) {
  uint32_t v;
  loom_read(args.out.a + 4 * i, &v, 4);
  return v;
}

/* Both forms of a kernel that needs no more than a launch. */
static void pair(const struct loom_kernel *k, uint32_t ctas, enum loom_finding_kind kind) {
  int seen = 0;
  for (uint64_t seed = 0; seed < 12; seed++) {
    const struct loom_config config = config_of(seed);
    begin(&config, 1);
    launch(k, 0, ctas, 0, 0);
    check(loom_run() == 0, k->name, (int)seed, 1);
    begin(&config, 0);
    launch(k, 0, ctas, 0, 0);
    check(loom_run() > 0, k->name, (int)seed, 0);
    for (int i = 0; i < loom_finding_count(); i++)
      seen |= loom_finding_at(i)->kind == kind;
  }
  check(seen, k->name, -1, kind);
}

static void streams(void) {
  for (uint64_t seed = 0; seed < 12; seed++) {
    const struct loom_config config = config_of(seed);
    begin(&config, 1);
    launch(&rules_writer, 0, 1, 0, 0);
    launch(&rules_reader, 0, 1, 0, 0);
    check(loom_run() == 0, "stream order", (int)seed, 0);
    check(out_word(0) == 5, "stream order", (int)out_word(0), 5);
    launch(&rules_reader, 0, 1, 0, 0); /* a second run of the same world */
    check(loom_run() == 0, "second run", (int)seed, 0);
    begin(&config, 1);
    launch(&rules_writer, 0, 1, 1, 0);
    launch(&rules_reader, 0, 1, 1, 0);
    check(loom_run() > 0 && loom_finding_at(0)->kind == LOOM_RACE, "concurrent", (int)seed, 0);
  }
}

static void grids(void) {
  int raced = 0; /* not every time: a slow CTA may see its neighbours' second arrival at once */
  for (uint64_t seed = 0; seed < 8; seed++) {
    struct loom_config config = config_of(seed);
    begin(&config, 1);
    launch(&rules_grid, 0, 5, 0, 1);
    check(loom_run() == 0, "grid barrier", (int)seed, 1);
    for (uint32_t c = 0; c < 5; c++)
      check(out_word(c) == 200 + (c + 1) % 5, "grid", (int)c, 0);
    begin(&config, 0);
    launch(&rules_grid, 0, 5, 0, 1);
    raced += loom_run() > 0;
    config.sms_per_gpu = 1;
    begin(&config, 1);
    launch(&rules_grid, 0, 40, 0, 1);
    check(loom_run() > 0 && loom_finding_at(0)->kind == LOOM_NOT_CORESIDENT, "cooperative",
          (int)seed, 0);
  }
  check(raced > 0, "grid barrier left out", raced, 0);
}

/* Both places for the fence. */
static void owners(void) {
  for (uint64_t seed = 0; seed < 8; seed++) {
    const struct loom_config config = config_of(seed);
    begin(&config, 2);
    launch(&rules_owner, 0, 2, 0, 0);
    check(loom_run() == 0, "fence in the issuer's CTA", (int)seed, 2);
  }
  pair(&rules_alias, 2, LOOM_ALIAS_FENCE);
  pair(&rules_owner, 2, LOOM_PROXY_FENCE);
}

static void hosts(void) {
  for (uint32_t per_host = 0; per_host <= 2; per_host++) {
    struct loom_config config = config_of(1);
    config.gpus = 2;
    config.gpus_per_host = per_host;
    begin(&config, 1);
    args.rank = 1;
    launch(&rules_peer, 1, 1, 0, 0);
    const int n = loom_run();
    check(per_host == 1 ? n > 0 && loom_finding_at(0)->kind == LOOM_ILLEGAL : n == 0, "peer access",
          (int)per_host, n);
  }
}

static void timeouts(void) {
  for (uint64_t seed = 0; seed < 8; seed++)
    for (int mode = 0; mode < 3; mode++) { /* comes; does not, a fault; does not, a finding */
      struct loom_config config = config_of(seed);
      config.timeouts_expected = mode == 1;
      begin(&config, mode == 0);
      launch(&rules_timeout, 0, 1, 0, 0);
      const int n = loom_run();
      uint32_t error;
      loom_read(args.error.a, &error, 4);
      check(mode == 2 ? n > 0 && loom_finding_at(0)->kind == LOOM_TIMEOUT : n == 0, "timeout", mode,
            n);
      check(out_word(0) == (mode == 0), "timeout's answer", mode, (int)out_word(0));
      check(error == (mode == 0 ? 0u : 42u), "error word", mode, (int)error);
    }
}

/* The trace of a run, as one string. */
static char *trace_of(uint64_t seed, size_t *size) {
  char path[] = "/tmp/loom_trace_XXXXXX";
  const int fd = mkstemp(path);
  struct loom_config config = config_of(seed);
  config.trace_path = path;
  begin(&config, 1);
  launch(&rules_grid, 0, 4, 0, 1);
  launch(&rules_groups, 0, 2, 0, 0);
  loom_run();
  loom_end();
  FILE *f = fdopen(fd, "r");
  fseek(f, 0, SEEK_END);
  *size = (size_t)ftell(f);
  rewind(f);
  char *text = malloc(*size + 1);
  if (fread(text, 1, *size, f) != *size) *size = 0;
  fclose(f);
  remove(path);
  return text;
}

static void repeats(void) {
  int differ = 0;
  for (uint64_t seed = 0; seed < 8; seed++) {
    size_t a_size, b_size, c_size;
    char *a = trace_of(seed, &a_size), *b = trace_of(seed, &b_size),
         *c = trace_of(seed + 100, &c_size);
    check(a_size > 1000 && a_size == b_size && !memcmp(a, b, a_size), "same seed, same run",
          (int)seed, (int)a_size);
    differ += a_size != c_size || memcmp(a, c, a_size);
    free(a);
    free(b);
    free(c);
  }
  check(differ == 8, "other seed, other run", differ, 8);
}

int main(void) {
  streams();
  grids();
  hosts();
  timeouts();
  repeats();
  owners();
  pair(&rules_chain, 3, LOOM_RACE);
  pair(&rules_init, 2, LOOM_BARRIER_MISUSE);
  pair(&rules_bar_arrive, 1, LOOM_RACE);
  pair(&rules_groups, 1, LOOM_RACE);
  pair(&rules_uncommitted, 1, LOOM_EXITED_CTA);
  pair(&rules_spin, 1, LOOM_LIVELOCK);
  pair(&rules_illegal, 1, LOOM_ILLEGAL);
  pair(&rules_illegal_shared, 1, LOOM_ILLEGAL);
  pair(&rules_misaligned, 1, LOOM_MISALIGNED);
  pair(&rules_divergent, 1, LOOM_DIVERGENT);
  pair(&rules_accumulators, 1, LOOM_REGISTER_HAZARD);
  pair(&rules_shuffle, 1, LOOM_RACE);
  pair(&rules_neighbours, 1, LOOM_RACE);
  pair(&rules_pattern, 2, LOOM_RACE);
  pair(&rules_shared_id, 1, LOOM_BARRIER_MISUSE);
  pair(&rules_registers, 1, LOOM_DEADLOCK);
  pair(&rules_early, 1, LOOM_BARRIER_MISUSE);
  loom_end();
  printf("%s: %d failed\n", failed ? "FAIL" : "ok", failed);
  return failed != 0;
}
