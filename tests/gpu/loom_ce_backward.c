/* Runs the backward kernel in loom: right against f64, no finding, under several seeds and
 * policies; and, with --drop-each, every fence, acquire, release, wait and barrier of the kernel
 * left out in turn, which must be noticed (a finding or a wrong result) in every seed of at least
 * one case.
 *
 *   loom_ce_backward [--seeds N] [--case I] [--drop-each] [--line N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "ce_backward_cases.h"

enum { LOOM_CLUSTERS = 2, CASES_MAX = 16 };

extern const struct loom_kernel sm90_ce_backward_bf16, sm90_ce_backward_bf16_begin;
extern const struct loom_kernel sm90_ce_step_bf16, sm90_ce_step_bf16_begin;
extern const struct loom_kernel sm90_backward_dx_turn, sm90_backward_dx_turn_begin;
static int in_turn; /* the kernel that takes turns in dX too */

static int encode(const struct cuda_tensor *t, struct tensor_map *map) {
  return t->rank != 0 &&
         loom_tensor_map_encode(map, t->element == CUDA_F32 ? LOOM_F32 : LOOM_BF16, t->rank,
                                t->address, t->dims, t->strides, t->box, LOOM_SWIZZLE_128B);
}

static uint64_t upload(const void *from, size_t bytes) {
  const uint64_t at = loom_alloc(0, bytes);
  if (at) loom_write(at, from, bytes);
  return at;
}

/* 0 where all is right and nothing is found; else says why. */
static int run(const struct ce_backward_case *c, const struct ce_backward_data *d, uint64_t seed,
               char *why, size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  if (loom_begin(&config)) {
    snprintf(why, room, "loom_begin failed");
    return 1;
  }
  int status = 1;
  struct backward_args args;
  struct cuda_tensor tensors[CE_BACKWARD_MAPS];
  struct ce_backward_layout layout;
  struct ce_backward_problem p = ce_backward_data_problem(d);
  const uint32_t zero[3] = {0, 0, 0};
  unsigned char *dx = malloc(d->dx_bytes), *dw = malloc(d->dw_bytes);
  const int step = (c->flags & CE_STEP) != 0, entropy = (c->flags & CE_WANTS_ENTROPY) != 0;
  float *loss = malloc(3 * d->row_bytes);
  if (!dx || !dw || !loss || ce_backward_case_layout(c, &layout)) {
    snprintf(why, room, "can't set the scene");
    goto cleanup;
  }
  p.x = upload(d->x, d->x_bytes);
  p.w = upload(d->w, d->w_bytes) + (uint64_t)(d->vocab_start * d->w_stride) * 2;
  p.target = upload(d->target, d->target_bytes);
  p.stats = upload(d->stats, d->stats_bytes);
  p.g_nll = upload(d->g_nll, d->row_bytes);
  p.g_entropy = c->flags & CE_ENTROPY ? upload(d->g_entropy, d->row_bytes) : 0;
  p.g_lse = c->flags & CE_LSE ? upload(d->g_lse, d->row_bytes) : 0;
  memset(loss, 0x5a, 3 * d->row_bytes);
  p.nll = upload(loss, d->row_bytes);
  p.lse = upload(loss, d->row_bytes);
  p.entropy = entropy ? upload(loss, d->row_bytes) : 0;
  p.dx = c->flags & CE_NO_DX ? 0 : upload(d->dx_before, d->dx_bytes);
  p.dw = upload(d->dw_before, d->dw_bytes);
  p.errors = upload(zero, sizeof zero);
  p.host_errors = upload(zero, sizeof zero);
  p.count_targets = 1;
  p.dx_in_turn = in_turn;
  const uint64_t workspace = loom_alloc(0, (size_t)layout.bytes);
  if (!workspace || weft__ce_backward_plan(&p, &layout, workspace, tensors, &args) != WEFT_OK) {
    snprintf(why, room, "can't set the scene: %s", weft_last_error());
    goto cleanup;
  }
  for (int i = 0; i < CE_BACKWARD_MAPS; i++)
    if (encode(&tensors[i], weft__ce_backward_map(&args, i))) {
      snprintf(why, room, "can't encode map %d", i);
      goto cleanup;
    }
  const struct loom_launch begin = {.kernel = step      ? &sm90_ce_step_bf16_begin
                                              : in_turn ? &sm90_backward_dx_turn_begin
                                                        : &sm90_ce_backward_bf16_begin,
                                    .args = &args,
                                    .ctas = args.schedule.row_tiles *
                                            (BACKWARD_TILE / BACKWARD_DEPTH_STEP),
                                    .smem_bytes = BACKWARD_BEGIN_SHARED_BYTES};
  const struct loom_launch launch = {
      .kernel = step      ? &sm90_ce_step_bf16
                : in_turn ? &sm90_backward_dx_turn
                          : &sm90_ce_backward_bf16,
      .args = &args,
      .ctas = (c->clusters ? c->clusters : LOOM_CLUSTERS) * BACKWARD_CLUSTER,
      .smem_bytes = step ? STEP_SHARED_BYTES : BACKWARD_SHARED_BYTES};
  if (loom_launch(&begin) || loom_launch(&launch)) {
    snprintf(why, room, "loom_launch failed");
    goto cleanup;
  }
  if (loom_run()) {
    snprintf(why, room, "%s", loom_finding_at(0)->text);
    goto cleanup;
  }
  if (p.dx) loom_read(p.dx, dx, d->dx_bytes);
  loom_read(p.dw, dw, d->dw_bytes);
  loom_read(p.nll, loss, d->row_bytes);
  loom_read(p.lse, loss + c->tokens, d->row_bytes);
  if (entropy) loom_read(p.entropy, loss + 2 * c->tokens, d->row_bytes);
  status = ce_backward_data_compare(d, dx, dw, why, room);
  if (!status && step)
    status = ce_backward_data_compare_loss(d, loss, loss + c->tokens,
                                           entropy ? loss + 2 * c->tokens : NULL, why, room);
cleanup:
  free(loss);
  free(dx);
  free(dw);
  loom_end();
  return status;
}

static int is_of_kernel(const struct loom_site *site) {
  const char *slash = strrchr(site->file, '/');
  const char *file = slash ? slash + 1 : site->file;
  return site->kind != LOOM_KIND_plain && site->hits != 0 && !strncmp(file, "sm90_", 5);
}

static int drop_each(struct ce_backward_data *data, size_t cases, int only, int seeds, int line,
                     int *passed) {
  int count, failed = 0;
  struct loom_site *const *sites = loom_sites(&count);
  char why[600];
  unsigned char *chosen = calloc((size_t)count, 1);
  if (!chosen) abort();
  for (size_t c = 0; c < cases; c++) {
    if (only >= 0 && (size_t)only != c) continue;
    if (run(data[c].c, &data[c], 1, why, sizeof why)) printf("undropped: %s\n", why);
    for (int i = 0; i < count; i++)
      chosen[i] |= (unsigned char)is_of_kernel(sites[i]);
  }
  for (int i = 0; i < count; i++) {
    if (!chosen[i] || (line && sites[i]->line != line)) continue;
    char label[128], example[600] = "";
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    int best = 0;
    for (size_t c = 0; c < cases && best < seeds; c++) {
      if (only >= 0 && (size_t)only != c) continue;
      int noticed = 0;
      for (int s = 1; s <= seeds && noticed == s - 1; s++)
        if (run(data[c].c, &data[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    const int good = best == seeds;
    const char *slash = strrchr(sites[i]->file, '/');
    printf("%s %s:%d %s %s in %s, %d of %d seeds: %.200s\n", good ? "found " : "MISSED",
           slash ? slash + 1 : sites[i]->file, sites[i]->line, sites[i]->op, label,
           sites[i]->function, best, seeds, example);
    fflush(stdout);
    *passed += good;
    failed += !good;
  }
  free(chosen);
  return failed;
}

int main(int argc, char **argv) {
  int seeds = 4, drops = 0, passed = 0, failed = 0, only = -1, line = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (!strcmp(argv[i], "--in-turn"))
      in_turn = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else if (i + 1 < argc && !strcmp(argv[i], "--case"))
      only = atoi(argv[++i]);
    else if (i + 1 < argc && !strcmp(argv[i], "--line"))
      line = atoi(argv[++i]);
    else
      seeds = 0;
  }
  if (seeds < 1) {
    fprintf(stderr, "usage: loom_ce_backward [--seeds N] [--case I] [--drop-each] [--line N]\n");
    return 2;
  }
  static struct ce_backward_data data[CASES_MAX];
  if (ce_backward_toy_case_count > CASES_MAX) abort();
  for (size_t c = 0; c < ce_backward_toy_case_count; c++)
    if (ce_backward_data_make(&ce_backward_toy_cases[c], &data[c])) return 4;
  if (drops) failed = drop_each(data, ce_backward_toy_case_count, only, seeds, line, &passed);
  for (size_t c = 0; c < ce_backward_toy_case_count && !drops; c++) {
    if (only >= 0 && (size_t)only != c) continue;
    for (int s = 1; s <= seeds; s++) {
      char why[600] = "", name[256];
      ce_backward_case_name(&ce_backward_toy_cases[c], name, sizeof name);
      const int bad = run(&ce_backward_toy_cases[c], &data[c], (uint64_t)s, why, sizeof why);
      passed += !bad;
      failed += bad != 0;
      if (bad)
        printf("FAILED %s, seed %d: %s\n", name, s, why);
      else
        printf("ok     %s, seed %d: dX %.4f%% dW %.4f%%\n", name, s, 100 * ce_backward_dx_error,
               100 * ce_backward_dw_error);
      fflush(stdout);
    }
  }
  for (size_t c = 0; c < ce_backward_toy_case_count; c++)
    ce_backward_data_free(&data[c]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
