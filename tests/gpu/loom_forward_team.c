/* Runs forward of a team in loom, one GPU a rank, two launches one after the other that nothing
 * orders between ranks: right by f64 on every rank, the same bits on all, no finding; and, with
 * --drop-each, every acquire, release, wait and barrier of the exchange left out in turn, which
 * must be noticed in every seed of one case. Ranks that differ in their tokens, and one that does
 * not come, must be reported by name.
 *
 *   loom_forward_team [--seeds N] [--ranks N] [--drop-each] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "cuda/ce.h"
#include "loom/peers.h"
#include "team_forward.h"

enum { LOOM_CLUSTERS = 2, RANKS_MAX = 8, LAUNCHES = 2 };

extern const struct loom_kernel sm90_ce_forward_bf16, sm90_ce_forward_f16, sm90_ce_forward_absent;

/* What is wrong in a run on purpose. */
enum fault { NO_FAULT, OTHER_TOKENS, NO_TOKENS, MISSING };

struct scene {
  const struct forward_data *d;
  uint32_t ranks;
  enum team_cut cut;
  enum fault fault; /* of the last rank */
};

struct rank_state {
  weft_ce_plan plan;
  weft__sm90_ce state;
  weft_ce_args args;
  uint64_t mirror;
};

static int encode(const struct cuda_tensor *t, struct tensor_map *map) {
  return loom_tensor_map_encode(map, t->element == CUDA_F16 ? LOOM_F16 : LOOM_BF16, t->rank,
                                t->address, t->dims, t->strides, t->box, LOOM_SWIZZLE_128B);
}

static uint64_t upload(uint32_t rank, const void *from, size_t bytes) {
  const uint64_t to = loom_alloc(rank, bytes > 0 ? bytes : 16);
  if (to == 0) abort();
  if (bytes > 0) loom_write(to, from, bytes);
  return to;
}

static float *output(uint32_t rank, const float *from, int64_t tokens, int64_t width) {
  const uint64_t to = upload(rank, from, (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
  return (float *)(uintptr_t)(to + FORWARD_GUARD * (uint64_t)width * 4);
}

static void fetch(float *to, const float *from, int64_t tokens, int64_t width) {
  loom_read((uint64_t)(uintptr_t)from - FORWARD_GUARD * (uint64_t)width * 4, to,
            (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
}

/* A plan as weft_ce_plan_create() would make it, on loom's memory; its arena is its own. */
static size_t make_plan(const struct scene *s, uint32_t rank, struct rank_state *r) {
  static weft_comm team; /* that there is one is all that is looked at */
  size_t offset = 0;
  memset(r, 0, sizeof *r);
  r->plan.config = team_config(s->d->c, s->cut, s->ranks, rank, &offset);
  const int64_t real = r->plan.config.vocab - r->plan.config.vocab_start;
  r->plan.rows = real < 0                            ? 0
                 : real < r->plan.config.vocab_local ? real
                                                     : r->plan.config.vocab_local;
  r->plan.state = &r->state;
  weft__sm90_forward_layout(&r->plan.config, &r->state.layout);
  weft__sm90_team_layout(&r->plan.config, s->ranks, &r->state.layout);
  r->state.layout.forward_group = 1;
  r->state.layout.forward_segments = 2;
  r->state.team.comm = &team;
  r->state.scratch = upload(rank, NULL, 0);
  if (r->state.layout.forward_bytes > 0)
    r->state.scratch = loom_alloc(rank, (size_t)r->state.layout.forward_bytes);
  r->state.errors = loom_alloc(rank, sizeof(struct forward_errors));
  r->mirror = loom_alloc(rank, sizeof(struct forward_errors));
  r->state.team.epoch = loom_alloc(rank, 8);
  loom_fill(r->state.errors, 0, sizeof(struct forward_errors));
  loom_fill(r->mirror, 0, sizeof(struct forward_errors));
  loom_fill(r->state.team.epoch, 0, 8);
  r->state.host_errors = (struct forward_errors *)(uintptr_t)r->mirror;
  r->state.timeout_ns = 1000000000;
  return offset;
}

static void make_args(const struct scene *s, uint32_t rank, size_t offset, struct rank_state *r) {
  const struct forward_data *d = s->d;
  const int64_t m = d->c->tokens;
  const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
  struct forward_outputs fresh;
  if (forward_outputs_make(m, &fresh)) abort();
  r->args = defaults;
  r->args.tokens = m;
  r->args.x = (void *)(uintptr_t)upload(rank, d->x, d->x_bytes);
  r->args.w = (void *)(uintptr_t)upload(rank, (const char *)d->w + offset, d->w_bytes - offset);
  r->args.x_stride = d->c->x_extra ? d->c->hidden + d->c->x_extra : 0;
  r->args.w_stride = d->c->w_extra ? d->c->hidden + d->c->w_extra : 0;
  r->args.target = (void *)(uintptr_t)upload(rank, d->target, d->target_bytes);
  if (d->c->temperature != 0) r->args.temperature = d->c->temperature;
  r->args.nll = output(rank, fresh.nll, m, 1);
  r->args.lse = output(rank, fresh.lse, m, 1);
  r->args.entropy = d->c->entropy ? output(rank, fresh.entropy, m, 1) : NULL;
  r->args.stats = output(rank, fresh.stats, m, 4);
  forward_outputs_free(&fresh);
}

/* One launch; the words of control are of this launch alone, as the memset before it makes them. */
static int launch(const struct scene *s, uint32_t rank, struct rank_state *r) {
  struct forward_args a;
  struct cuda_tensor tensors[2];
  const int absent = r->args.tokens == 0 || r->plan.rows == 0;
  if (weft__sm90_forward_prepare(&r->plan, &r->args, tensors, &a) != WEFT_OK) return -1;
  if (!a.by_hand && (encode(&tensors[0], &a.x) || encode(&tensors[1], &a.w))) return -1;
  a.control.a = loom_alloc(rank, sizeof(struct forward_control));
  loom_fill(a.control.a, 0, sizeof(struct forward_control));
  const uint32_t units = absent ? 1 : forward_schedule_count(&a.schedule);
  const struct loom_launch run = {
      .kernel = absent                       ? &sm90_ce_forward_absent
                : s->d->c->dtype == WEFT_F16 ? &sm90_ce_forward_f16
                                             : &sm90_ce_forward_bf16,
      .args = &a,
      .gpu = rank,
      .ctas = absent ? 2 : (units < LOOM_CLUSTERS ? units : LOOM_CLUSTERS) * FORWARD_CLUSTER,
      .smem_bytes = absent ? 0 : FORWARD_SHARED_BYTES,
      .cooperative = 1};
  return loom_launch(&run);
}

static int compare(const struct scene *s, const struct rank_state *ranks, char *why, size_t room) {
  const int64_t m = s->d->c->tokens;
  struct forward_outputs got, first;
  int status = 1;
  if (forward_outputs_make(m, &got) || forward_outputs_make(m, &first)) abort();
  for (uint32_t r = 0; r < s->ranks; r++) {
    char text[500];
    fetch(got.nll, ranks[r].args.nll, m, 1);
    fetch(got.lse, ranks[r].args.lse, m, 1);
    if (ranks[r].args.entropy != NULL) fetch(got.entropy, ranks[r].args.entropy, m, 1);
    fetch(got.stats, ranks[r].args.stats, m, 4);
    if (forward_compare(s->d, &got, text, sizeof text)) {
      snprintf(why, room, "rank %u: %s", r, text);
      goto cleanup;
    }
    const size_t count = (size_t)m + 2 * FORWARD_GUARD;
    if (r == 0) {
      memcpy(first.nll, got.nll, count * 4);
      memcpy(first.lse, got.lse, count * 4);
      memcpy(first.entropy, got.entropy, count * 4);
      memcpy(first.stats, got.stats, count * 16);
    }
    if (memcmp(first.nll, got.nll, count * 4) || memcmp(first.lse, got.lse, count * 4) ||
        memcmp(first.entropy, got.entropy, count * 4) ||
        memcmp(first.stats, got.stats, count * 16)) {
      snprintf(why, room, "rank %u has other bits than rank 0", r);
      goto cleanup;
    }
  }
  status = 0;
cleanup:
  forward_outputs_free(&got);
  forward_outputs_free(&first);
  return status;
}

/* With a fault, every other rank must have an error word that names the last one. */
static int check_fault(const struct scene *s, const struct loom_peers *peers, char *why,
                       size_t room) {
  const uint32_t last = s->ranks - 1;
  const enum peer_error_kind kind = s->fault == MISSING ? PEER_ERROR_TIMEOUT : PEER_ERROR_DIFFERS;
  for (uint32_t r = 0; r < last; r++) {
    const uint32_t word = loom_peers_error(peers, r);
    if (word == peer_error(kind, PEER_PHASE_STATISTICS, last)) continue;
    snprintf(why, room, "fault %d: the error word of rank %u is %#x, expected %#x", (int)s->fault,
             r, word, peer_error(kind, PEER_PHASE_STATISTICS, last));
    return 1;
  }
  return 0;
}

/* 0 where all is right and nothing is found; else says why. */
static int run(const struct scene *s, uint64_t seed, char *why, size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  struct loom_peers peers;
  static struct rank_state ranks[RANKS_MAX];
  size_t offset[RANKS_MAX];
  int status = 1;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  config.gpus = s->ranks;
  config.timeouts_expected = s->fault != NO_FAULT;
  if (loom_begin(&config)) {
    snprintf(why, room, "loom_begin failed");
    return 1;
  }
  for (uint32_t r = 0; r < s->ranks; r++) {
    offset[r] = make_plan(s, r, &ranks[r]);
    make_args(s, r, offset[r], &ranks[r]);
  }
  const weft__sm90_layout *const l = &ranks[0].state.layout;
  if (loom_peers_make(&peers, s->ranks, 1, (size_t)l->symmetric_bytes, (size_t)l->signal_bytes,
                      1000000000))
    abort();
  for (uint32_t r = 0; r < s->ranks; r++) {
    ranks[r].state.team.view = peers.view[r];
    const int last = r == s->ranks - 1;
    if (last && s->fault == MISSING) continue;
    if (last && s->fault == OTHER_TOKENS) ranks[r].args.tokens -= 150;
    if (last && s->fault == NO_TOKENS) ranks[r].args.tokens = 0;
    for (int i = 0; i < (s->fault == NO_FAULT ? LAUNCHES : 1); i++)
      if (launch(s, r, &ranks[r])) {
        snprintf(why, room, "can't launch");
        goto cleanup;
      }
  }
  const int found = loom_run();
  if (s->fault != NO_FAULT) {
    /* rows of a rank that failed may be read before anything wrote them */
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
  status = compare(s, ranks, why, room);
cleanup:
  loom_end();
  return status;
}

/* Of the exchange: what ranks do with each other, and what leads to it. */
static int is_of_exchange(const struct loom_site *site) {
  const char *file = strrchr(site->file, '/');
  file = file ? file + 1 : site->file;
  if (site->kind == LOOM_KIND_plain || site->hits == 0) return 0;
  return !strcmp(file, "sm90_forward_team.h") || !strcmp(file, "sm90_ce_forward_absent.cu") ||
         !strcmp(site->function, "announce");
}

static int drop_each(const struct scene *scenes, size_t count, int seeds, int *passed) {
  int sites_count, failed = 0;
  struct loom_site *const *sites = loom_sites(&sites_count);
  char why[700] = "";
  unsigned char *chosen = calloc((size_t)sites_count, 1);
  if (!chosen) abort();
  for (size_t c = 0; c < count; c++) {
    if (run(&scenes[c], 1, why, sizeof why)) printf("%s: %s\n", scenes[c].d->c->name, why);
    for (int i = 0; i < sites_count; i++)
      chosen[i] |= (unsigned char)is_of_exchange(sites[i]);
  }
  for (int i = 0; i < sites_count; i++) {
    if (!chosen[i]) continue;
    char label[128], example[700] = "";
    int best = 0;
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    for (size_t c = 0; c < count && best < seeds; c++) {
      int noticed = 0;
      for (int s = 1; s <= seeds; s++)
        if (run(&scenes[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    printf("%s %-36s %-28s %d of %d seeds: %.150s\n", best == seeds ? "found " : "MISSED",
           sites[i]->op, label, best, seeds, example);
    fflush(stdout);
    *passed += best == seeds;
    failed += best != seeds;
  }
  free(chosen);
  return failed;
}

int main(int argc, char **argv) {
  int seeds = 4, drops = 0, ranks = 2, passed = 0, failed = 0;
  struct forward_data data[8];
  struct scene scenes[32];
  size_t count = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else if (i + 1 < argc && !strcmp(argv[i], "--ranks"))
      ranks = atoi(argv[++i]);
    else
      seeds = 0;
  }
  if (seeds < 1 || ranks < 2 || ranks > RANKS_MAX) {
    fprintf(stderr, "usage: loom_forward_team [--seeds N] [--ranks 2..8] [--drop-each]\n");
    return 2;
  }
  for (size_t c = 0; c < forward_toy_case_count; c++) {
    if (forward_data_make(&forward_toy_cases[c], 7, &data[c])) return 4;
    for (int cut = 0; cut < TEAM_CUTS; cut++)
      scenes[count++] = (struct scene){&data[c], (uint32_t)ranks, (enum team_cut)cut, NO_FAULT};
  }
  const size_t right = count;
  for (int fault = OTHER_TOKENS; fault <= MISSING; fault++)
    scenes[count++] = (struct scene){&data[0], (uint32_t)ranks, TEAM_EVEN, (enum fault)fault};
  if (drops) {
    failed = drop_each(scenes, right, seeds, &passed);
  } else {
    for (size_t c = 0; c < count; c++)
      for (int s = 1; s <= seeds; s++) {
        char why[700] = "";
        const int bad = run(&scenes[c], (uint64_t)s, why, sizeof why);
        passed += !bad;
        failed += bad != 0;
        if (bad)
          printf("FAILED %s, cut %d, fault %d, seed %d: %s\n", scenes[c].d->c->name,
                 (int)scenes[c].cut, (int)scenes[c].fault, s, why);
      }
  }
  for (size_t c = 0; c < forward_toy_case_count; c++)
    forward_data_free(&data[c]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
