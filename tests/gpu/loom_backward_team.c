/* Runs the backward kernel of a team in loom, one GPU a rank, two launches one after the other that
 * nothing orders between ranks, with dX summed among the tiles of dW: dX and dW right by f64, dX
 * the same bits on all ranks, no finding; and, with --drop-each, every acquire, release, wait and
 * barrier of the exchange left out in turn, which must be noticed in every seed of one case. A rank
 * whose part is made by no backward (it has no rows) takes the kernel behind it, in the same
 * exchange.
 *
 *   loom_backward_team [--seeds N] [--drop-each] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "cuda/backward.h"
#include "loom/peers.h"
#include "team_step.h"

enum { LOOM_CLUSTERS = 2, RANKS_MAX = 4, LAUNCHES = 2 };
#define TIMEOUT_NS 1000000000ull

extern const struct loom_kernel sm90_ce_backward_bf16, smxx_ce_dx_reduce;

struct scene {
  struct team_step_case c;
  uint32_t ranks, wave_cols, missing; /* missing: the last rank does not come */
};

static const struct scene scenes[] = {
    {{"two ranks", 300, 300, 72, 900, 0, WEFT_BF16, 0, 0, 0, 5, 1, 0, 0, 0, 0, 0}, 2, 2, 0},
    {{"waves, scattered", 70, 70, 72, 1300, 0, WEFT_BF16, 0, 0, 1, 0, 1, 0, 0, 0, 0,
      WEFT_DX_REDUCE_SCATTER},
     3,
     1,
     0},
    {{"a rank without rows", 90, 90, 64, 800, 0, WEFT_BF16, WEFT_F32, 0, 0, 0, 1, 1, 0, 0, 0, 0},
     3,
     2,
     0},
    {{"a rank is missing", 60, 60, 64, 500, 0, WEFT_BF16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, 2, 2, 1},
};
enum { SCENES = sizeof scenes / sizeof *scenes };

struct rank_state {
  struct backward_args args;
  struct dx_reduce_args apart;
  struct ce_backward_layout layout;
  int64_t rows;
  uint64_t dx, dw;
};

static int encode(const struct cuda_tensor *t, struct tensor_map *map) {
  return t->rank != 0 &&
         loom_tensor_map_encode(map, t->element == CUDA_F32 ? LOOM_F32 : LOOM_BF16, t->rank,
                                t->address, t->dims, t->strides, t->box, LOOM_SWIZZLE_128B);
}

static uint64_t upload(uint32_t rank, const void *from, size_t bytes) {
  const uint64_t at = loom_alloc(rank, bytes + 16);
  if (!at) abort();
  loom_write(at, from, bytes);
  return at;
}

static uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* Statistics in the form that backward takes, from what f64 says: relative to lse itself. */
static float *statistics(const struct scene *s, const struct team_step_data *d) {
  float *stats = malloc((size_t)s->c.tokens * 16);
  if (!stats) abort();
  for (int64_t i = 0; i < s->c.tokens; i++) {
    stats[i * 4] = (float)d->right.lse[i];
    stats[i * 4 + 1] = 1.0f;
    stats[i * 4 + 2] = d->target[i] < 0 ? 0.0f : (float)(d->right.lse[i] - d->right.nll[i]);
    stats[i * 4 + 3] = (float)-d->right.entropy[i];
  }
  return stats;
}

static uint64_t exchange_layout(const struct scene *s, struct dx_reduce_args *a) {
  const int32_t dtype = s->c.dx_dtype ? s->c.dx_dtype : s->c.dtype;
  memset(a, 0, sizeof *a);
  a->tokens = (uint32_t)s->c.tokens;
  a->hidden = (uint32_t)s->c.hidden;
  a->format = dtype == WEFT_F32 ? DX_F32 : DX_BF16;
  a->part_stride = (a->hidden + 3) / 4 * 4;
  a->shard_stride = (a->hidden + 7) / 8 * 8;
  a->summed = 8 * s->ranks;
  a->part = aligned(16 * s->ranks);
  a->shard = aligned(a->part + (uint64_t)a->tokens * a->part_stride * 4);
  a->scatter = s->c.dx_mode == WEFT_DX_REDUCE_SCATTER;
  a->dx_aligned = 1;
  a->dx_stride = a->hidden;
  return aligned(a->shard + (uint64_t)dx_shard_rows(a->tokens, s->ranks) * a->shard_stride * 4) +
         256;
}

static int make_rank(const struct scene *s, const struct team_step_data *d, const float *stats,
                     uint32_t rank, const struct loom_peers *peers, struct rank_state *r) {
  const struct team_step_case *c = &s->c;
  const size_t m = (size_t)c->tokens, h = (size_t)c->hidden;
  int64_t start = 0;
  memset(r, 0, sizeof *r);
  team_step_range(c, s->ranks, rank, &start, &r->rows);
  exchange_layout(s, &r->apart);
  r->apart.view = peers->view[rank];
  r->apart.epoch.a = loom_alloc(rank, 16);
  loom_fill(r->apart.epoch.a, 0, 16);
  r->apart.counter.a = r->apart.epoch.a + 8;
  r->dx = loom_alloc(rank, m * h * 4);
  r->apart.dx.a = r->dx;
  r->dw = loom_alloc(rank, (size_t)(r->rows + 1) * h * 2);
  loom_fill(r->dx, 0xff, m * h * 4);
  if (r->rows == 0) {
    loom_fill(peers->arena[rank] + r->apart.part, 0, m * r->apart.part_stride * 4);
    return 0;
  }
  const uint64_t zero[3] = {0, 0, 0};
  struct ce_backward_problem p = {
      .tokens = c->tokens,
      .hidden = c->hidden,
      .rows = r->rows,
      .vocab = c->vocab,
      .vocab_start = start,
      .ignore_index = -100,
      .x = upload(rank, d->x, m * h * 2),
      .w = upload(rank, d->w + start * c->hidden, (size_t)r->rows * h * 2),
      .target = upload(rank, d->target, m * 8),
      .stats = upload(rank, stats, m * 16),
      .g_nll = upload(rank, d->g[0], m * 4),
      .g_entropy = c->entropy ? upload(rank, d->g[1], m * 4) : 0,
      .g_lse = upload(rank, d->g[2], m * 4),
      .dx = peers->arena[rank] + r->apart.part,
      .dw = r->dw,
      .x_stride = c->hidden,
      .w_stride = c->hidden,
      .dx_stride = r->apart.part_stride,
      .dw_stride = c->hidden,
      .temperature = c->temperature,
      .target_i64 = 1,
      .dx_f32 = 1,
      .errors = upload(rank, zero, sizeof zero),
      .host_errors = upload(rank, zero, sizeof zero),
      .timeout_ns = TIMEOUT_NS};
  struct cuda_tensor tensors[CE_BACKWARD_MAPS];
  if (weft__ce_backward_layout(c->tokens, c->hidden, r->rows,
                               s->wave_cols * c->tokens * BACKWARD_TILE_COLS * 2, &r->layout))
    return -1;
  const uint64_t workspace = loom_alloc(rank, (size_t)r->layout.bytes);
  if (weft__ce_backward_plan(&p, &r->layout, workspace, tensors, &r->args) != WEFT_OK) return -1;
  for (int i = 0; i < CE_BACKWARD_MAPS; i++)
    if (encode(&tensors[i], weft__ce_backward_map(&r->args, i))) return -1;
  const struct backward_schedule *schedule = &r->args.schedule;
  const uint32_t dw_tiles =
      backward_wave_cols(schedule, backward_waves(schedule) - 1) * schedule->h_tiles;
  r->args.exchange = r->apart;
  r->args.team =
      backward_team_make(dx_shard_rows(r->apart.tokens, s->ranks), s->ranks, r->apart.scatter,
                         r->args.end - dw_tiles, dw_tiles, LOOM_CLUSTERS);
  return 0;
}

static int launch_rank(uint32_t rank, struct rank_state *r, int launches) {
  for (int i = 0; i < launches; i++) {
    struct loom_launch launch = {.kernel = &smxx_ce_dx_reduce,
                                 .args = &r->apart,
                                 .gpu = rank,
                                 .ctas = 2,
                                 .smem_bytes = DX_REDUCE_SHARED_BYTES};
    if (r->rows > 0) {
      r->args.counters.a = loom_alloc(rank, (size_t)r->layout.counters_bytes);
      loom_fill(r->args.counters.a, 0, (size_t)r->layout.counters_bytes);
      launch.kernel = &sm90_ce_backward_bf16;
      launch.args = &r->args;
      launch.ctas = LOOM_CLUSTERS * BACKWARD_CLUSTER;
      launch.smem_bytes = BACKWARD_SHARED_BYTES;
    }
    if (loom_launch(&launch)) return -1;
  }
  return 0;
}

/* Frobenius distance of rows [first, first + rows) of `right` from what `got` holds from its start.
 */
static void add_distance(const double *right, const unsigned char *got, int64_t rows, int64_t cols,
                         int32_t dtype, double *error, double *norm) {
  for (int64_t i = 0; i < rows * cols; i++) {
    const double v = team_step_value(got, i, dtype);
    *error += (v - right[i]) * (v - right[i]);
    *norm += right[i] * right[i];
  }
}

static int compare(const struct scene *s, const struct team_step_data *d,
                   const struct rank_state *ranks, char *why, size_t room) {
  const int64_t m = s->c.tokens, h = s->c.hidden;
  const int32_t dtype = s->c.dx_dtype ? s->c.dx_dtype : s->c.dtype;
  const size_t bytes = (size_t)(m * h) * (dtype == WEFT_F32 ? 4 : 2);
  const uint32_t shard = dx_shard_rows((uint32_t)m, s->ranks);
  unsigned char *first = malloc(bytes), *got = malloc(bytes + (size_t)(s->c.vocab * h) * 2);
  double dx_error = 0, dx_norm = 0, dw_error = 0, dw_norm = 0;
  int differ = 0;
  if (!first || !got) abort();
  for (uint32_t r = 0; r < s->ranks; r++) {
    int64_t start = 0, rows = 0;
    loom_read(ranks[r].dx, got, bytes);
    if (s->c.dx_mode == WEFT_DX_REDUCE_SCATTER) {
      const int64_t from = (int64_t)(r * shard) < m ? (int64_t)(r * shard) : m;
      const int64_t count = m - from < (int64_t)shard ? m - from : (int64_t)shard;
      add_distance(d->right.dx + from * h, got, count, h, dtype, &dx_error, &dx_norm);
    } else {
      add_distance(d->right.dx, got, m, h, dtype, &dx_error, &dx_norm);
      if (r == 0) memcpy(first, got, bytes);
      differ += memcmp(first, got, bytes) != 0;
    }
    team_step_range(&s->c, s->ranks, r, &start, &rows);
    loom_read(ranks[r].dw, got, (size_t)(rows * h) * 2);
    add_distance(d->right.dw + start * h, got, rows, h, WEFT_BF16, &dw_error, &dw_norm);
  }
  free(first);
  free(got);
  snprintf(why, room, "dX off by %.4f%%, dW by %.4f%%, %d ranks differ",
           100 * sqrt(dx_error / dx_norm), 100 * sqrt(dw_error / dw_norm), differ);
  return !(sqrt(dx_error / dx_norm) <= 0.0025 && sqrt(dw_error / dw_norm) <= 0.0025 && !differ);
}

static int run(const struct scene *s, const struct team_step_data *d, uint64_t seed, char *why,
               size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  struct loom_peers peers;
  struct dx_reduce_args sizes;
  static struct rank_state ranks[RANKS_MAX];
  int status = 1;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  config.gpus = s->ranks;
  config.timeouts_expected = (int)s->missing;
  if (loom_begin(&config)) return 1;
  float *stats = statistics(s, d);
  const uint64_t bytes = exchange_layout(s, &sizes);
  if (loom_peers_make(&peers, s->ranks, 1, bytes, 16 * s->ranks, TIMEOUT_NS)) abort();
  for (uint32_t r = 0; r < s->ranks; r++)
    if (make_rank(s, d, stats, r, &peers, &ranks[r])) {
      snprintf(why, room, "can't set the scene: %s", weft_last_error());
      goto cleanup;
    }
  for (uint32_t r = 0; r < s->ranks; r++) {
    if (s->missing && r == s->ranks - 1) continue;
    if (launch_rank(r, &ranks[r], s->missing ? 1 : LAUNCHES)) abort();
  }
  const int found = loom_run();
  if (s->missing) {
    const uint32_t word = loom_peers_error(&peers, 0);
    status = word != peer_error(PEER_ERROR_TIMEOUT, PEER_PHASE_DX_PARTIAL, s->ranks - 1);
    if (status) snprintf(why, room, "the error word is %#x", word);
    for (int i = 0; i < found; i++)
      if (loom_finding_at(i)->kind != LOOM_UNWRITTEN && loom_finding_at(i)->kind != LOOM_RACE) {
        snprintf(why, room, "%s", loom_finding_at(i)->text);
        status = 1;
      }
    goto cleanup;
  }
  if (found) {
    snprintf(why, room, "%s", loom_finding_at(0)->text);
    goto cleanup;
  }
  status = compare(s, d, ranks, why, room);
cleanup:
  free(stats);
  loom_end();
  return status;
}

/* The exchange's own, in the backward kernel. */
static int is_of_exchange(const struct loom_site *site) {
  const char *slash = strrchr(site->file, '/');
  const char *file = slash ? slash + 1 : site->file;
  if (site->kind == LOOM_KIND_plain || site->hits == 0) return 0;
  return !strcmp(file, "sm90_backward_team.h") || !strcmp(file, "dx_reduce_parts.h");
}

static int drop_each(const struct team_step_data *data, int seeds, int *passed) {
  int count, failed = 0;
  struct loom_site *const *sites = loom_sites(&count);
  char why[700];
  unsigned char *chosen = calloc((size_t)count, 1);
  if (!chosen) abort();
  for (int c = 0; c < SCENES; c++) {
    if (scenes[c].missing) continue;
    if (run(&scenes[c], &data[c], 1, why, sizeof why)) printf("undropped: %s\n", why);
    for (int i = 0; i < count; i++)
      chosen[i] |= (unsigned char)is_of_exchange(sites[i]);
  }
  for (int i = 0; i < count; i++) {
    if (!chosen[i]) continue;
    char label[128], example[700] = "";
    int best = 0;
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    for (int c = 0; c < SCENES && best < seeds; c++) {
      int noticed = 0;
      for (int s = 1; s <= seeds && noticed == s - 1 && !scenes[c].missing; s++)
        if (run(&scenes[c], &data[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    printf("%s %-28s %-28s in %s, %d of %d seeds: %.150s\n", best == seeds ? "found " : "MISSED",
           sites[i]->op, label, sites[i]->function, best, seeds, example);
    fflush(stdout);
    *passed += best == seeds;
    failed += best != seeds;
  }
  free(chosen);
  return failed;
}

int main(int argc, char **argv) {
  int seeds = 4, drops = 0, passed = 0, failed = 0;
  struct team_step_data data[SCENES];
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else
      seeds = 0;
  }
  if (seeds < 1) {
    fprintf(stderr, "usage: loom_backward_team [--seeds N] [--drop-each]\n");
    return 2;
  }
  for (int c = 0; c < SCENES; c++)
    team_step_make(&scenes[c].c, 3, &data[c]);
  if (drops) failed = drop_each(data, seeds, &passed);
  for (int c = 0; c < SCENES && !drops; c++)
    for (int s = 1; s <= seeds; s++) {
      char why[700] = "";
      const int bad = run(&scenes[c], &data[c], (uint64_t)s, why, sizeof why);
      passed += !bad;
      failed += bad != 0;
      printf("%s %s, seed %d: %s\n", bad ? "FAILED" : "ok    ", scenes[c].c.name, s, why);
      fflush(stdout);
    }
  for (int c = 0; c < SCENES; c++)
    team_step_free(&data[c]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
