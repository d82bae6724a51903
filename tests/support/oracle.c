/* Row by row: logits, softmax, gradients of logits, and both products. */
#include "support/oracle.h"

#include <math.h>
#include <stdlib.h>

void oracle_run(oracle *o) {
  const int64_t m = o->tokens, h = o->hidden, v = o->vocab;
  o->nll = calloc((size_t)m + 1, sizeof(double));
  o->lse = calloc((size_t)m + 1, sizeof(double));
  o->entropy = calloc((size_t)m + 1, sizeof(double));
  o->largest = calloc((size_t)m + 1, sizeof(double));
  o->dx = calloc((size_t)(m * h) + 1, sizeof(double));
  o->dw = calloc((size_t)(v * h) + 1, sizeof(double));
  double *z = malloc((size_t)v * sizeof(double)), *slope = malloc((size_t)v * sizeof(double));
  for (int64_t i = 0; i < m; i++) {
    double top = -INFINITY, sum = 0, entropy = 0;
    for (int64_t j = 0; j < v; j++) {
      double a = 0;
      for (int64_t k = 0; k < h; k++)
        a += o->x[i * h + k] * o->w[j * h + k];
      const double u = o->cap > 0 ? tanh(a / o->cap) : 0;
      z[j] = (o->cap > 0 ? o->cap * u : a) / o->temperature;
      slope[j] = (o->cap > 0 ? 1 - u * u : 1) / o->temperature;
      if (z[j] > top) top = z[j];
      if (fabs(z[j]) > o->largest[i]) o->largest[i] = fabs(z[j]);
    }
    for (int64_t j = 0; j < v; j++)
      sum += exp(z[j] - top);
    const double lse = top + log(sum);
    for (int64_t j = 0; j < v; j++)
      entropy -= exp(z[j] - lse) * (z[j] - lse);
    const int64_t t = o->target[i];
    const int ignored = t == o->ignore_index, bad = !ignored && (t < 0 || t >= v);
    o->lse[i] = lse;
    o->nll[i] = ignored ? 0 : bad ? NAN : lse - z[t];
    o->entropy[i] = ignored ? 0 : entropy;
    if (ignored || bad) continue;
    const double gn = o->g_nll ? o->g_nll[i] : 0, ge = o->g_entropy ? o->g_entropy[i] : 0;
    const double gl = o->g_lse ? o->g_lse[i] : 0;
    for (int64_t j = 0; j < v; j++) {
      const double log_p = z[j] - lse, p = exp(log_p);
      const double dz = (gn * (p - (j == t)) - ge * p * (log_p + entropy) + gl * p) * slope[j];
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
}
