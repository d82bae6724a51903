/* The law: the test GEMM is clean in every seed and policy, its results equal a plain matrix
 * product in double to the bit (small integers, exact in f32 and in bf16), the same seed gives the
 * same run, and each fence, wait and barrier left out of it is found, unless the list below says
 * why not. */
#include "gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/loom.h>

extern const struct loom_kernel test_gemm;

enum { TM = 2, TN = 3, STEPS = 4, M = 128 * TM, N = 128 * TN - 24, K = 64 * STEPS };

static uint16_t to_bf16(int v) {
  const float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)(u >> 16); /* small integers have no lower bits */
}

static int a_value(int m, int k) {
  return (m * 7 + k * 3) % 5 - 2;
}
static int b_value(int n, int k) {
  return (n * 5 + k * 11) % 3 - 1;
}

static uint16_t a[M * K], b[N * K], c[M * N];

/* One run; returns the number of findings, wrong results among them. */
static int run(uint64_t seed, const char *trace) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  config.trace_path = trace;
  if (loom_begin(&config) != 0) return -1;
  const uint64_t ga = loom_alloc(0, sizeof a), gb = loom_alloc(0, sizeof b),
                 gc = loom_alloc(0, sizeof c);
  loom_write(ga, a, sizeof a);
  loom_write(gb, b, sizeof b);
  struct gemm_args args;
  const uint64_t da[2] = {K, M}, db[2] = {K, N}, dc[2] = {N, M}, sk[1] = {2 * K}, sn[1] = {2 * N};
  const uint32_t ba[2] = {64, 128}, bb[2] = {64, 64};
  if (loom_tensor_map_encode(&args.a, LOOM_BF16, 2, ga, da, sk, ba, LOOM_SWIZZLE_128B) ||
      loom_tensor_map_encode(&args.b, LOOM_BF16, 2, gb, db, sk, bb, LOOM_SWIZZLE_128B) ||
      loom_tensor_map_encode(&args.c, LOOM_BF16, 2, gc, dc, sn, bb, LOOM_SWIZZLE_128B))
    return -1;
  args.tiles_m = TM;
  args.tiles_n = TN;
  args.steps = STEPS;
  const struct loom_launch launch = {&test_gemm, &args, 0, 4, GEMM_SMEM_BYTES, 0};
  if (loom_launch(&launch) != 0) return -1;
  const int stopped = loom_run();
  loom_read(gc, c, sizeof c);
  for (int m = 0; m < M && !stopped; m++)
    for (int n = 0; n < N; n++) {
      int sum = 0;
      for (int k = 0; k < K; k++)
        sum += a_value(m, k) * b_value(n, k);
      if (c[m * N + n] != to_bf16(sum)) {
        loom_report_wrong("a product differs");
        return loom_finding_count();
      }
    }
  return loom_finding_count();
}

/* Sites whose loss the PTX text says does no harm here. */
static int not_needed(const struct loom_site *s) {
  /* cluster_sync releases at cluster scope all that came before it, initialisations too */
  return !strcmp(s->name, "gemm_init");
}

int main(int argc, char **argv) {
  const int seeds = argc > 1 ? atoi(argv[1]) : 8, drop_seeds = argc > 2 ? atoi(argv[2]) : 4;
  int failed = 0;
  for (int m = 0; m < M; m++)
    for (int k = 0; k < K; k++)
      a[m * K + k] = to_bf16(a_value(m, k));
  for (int n = 0; n < N; n++)
    for (int k = 0; k < K; k++)
      b[n * K + k] = to_bf16(b_value(n, k));

  const clock_t start = clock();
  for (int seed = 0; seed < seeds; seed++) {
    const int n = run((uint64_t)seed, NULL);
    if (n == 0) continue;
    failed++;
    printf("FAIL seed %d: %d findings\n", seed, n);
    for (int i = 0; i < n; i++)
      printf("    %s\n", loom_finding_at(i)->text);
  }
  const double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC / seeds;
  const struct loom_stats s = *loom_statistics();
  printf("%d seeds, %.0f ms of CPU time a seed; last: %llu switches, %llu granules, %llu records, "
         "%llu joins (%llu computed), %zu KiB of clocks\n",
         seeds, ms, (unsigned long long)s.switches, (unsigned long long)s.granules,
         (unsigned long long)s.records_scanned, (unsigned long long)s.joins,
         (unsigned long long)s.joins_computed, s.clock_bytes >> 10);

  int n_sites;
  struct loom_site *const *site = loom_sites(&n_sites);
  for (int i = 0; i < n_sites; i++) {
    if (!strstr(site[i]->file, "gemm.cu") || site[i]->kind == LOOM_KIND_plain) continue;
    site[i]->drop = 1;
    int flagged = 0;
    uint64_t hits = 0;
    char first[512] = "";
    for (int seed = 0; seed < drop_seeds; seed++) {
      const int n = run((uint64_t)seed, NULL);
      flagged += n != 0;
      hits += site[i]->hits;
      if (n > 0 && !first[0]) snprintf(first, sizeof first, "%s", loom_finding_at(0)->text);
    }
    site[i]->drop = 0;
    const int good = hits && (not_needed(site[i]) ? flagged == 0 : flagged == drop_seeds);
    failed += !good;
    printf("%s drop %s (line %d): flagged in %d of %d seeds  %s\n", good ? "ok  " : "FAIL",
           site[i]->op, site[i]->line, flagged, drop_seeds, first);
  }
  loom_end();
  printf("%d failed\n", failed);
  return failed != 0;
}
