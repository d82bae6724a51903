/* The verdict: outputs of all ranks against the oracle, by the bounds of the contract. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ce_case.h"

typedef struct verdict {
  const ce_case *c;
  const ce_problem *p;
  ce_errors *errors;
  char *message;
  int size;
  bool ok;
} verdict;

static void refuse(verdict *v, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (v->ok && v->size > 0) vsnprintf(v->message, (size_t)v->size, format, arguments);
  va_end(arguments);
  v->ok = false;
}

/* ---- Rows of nll, lse, entropy ---- */

static void compare_row(verdict *v, const char *name, int64_t row, double found, double right,
                        double *worst) {
  const double bound = 2e-5 * (1 + v->p->o.largest[row]);
  if (isnan(right) && isnan(found)) return;
  const double error = fabs(found - right) / bound;
  if (error > *worst) *worst = error;
  if (error <= 1) return;
  v->errors->wrong++;
  refuse(v, "%s[%lld] is %.9g, oracle %.9g, off by %.3g of its bound %.3g", name, (long long)row,
         found, right, error, bound);
}

static void compare_loss(verdict *v, const ce_output *out) {
  const oracle *o = &v->p->o;
  const bool entropy = v->c->entropy || (v->c->upstream & UP_ENTROPY);
  for (int64_t i = 0; i < v->c->tokens; i++) {
    const double nll = matrix_get(&out->nll, 0, i), h = matrix_get(&out->entropy, 0, i);
    compare_row(v, "nll", i, nll, o->nll[i], &v->errors->nll);
    compare_row(v, "lse", i, matrix_get(&out->lse, 0, i), o->lse[i], &v->errors->lse);
    if (entropy) compare_row(v, "entropy", i, h, o->entropy[i], &v->errors->entropy);
    if (o->target[i] == v->c->ignore_index && (nll != 0 || (entropy && h != 0)))
      refuse(v, "token %lld is ignored: nll %g, entropy %g", (long long)i, nll, h);
    /* the statistics that forward hands to backward */
    const double m = matrix_get(&out->stats, i, 0), s = matrix_get(&out->stats, i, 1);
    double unused = 0;
    compare_row(v, "stats m + log s", i, m + log(s), o->lse[i], &unused);
  }
}

/* ---- Gradients ---- */

/* The bound of a gradient's relative Frobenius error. */
static double bound_of(const ce_case *c) {
  return c->dtype == WEFT_F32 ? 2e-5 : 2.5e-3;
}

/* With one vocabulary row p is 1 whatever the logits, and every term cancels: the right gradient is
 * 0. What is left in f32 is a rounding of those terms, so their size is the yardstick. */
static double cancelled_norm(const verdict *v, int64_t rows, const double *other) {
  double sum = 0;
  if (v->c->vocab > 1) return 0;
  for (int64_t i = 0; i < rows * v->c->hidden; i++)
    sum += other[i] * other[i];
  return sqrt(sum) * 2 / v->c->temperature;
}

/* Rows first … first + found->rows − 1 of the right gradient. Right are errors within the bound.
 * Where a few numbers of 16 bits carry the whole gradient, even the oracle rounded once may be off
 * by more (half a unit in the last place of a bf16 is up to 0.39%): then no more than that rounding
 * is right. */
static void compare_gradient(verdict *v, const char *name, const matrix *found, const double *right,
                             double cancelled, double *worst) {
  const int64_t h = v->c->hidden, rows = found->rows;
  const double bound = bound_of(v->c);
  double error = 0, norm = 0, rounding = 0, *row_error = calloc((size_t)rows + 1, sizeof(double)),
         *row_norm = calloc((size_t)rows + 1, sizeof(double)), mean = 0;
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t k = 0; k < h; k++) {
      const double r = right[i * h + k], d = matrix_get(found, i, k) - r;
      row_error[i] += d * d;
      rounding += pow(matrix_rounded(found->dtype, r) - r, 2);
      row_norm[i] += r * r;
    }
    error += row_error[i];
    norm += row_norm[i];
    mean += sqrt(row_norm[i]) / (double)rows;
  }
  const double scale = sqrt(norm) + cancelled, relative = scale > 0 ? sqrt(error) / scale : 0;
  if (relative > *worst) *worst = relative;
  if (!(sqrt(error) <= fmax(bound * scale, 1.001 * sqrt(rounding))))
    refuse(v, "%s: Frobenius error %.3g of norm %.3g: relative %.3g, bound %.3g", name, sqrt(error),
           scale, sqrt(error) / scale, bound);
  for (int64_t i = 0; i < rows; i++)
    if (!(sqrt(row_error[i]) <= 4 * bound * (sqrt(row_norm[i]) + cancelled) + 1e-3 * mean)) {
      v->errors->wrong++;
      refuse(v, "%s: row %lld is off by %.3g of its norm %.3g (mean %.3g)", name, (long long)i,
             sqrt(row_error[i]), sqrt(row_norm[i]), mean);
    }
  free(row_error);
  free(row_norm);
}

static void compare_dx(verdict *v, int64_t rank, const ce_output *out) {
  const ce_case *c = v->c;
  const oracle *o = &v->p->o;
  const int64_t h = c->hidden, shard = (c->tokens + c->ranks - 1) / c->ranks;
  const int64_t first = c->dx_mode == WEFT_DX_REDUCE_SCATTER ? rank * shard : 0;
  double *part = NULL;
  const double *right = out->dx.rows > 0 ? o->dx + first * h : o->dx;
  if (c->dx_mode == WEFT_DX_NONE) { /* this rank's vocabulary alone */
    int64_t start, local;
    ce_range(c, rank, &start, &local);
    right = part = calloc((size_t)(c->tokens * h) + 1, sizeof(double));
    for (int64_t i = 0; i < c->tokens; i++)
      for (int64_t j = start; j < start + local && j < c->vocab; j++)
        for (int64_t k = 0; k < h; k++)
          part[i * h + k] += o->dz[i * c->vocab + j] * o->w[j * h + k];
  }
  compare_gradient(v, "dx", &out->dx, right, cancelled_norm(v, 1, o->w), &v->errors->dx);
  for (int64_t i = 0; i < out->dx.rows; i++)
    if (o->target[first + i] == c->ignore_index)
      for (int64_t k = 0; k < h; k++)
        if (matrix_get(&out->dx, i, k) != 0)
          refuse(v, "dx[%lld] of an ignored row is %g", (long long)(first + i),
                 matrix_get(&out->dx, i, k));
  free(part);
}

static void compare_dw(verdict *v, int64_t rank, const ce_output *out) {
  const ce_case *c = v->c;
  const oracle *o = &v->p->o;
  const int64_t h = c->hidden;
  int64_t start, local, counted = 0;
  ce_range(c, rank, &start, &local);
  double *right = calloc((size_t)(local * h) + 1, sizeof(double));
  for (int64_t i = 0; i < c->tokens; i++)
    counted += o->target[i] != c->ignore_index && o->target[i] >= 0 && o->target[i] < c->vocab;
  for (int64_t j = 0; j < local; j++)
    for (int64_t k = 0; k < h; k++) {
      const double old = c->accumulate ? matrix_get(&v->p->old_dw, start + j, k) : 0;
      const bool padding = start + j >= c->vocab;
      right[j * h + k] = old + (padding ? 0 : o->dw[(start + j) * h + k]);
      const double found = matrix_get(&out->dw, j, k);
      if ((padding || counted == 0) && found != old)
        refuse(v, "dw[%lld][%lld] is %g, expected exactly %g", (long long)(start + j), (long long)k,
               found, old);
    }
  compare_gradient(v, "dw", &out->dw, right, cancelled_norm(v, c->tokens, o->x), &v->errors->dw);
  free(right);
}

/* ---- All ranks ---- */

static void compare_ranks(verdict *v, const ce_output *outputs) {
  for (int64_t r = 1; r < v->c->ranks; r++) {
    const ce_output *a = &outputs[0], *b = &outputs[r];
    if (!matrix_equal(&a->nll, &b->nll)) refuse(v, "nll of rank %lld has other bits", (long long)r);
    if (!matrix_equal(&a->lse, &b->lse)) refuse(v, "lse of rank %lld has other bits", (long long)r);
    if (!matrix_equal(&a->entropy, &b->entropy))
      refuse(v, "entropy of rank %lld has other bits", (long long)r);
    if (!matrix_equal(&a->stats, &b->stats))
      refuse(v, "stats of rank %lld have other bits", (long long)r);
    if (!v->c->no_dx && v->c->dx_mode == WEFT_DX_ALL_REDUCE && !matrix_equal(&a->dx, &b->dx))
      refuse(v, "dx of rank %lld has other bits", (long long)r);
  }
}

bool ce_compare(const ce_case *c, const ce_problem *p, const ce_output *outputs, ce_errors *errors,
                char *message, int size) {
  verdict v = {c, p, errors, message, size, true};
  *errors = (ce_errors){0};
  compare_ranks(&v, outputs);
  compare_loss(&v, &outputs[0]);
  for (int64_t r = 0; r < c->ranks; r++) {
    /* equal bits on all ranks need one look */
    if (!c->no_dx && (r == 0 || c->dx_mode != WEFT_DX_ALL_REDUCE)) compare_dx(&v, r, &outputs[r]);
    if (!c->no_dw) compare_dw(&v, r, &outputs[r]);
  }
  return v.ok;
}

bool ce_check_problem(const ce_case *c, const ce_problem *p, char *message, int size) {
  ce_output *outputs = calloc((size_t)c->ranks, sizeof *outputs);
  ce_errors errors;
  bool ok = ce_run(c, p, outputs, message, size);
  if (ok) ok = ce_compare(c, p, outputs, &errors, message, size);
  ce_outputs_free(c, outputs);
  free(outputs);
  return ok;
}

bool ce_check(const ce_case *c, char *message, int size) {
  ce_problem p;
  ce_problem_make(c, &p);
  ce_problem_solve(c, &p);
  const bool ok = ce_check_problem(c, &p, message, size);
  ce_problem_free(&p);
  return ok;
}
