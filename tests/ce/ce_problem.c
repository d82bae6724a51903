/* Inputs of a case and the right answers for them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ce_case.h"

const ce_case ce_default = {.ranks = 1,
                            .tokens = 17,
                            .hidden = 64,
                            .vocab = 507,
                            .dtype = WEFT_F32,
                            .target_dtype = WEFT_I64,
                            .dx_mode = WEFT_DX_ALL_REDUCE,
                            .upstream = UP_NLL,
                            .temperature = 1,
                            .ignore_index = -100,
                            .threads = 1,
                            .seed = 1};

void ce_range(const ce_case *c, int64_t rank, int64_t *start, int64_t *local) {
  const int64_t rows = c->vocab + c->padding, n = c->ranks, one = (int64_t)(c->seed % (uint64_t)n);
  int64_t end = 0;
  switch (c->split) {
  case SPLIT_UNEVEN: /* rank r's share goes with r + 1 */
    *start = rows * (rank * (rank + 1)) / (n * (n + 1));
    end = rows * ((rank + 1) * (rank + 2)) / (n * (n + 1));
    break;
  case SPLIT_ONE_EMPTY:
    if (n > 1) {
      const int64_t before = rank <= one ? rank : rank - 1, after = rank < one ? rank + 1 : rank;
      *start = rows * before / (n - 1);
      end = rows * after / (n - 1);
      if (rank == one) end = *start;
      break;
    } /* else: as even */
    *start = 0;
    end = rows;
    break;
  case SPLIT_ONE_FULL:
    *start = rank <= one ? 0 : rows;
    end = rank < one ? 0 : rows;
    break;
  default: /* ⌈rows / n⌉ each, the last ones less */
  {
    const int64_t share = (rows + n - 1) / n;
    *start = rank * share < rows ? rank * share : rows;
    end = (rank + 1) * share < rows ? (rank + 1) * share : rows;
  }
  }
  *local = end - *start;
}

static bool ignored(const ce_case *c, int64_t row) {
  switch (c->ignore) {
  case IGNORE_ALL:
    return true;
  case IGNORE_ALL_BUT_ONE:
    return row != c->tokens / 2;
  case IGNORE_SOME:
    return noise_uniform(c->seed + 5, (uint64_t)row) < 0.2;
  default:
    return false;
  }
}

/* Targets everywhere in the vocabulary; the first ones at both ends of every rank's range. */
static int64_t target_of(const ce_case *c, int64_t row) {
  int64_t start, local;
  const double u = noise_uniform(c->seed + 4, (uint64_t)row);
  if (c->targets == TARGETS_FIRST_ROW) return 0;
  if (c->targets == TARGETS_LAST_RANK) {
    ce_range(c, c->ranks - 1, &start, &local);
    return start + (int64_t)(u * (double)(c->vocab - start));
  }
  if (row < 2 * c->ranks) {
    ce_range(c, row / 2, &start, &local);
    const int64_t edge = row % 2 == 0 ? start : start + local - 1;
    if (local > 0 && edge < c->vocab) return edge;
  }
  return (int64_t)(u * (double)c->vocab);
}

static double scale_of(double s) {
  return s != 0 ? s : 1;
}

void ce_problem_make(const ce_case *c, ce_problem *p) {
  const int64_t m = c->tokens, h = c->hidden, v = c->vocab, all = v + c->padding;
  const int64_t stride = h + c->stride_extra;
  const int dw_dtype = c->dw_dtype != WEFT_DTYPE_DEFAULT ? c->dw_dtype : c->dtype;
  *p = (ce_problem){0};
  p->x = matrix_new(c->dtype, m, h, stride, c->offset);
  p->w = matrix_new(c->dtype, all, h, stride, c->offset);
  p->target = matrix_new(c->target_dtype, 1, m, 0, c->offset);
  p->old_dw = matrix_new(dw_dtype, all, h, 0, 0);
  p->targets = malloc((size_t)(m + 1) * sizeof *p->targets);
  const double sx = scale_of(c->x_scale), sw = scale_of(c->w_scale) / sqrt((double)h);
  for (int64_t i = 0; i < m; i++)
    for (int64_t k = 0; k < h; k++)
      matrix_set(&p->x, i, k, sx * noise_normal(c->seed + 2, (uint64_t)(i * h + k)));
  for (int64_t j = 0; j < v; j++)
    for (int64_t k = 0; k < h; k++)
      matrix_set(&p->w, j, k, sw * noise_normal(c->seed + 3, (uint64_t)(j * h + k)));
  for (int64_t j = 0; j < all; j++)
    for (int64_t k = 0; k < h; k++)
      matrix_set(&p->old_dw, j, k, 0.1 * noise_normal(c->seed + 6, (uint64_t)(j * h + k)));
  for (int64_t i = 0; i < m; i++) {
    p->targets[i] = ignored(c, i) ? c->ignore_index : target_of(c, i);
    matrix_set(&p->target, 0, i, (double)p->targets[i]);
  }
  for (int u = 0; u < 3; u++) {
    p->up[u] = matrix_new(WEFT_F32, 1, m, 0, c->offset);
    for (int64_t i = 0; i < m; i++)
      matrix_set(&p->up[u], 0, i,
                 ignored(c, i) ? NAN
                               : 0.25 + noise_uniform(c->seed + 7 + (uint64_t)u, (uint64_t)i));
  }
}

static double *as_doubles(const matrix *m, int64_t rows) {
  double *d = malloc((size_t)(rows * m->columns + 1) * sizeof *d);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < m->columns; k++)
      d[r * m->columns + k] = matrix_get(m, r, k);
  return d;
}

static void forget(ce_problem *p) {
  oracle_free(&p->o);
  free(p->xd);
  free(p->wd);
  p->o = (oracle){0};
  p->xd = p->wd = NULL;
  for (int u = 0; u < 3; u++) {
    free(p->upd[u]);
    p->upd[u] = NULL;
  }
}

void ce_problem_solve(const ce_case *c, ce_problem *p) {
  forget(p);
  p->xd = as_doubles(&p->x, c->tokens);
  p->wd = as_doubles(&p->w, c->vocab);
  for (int u = 0; u < 3; u++)
    p->upd[u] = as_doubles(&p->up[u], 1);
  p->o = (oracle){.tokens = c->tokens,
                  .hidden = c->hidden,
                  .vocab = c->vocab,
                  .x = p->xd,
                  .w = p->wd,
                  .target = p->targets,
                  .ignore_index = c->ignore_index,
                  .temperature = (float)c->temperature,
                  .cap = (float)c->cap,
                  .g_nll = c->upstream & UP_NLL ? p->upd[0] : NULL,
                  .g_entropy = c->upstream & UP_ENTROPY ? p->upd[1] : NULL,
                  .g_lse = c->upstream & UP_LSE ? p->upd[2] : NULL,
                  .wants_dz = c->dx_mode == WEFT_DX_NONE};
  oracle_run(&p->o);
}

void ce_problem_free(ce_problem *p) {
  forget(p);
  matrix_free(&p->x);
  matrix_free(&p->w);
  matrix_free(&p->target);
  matrix_free(&p->old_dw);
  for (int u = 0; u < 3; u++)
    matrix_free(&p->up[u]);
  free(p->targets);
}

/* ---- A case in words ---- */

static const char *dtype_name(int dtype) {
  static const char *const names[] = {"default", "f32", "bf16", "f16", "i32", "i64"};
  return names[dtype];
}

const char *ce_describe(const ce_case *c, char *text, int size) {
  static const char *const ignore[] = {"", " ignore=some", " ignore=all", " ignore=all-but-one"};
  static const char *const split[] = {"", " split=uneven", " split=one-empty", " split=one-full"};
  static const char *const budget[] = {"", " budget=least", " budget=large"};
  static const char *const world[] = {"", " world=external", " world=none"};
  static const char *const mode[] = {"", " dx=reduce-scatter", " dx=none"};
  snprintf(text, (size_t)size,
           "%s R=%lld M=%lld H=%lld V=%lld T=%g%s cap=%g up=%d%s%s%s%s%s%s%s%s targets=%d/%s "
           "dx:%s dw:%s%s pad=%lld extra=%lld offset=%lld spare=%lld%s threads=%d %s seed=%llu",
           dtype_name(c->dtype), (long long)c->ranks, (long long)c->tokens, (long long)c->hidden,
           (long long)c->vocab, c->temperature, c->temperature_by_pointer ? "*" : "", c->cap,
           c->upstream, ignore[c->ignore], split[c->split], budget[c->budget], world[c->world],
           mode[c->dx_mode], c->no_dx ? " no-dx" : "", c->no_dw ? " no-dw" : "",
           c->entropy ? " entropy" : "", (int)c->targets, dtype_name(c->target_dtype),
           dtype_name(c->dx_dtype), dtype_name(c->dw_dtype), c->accumulate ? "+=" : "",
           (long long)c->padding, (long long)c->stride_extra, (long long)c->offset,
           (long long)c->spare_tokens, c->own_workspace ? " own-workspace" : "", c->threads,
           c->step ? "step" : "forward+backward", (unsigned long long)c->seed);
  return text;
}
