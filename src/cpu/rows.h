/* Row arithmetic of the CPU backend: softmax statistics, gradients of logits, conversions. One
 * source (rows_body.h) is compiled for each instruction set; the table of the best one that this
 * CPU runs is chosen once. Every variant uses the same 16 lanes in the same order. Knows no team,
 * plan or tile. */
#ifndef WEFT_CPU_ROWS_H
#define WEFT_CPU_ROWS_H

#include <stdint.h>
#include <weft/weft.h>

/* Softmax statistics of a set of logits z: m = max z, s = Σ e^(z−m), t = Σ e^(z−m)·(z−m), and the
 * target's logit where the set holds it (else 0). The empty set is s = 0. This is also the layout
 * of weft_ce_args.stats: m, s, z_target, t. */
typedef struct weft__stats {
  float m, s, z_target, t;
} weft__stats;

/* z = c(a)/T for a row of products a; c is the identity where cap is 0. */
typedef struct weft__logit_scale {
  float inverse_temperature, cap;
} weft__logit_scale;

/* dz = p·(constant − g_entropy·(d − mean)) · c'/T, where d = z − m, p = e^d/s and mean = t/s: log p
 * + entropy is d − mean, without the two large numbers log s that would cancel. */
typedef struct weft__row_gradient {
  float m, inverse_s, mean, constant, g_entropy;
} weft__row_gradient;

/* Differences z − m below this count as it: e^(z−m) is 0 long before. */
#define WEFT__FAR_BELOW (-128.0f)

typedef struct weft__rows {
  const char *isa;
  /* a → z, which may be the same row, and the statistics of its n ≥ 1 logits (z_target is left at
   * 0) */
  void (*statistics)(const float *a, float *z, int64_t n, const weft__logit_scale *scale,
                     weft__stats *out);
  /* a → dz in place, for all but the one-hot term of the target */
  void (*gradient)(float *a, int64_t n, const weft__logit_scale *scale,
                   const weft__row_gradient *g);
  /* `dtype` is F32, BF16 or F16; the rounding is to nearest even */
  void (*to_f32)(float *out, const void *in, int64_t n, int dtype);
  void (*from_f32)(void *out, const float *in, int64_t n, int dtype);
  void (*add)(float *sum, const float *in, int64_t n);
  /* sum += weight·in, each by one fused multiply-add, whatever the instruction set */
  void (*add_scaled)(float *sum, const float *in, float weight, int64_t n);
  /* z[rows, columns] = x[rows, k]·w[columns, k]ᵀ with `columns` a multiple of 16; `panel` holds
   * 16·k floats. Each sum runs over k in order in one accumulator, wherever its row stands. */
  void (*product)(float *z, int64_t z_ld, const float *x, int64_t x_ld, int64_t rows,
                  const float *w, int64_t w_ld, int64_t columns, int64_t k, float *panel);
  /* Mends products a[i] = x·w_i of one row, k a multiple of 16, whose error a narrow cap would
   * show. */
  void (*refine)(float *a, int64_t n, const float *x, const float *w, int64_t w_ld, int64_t k,
                 float cap);
} weft__rows;

/* The table for this CPU; WEFT_ISA = baseline | avx2 | avx512 asks for a lesser one. */
const weft__rows *weft__rows_best(void);

/* Statistics of the union of two disjoint sets. */
weft__stats weft__stats_merge(weft__stats a, weft__stats b);

extern const weft__rows weft__rows_baseline;
#if defined(__x86_64__)
extern const weft__rows weft__rows_avx2;
extern const weft__rows weft__rows_avx512;
#endif

#endif
