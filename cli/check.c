/* See check.h. A comparison that meets NaN counts as wrong. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"

/* The bounds of the contract. */
static const double LOSS_BOUND = 2e-5, F32_BOUND = 2e-5, HALF_BOUND = 2.5e-3;
static const double ROW_FACTOR = 4, ROW_FLOOR = 1e-3;

static int64_t item(const int64_t *list, int64_t index) {
  return list != NULL ? list[index] : index;
}

static void worst(double *largest, double value) {
  if (!(value <= *largest)) *largest = isnan(value) ? INFINITY : value;
}

static void check_losses(check *c, const outputs *out, const oracle *o, const problem *p,
                         bool gradients) {
  const float *const given[] = {out->nll, out->lse, out->entropy};
  const double *const right[] = {o->nll, o->lse, o->entropy};
  const int64_t *list = gradients ? NULL : o->tokens;
  const int64_t count = list != NULL ? o->tokens_count : p->tokens;
  for (int kind = CHECK_NLL; kind <= CHECK_ENTROPY; kind++) {
    if (given[kind] == NULL) continue;
    c->error[kind] = 0;
    for (int64_t i = 0; i < count; i++) {
      const int64_t m = item(list, i);
      const double off = fabs(given[kind][m] - right[kind][m]) / (1 + o->size[m]);
      const bool exact_zero = kind != CHECK_LSE && !problem_counts(p, m);
      worst(&c->error[kind], off);
      if (!(off <= LOSS_BOUND) || (exact_zero && given[kind][m] != 0)) c->wrong++;
    }
  }
}

/* Rows of a gradient: `parts` arrays whose sum is compared with right[i] at row list[i]. Rows of
 * tokens that do not count must be exactly 0. */
static bool check_gradient(check *c, int kind, const void *const *parts, int64_t parts_count,
                           weft_dtype dtype, const double *right, const int64_t *list,
                           int64_t count, int64_t hidden, double bound, const problem *tokens) {
  double *row = malloc((size_t)hidden * 2 * sizeof *row), *off = NULL, *norm = NULL;
  off = malloc((size_t)(count + 1) * sizeof *off);
  norm = malloc((size_t)(count + 1) * sizeof *norm);
  const bool good = row != NULL && off != NULL && norm != NULL;
  double *part = good ? row + hidden : NULL;
  double all_off = 0, all_norm = 0, mean = 0;
  int64_t nonzero = 0;
  for (int64_t i = 0; i < count && good; i++) {
    const int64_t at = item(list, i);
    memset(row, 0, (size_t)hidden * sizeof *row);
    for (int64_t r = 0; r < parts_count; r++) {
      dtype_load(part, (const char *)parts[r] + at * hidden * dtype_bytes(dtype), dtype, hidden);
      for (int64_t h = 0; h < hidden; h++)
        row[h] += part[h];
    }
    off[i] = norm[i] = 0;
    bool zero = true;
    for (int64_t h = 0; h < hidden; h++) {
      const double r = right[i * hidden + h], d = row[h] - r;
      off[i] += d * d;
      norm[i] += r * r;
      zero = zero && row[h] == 0;
    }
    all_off += off[i];
    all_norm += norm[i];
    off[i] = sqrt(off[i]);
    norm[i] = sqrt(norm[i]);
    mean += norm[i] / (double)count;
    if (tokens != NULL && !zero && !problem_counts(tokens, at)) nonzero++;
  }
  for (int64_t i = 0; i < count && good; i++)
    if (!(off[i] <= ROW_FACTOR * bound * norm[i] + ROW_FLOOR * mean)) c->wrong++;
  c->wrong += nonzero;
  c->error[kind] = all_off == 0 ? 0 : sqrt(all_off / all_norm);
  if (isnan(c->error[kind])) c->error[kind] = INFINITY;
  if (!(c->error[kind] <= bound)) c->within = false;
  free(row);
  free(off);
  free(norm);
  return good;
}

bool check_outputs(check *c, const outputs *out, const oracle *o, const problem *p, error *error) {
  const bool gradients = o->dx != NULL;
  const double bound = p->dtype == WEFT_F32 ? F32_BOUND : HALF_BOUND;
  *c = (check){.within = true};
  for (int kind = 0; kind < CHECK_COUNT; kind++)
    c->error[kind] = NAN;
  check_losses(c, out, o, p, gradients);
  bool good = true;
  if (out->dx != NULL)
    good = check_gradient(c, CHECK_DX, out->dx, out->dx_parts, out->dtype, o->dx, o->tokens,
                          o->tokens_count, p->hidden, bound, p);
  if (out->dw != NULL && good)
    good = check_gradient(c, CHECK_DW, &out->dw, 1, out->dtype, o->dw, o->rows, o->rows_count,
                          p->hidden, bound, NULL);
  if (c->wrong > 0) c->within = false;
  return good || error_set(error, "no memory to compare gradients");
}

int64_t check_same_bits(const void *a, const void *b, int64_t rows, int64_t bytes_each) {
  int64_t differ = 0;
  for (int64_t i = 0; i < rows; i++)
    differ += memcmp((const char *)a + i * bytes_each, (const char *)b + i * bytes_each,
                     (size_t)bytes_each) != 0;
  return differ;
}
