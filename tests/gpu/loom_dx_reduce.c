/* Runs the reduction of dX over a team in loom, behind a kernel that makes up each rank's part,
 * three times over, so that a part written too early, or a sum read too late, shows: the sums in
 * rank order to the bit on every rank, no finding; and, with --drop-each, every acquire, release,
 * wait and barrier left out in turn, which must be noticed in every seed of one case. Ranks that
 * differ in their tokens, and one that does not come, must be reported by name.
 *
 *   loom_dx_reduce [--seeds N] [--drop-each] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "device/ce/dx_reduce.h"
#include "dx_fill.h"
#include "loom/peers.h"

enum { CTAS = 2, LAUNCHES = 3, RANKS_MAX = 8 };
#define TIMEOUT_NS 1000000000ull

extern const struct loom_kernel smxx_ce_dx_reduce, sm90_dx_fill;

enum fault { NO_FAULT, OTHER_TOKENS, MISSING };

struct scene {
  const char *name;
  uint32_t ranks, tokens, hidden, format, scatter, aligned, dx_extra;
  enum fault fault;
};

static const struct scene scenes[] = {
    {"bf16, two ranks", 2, 5, 72, DX_BF16, 0, 1, 0, NO_FAULT},
    {"f16, ragged rows", 3, 7, 71, DX_F16, 0, 0, 0, NO_FAULT},
    {"f32, more ranks than rows", 4, 3, 70, DX_F32, 0, 0, 2, NO_FAULT},
    {"bf16, scattered", 4, 9, 64, DX_BF16, 1, 1, 4, NO_FAULT},
    {"f32, eight ranks", 8, 16, 40, DX_F32, 0, 1, 0, NO_FAULT},
    {"no tokens", 2, 0, 64, DX_BF16, 0, 1, 0, NO_FAULT},
    {"other tokens", 3, 6, 64, DX_BF16, 0, 1, 0, OTHER_TOKENS},
    {"a rank is missing", 3, 6, 64, DX_BF16, 0, 1, 0, MISSING},
};

static uint32_t rounded(uint32_t format, float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  if (format == DX_F32) return bits;
  if (format == DX_BF16) return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const _Float16 h = (_Float16)v;
  uint16_t half;
  memcpy(&half, &h, 2);
  return half;
}

static uint32_t expected(const struct scene *s, uint32_t row, uint32_t column) {
  float sum = 0;
  for (uint32_t r = 0; r < s->ranks; r++)
    sum += dx_fill_value(r, LAUNCHES - 1, row, column);
  return rounded(s->format, sum);
}

static int compare(const struct scene *s, const uint64_t *dx, char *why, size_t room) {
  const uint32_t bytes = s->format == DX_F32 ? 4 : 2, stride = s->hidden + s->dx_extra;
  const uint32_t shard = dx_shard_rows(s->tokens, s->ranks);
  for (uint32_t r = 0; r < s->ranks; r++) {
    const uint32_t first = s->scatter ? r * shard : 0;
    const uint32_t last = s->scatter ? first + shard : s->tokens;
    for (uint32_t row = first; row < last && row < s->tokens; row++)
      for (uint32_t column = 0; column < stride; column++) {
        uint32_t got = 0, right = bytes == 4 ? 0xabababab : 0xabab;
        loom_read(dx[r] + ((uint64_t)(row - first) * stride + column) * bytes, &got, bytes);
        if (column < s->hidden) right = expected(s, row, column);
        if (got == right) continue;
        snprintf(why, room, "rank %u row %u column %u: %#x, expected %#x", r, row, column, got,
                 right);
        return 1;
      }
  }
  return 0;
}

static uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

static int launch_rank(const struct scene *s, uint32_t r, struct dx_reduce_args *a, uint64_t part) {
  for (uint32_t i = 0; i < LAUNCHES; i++) {
    struct dx_fill_args fill = {{part}, a->tokens, a->part_stride, r, i};
    const struct loom_launch first = {&sm90_dx_fill, &fill, r, 1, 0, 0};
    const struct loom_launch second = {&smxx_ce_dx_reduce, a, r, CTAS, DX_REDUCE_SHARED_BYTES, 1};
    if (loom_launch(&first) || loom_launch(&second)) return -1;
    if (s->fault != NO_FAULT) break;
  }
  return 0;
}

static int check_fault(const struct scene *s, const struct loom_peers *peers, char *why,
                       size_t room) {
  const uint32_t last = s->ranks - 1;
  const enum peer_error_kind kind = s->fault == MISSING ? PEER_ERROR_TIMEOUT : PEER_ERROR_DIFFERS;
  for (uint32_t r = 0; r < last; r++) {
    const uint32_t word = loom_peers_error(peers, r);
    if (word == peer_error(kind, PEER_PHASE_DX_PARTIAL, last)) continue;
    snprintf(why, room, "the error word of rank %u is %#x", r, word);
    return 1;
  }
  return 0;
}

static int run(const struct scene *s, uint64_t seed, char *why, size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  struct loom_peers peers;
  uint64_t dx[RANKS_MAX];
  int status = 1;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  config.gpus = s->ranks;
  config.timeouts_expected = s->fault != NO_FAULT;
  if (loom_begin(&config)) return 1;
  const uint32_t bytes = s->format == DX_F32 ? 4 : 2;
  struct dx_reduce_args a = {.tokens = s->tokens, .hidden = s->hidden, .format = s->format};
  a.part_stride = (s->hidden + 3) / 4 * 4;
  a.shard_stride = (s->hidden + 7) / 8 * 8;
  a.ready = 0;
  a.summed = 8 * s->ranks;
  const uint64_t signals = 16 * s->ranks;
  a.part = aligned(signals);
  a.shard = aligned(a.part + (uint64_t)s->tokens * a.part_stride * 4);
  const uint64_t all =
      aligned(a.shard + (uint64_t)dx_shard_rows(s->tokens, s->ranks) * a.shard_stride * bytes) +
      256;
  a.scatter = s->scatter;
  a.dx_aligned = s->aligned;
  a.dx_stride = s->hidden + s->dx_extra;
  if (loom_peers_make(&peers, s->ranks, 1, all, signals, TIMEOUT_NS)) abort();
  for (uint32_t r = 0; r < s->ranks; r++) {
    const size_t size = (size_t)(s->tokens + 1) * (size_t)a.dx_stride * bytes;
    dx[r] = loom_alloc(r, size);
    loom_fill(dx[r], 0xab, size);
    a.view = peers.view[r];
    a.dx.a = dx[r];
    a.epoch.a = loom_alloc(r, 16);
    loom_fill(a.epoch.a, 0, 16);
    a.counter.a = a.epoch.a + 8;
    a.tokens = s->tokens;
    if (r == s->ranks - 1 && s->fault == MISSING) continue;
    if (r == s->ranks - 1 && s->fault == OTHER_TOKENS) a.tokens--;
    if (launch_rank(s, r, &a, peers.arena[r] + a.part)) abort();
  }
  const int found = loom_run();
  if (s->fault != NO_FAULT) {
    for (int i = 0; i < found; i++)
      if (loom_finding_at(i)->kind != LOOM_UNWRITTEN && loom_finding_at(i)->kind != LOOM_RACE) {
        snprintf(why, room, "%s", loom_finding_at(i)->text);
        goto cleanup;
      }
    status = check_fault(s, &peers, why, room);
    goto cleanup;
  }
  if (found) {
    snprintf(why, room, "%s", loom_finding_at(0)->text);
    goto cleanup;
  }
  for (uint32_t r = 0; r < s->ranks; r++)
    if (loom_peers_error(&peers, r) != 0) {
      snprintf(why, room, "the error word of rank %u is %#x", r, loom_peers_error(&peers, r));
      goto cleanup;
    }
  status = compare(s, dx, why, room);
cleanup:
  loom_end();
  return status;
}

static int drop_each(int seeds, int *passed) {
  int sites_count, failed = 0;
  struct loom_site *const *sites = loom_sites(&sites_count);
  char why[700] = "";
  const size_t count = sizeof scenes / sizeof *scenes;
  unsigned char *chosen = calloc((size_t)sites_count, 1);
  if (!chosen) abort();
  for (size_t c = 0; c < count; c++) {
    if (scenes[c].fault != NO_FAULT) continue;
    if (run(&scenes[c], 1, why, sizeof why)) printf("%s: %s\n", scenes[c].name, why);
    for (int i = 0; i < sites_count; i++)
      chosen[i] |= sites[i]->kind != LOOM_KIND_plain && sites[i]->hits != 0;
  }
  for (int i = 0; i < sites_count; i++) {
    if (!chosen[i]) continue;
    char label[128], example[700] = "";
    int best = 0;
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    for (size_t c = 0; c < count && best < seeds; c++) {
      int noticed = 0;
      for (int s = 1; s <= seeds && scenes[c].fault == NO_FAULT; s++)
        if (run(&scenes[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    printf("%s %-28s %-28s %d of %d seeds: %.150s\n", best == seeds ? "found " : "MISSED",
           sites[i]->op, label, best, seeds, example);
    *passed += best == seeds;
    failed += best != seeds;
  }
  free(chosen);
  return failed;
}

int main(int argc, char **argv) {
  int seeds = 8, drops = 0, passed = 0, failed = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else
      seeds = 0;
  }
  if (seeds < 1) {
    fprintf(stderr, "usage: loom_dx_reduce [--seeds N] [--drop-each]\n");
    return 2;
  }
  if (drops) {
    failed = drop_each(seeds, &passed);
  } else {
    for (size_t c = 0; c < sizeof scenes / sizeof *scenes; c++)
      for (int s = 1; s <= seeds; s++) {
        char why[700] = "";
        const int bad = run(&scenes[c], (uint64_t)s, why, sizeof why);
        passed += !bad;
        failed += bad != 0;
        if (bad) printf("FAILED %s, seed %d: %s\n", scenes[c].name, s, why);
      }
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
