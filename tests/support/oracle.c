/* Row by row: logits, softmax, gradients of logits, and both products. */
#include "support/oracle.h"

#include <math.h>
#include <stdlib.h>

/* Four sums, so that the additions need not wait for each other. */
static double dot(const double *a, const double *b, int64_t n) {
  double sum[4] = {0};
  int64_t k = 0;
  for (; k + 4 <= n; k += 4)
    for (int i = 0; i < 4; i++)
      sum[i] += a[k + i] * b[k + i];
  for (; k < n; k++)
    sum[0] += a[k] * b[k];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static double upstream(const double *g, int64_t row) {
  return g != NULL ? g[row] : 0;
}

void oracle_run(oracle *o) {
  const int64_t m = o->tokens, h = o->hidden, v = o->vocab;
  o->nll = calloc((size_t)m + 1, sizeof(double));
  o->lse = calloc((size_t)m + 1, sizeof(double));
  o->entropy = calloc((size_t)m + 1, sizeof(double));
  o->largest = calloc((size_t)m + 1, sizeof(double));
  o->dx = calloc((size_t)(m * h) + 1, sizeof(double));
  o->dw = calloc((size_t)(v * h) + 1, sizeof(double));
  o->dz = o->wants_dz ? calloc((size_t)(m * v) + 1, sizeof(double)) : NULL;
  double *z = malloc((size_t)v * sizeof(double)), *slope = malloc((size_t)v * sizeof(double));
  for (int64_t i = 0; i < m; i++) {
    double top = -INFINITY, sum = 0, entropy = 0;
    for (int64_t j = 0; j < v; j++) {
      const double a = dot(o->x + i * h, o->w + j * h, h);
      z[j] = (o->cap > 0 ? o->cap * tanh(a / o->cap) : a) / o->temperature;
      /* 1 − tanh² as 1 / cosh², which keeps its digits where the cap saturates */
      const double ch = o->cap > 0 ? cosh(a / o->cap) : 1;
      slope[j] = 1 / (ch * ch) / o->temperature;
      if (z[j] > top) top = z[j];
      if (fabs(z[j]) > o->largest[i]) o->largest[i] = fabs(z[j]);
    }
    for (int64_t j = 0; j < v; j++)
      sum += exp(z[j] - top);
    const double log_sum = log(sum), lse = top + log_sum;
    for (int64_t j = 0; j < v; j++) {
      const double log_p = (z[j] - top) - log_sum, p = exp(log_p);
      if (p > 0) entropy -= p * log_p;
    }
    const int64_t t = o->target[i];
    const int ignored = t == o->ignore_index, bad = !ignored && (t < 0 || t >= v);
    o->lse[i] = lse;
    o->nll[i] = ignored ? 0 : bad ? NAN : lse - z[t];
    o->entropy[i] = ignored ? 0 : entropy;
    if (ignored || bad) continue;
    const double gn = upstream(o->g_nll, i), ge = upstream(o->g_entropy, i);
    const double gl = upstream(o->g_lse, i);
    if (gn == 0 && ge == 0 && gl == 0) continue;
    for (int64_t j = 0; j < v; j++) {
      const double log_p = (z[j] - top) - log_sum, p = exp(log_p);
      const double dz =
          (gn * (p - (j == t)) - (p > 0 ? ge * p * (log_p + entropy) : 0) + gl * p) * slope[j];
      if (o->dz != NULL) o->dz[i * v + j] = dz;
      for (int64_t k = 0; k < h; k++) {
        o->dx[i * h + k] += dz * o->w[j * h + k];
        o->dw[j * h + k] += dz * o->x[i * h + k];
      }
    }
  }
  free(z);
  free(slope);
}

void oracle_free(oracle *o) {
  free(o->nll);
  free(o->lse);
  free(o->entropy);
  free(o->largest);
  free(o->dx);
  free(o->dw);
  free(o->dz);
}
