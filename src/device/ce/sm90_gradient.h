/* From logits in registers to their gradient, and the constants of a token that this takes. Knows
 * the formula and wgmma's register layout.
 *
 * With k = log2(e) / T, z = c(a) / T and p = exp(z - m) / s:
 *
 *   u = log2 p = k * c(a) - C,   C = m * log2(e) + log2(s)
 *   dZ = p * (A + B * u) * c'(a), less G * c'(a) at the target
 *   A = (g_nll + g_lse - g_entropy * entropy) / T,  B = -g_entropy * ln(2) / T,  G = g_nll / T
 *
 * A, B and G carry the power of two by which dZ is scaled (f16). A row that does not count has a C
 * so large that p is 0, and A = B = G = 0: its upstream gradients are never looked at. Its logits
 * are dropped, since they may be NaN, and where its X holds anything that is not finite the
 * producer keeps that from the product with a gradient of 0 (sm90_backward_by_hand.h). */
#ifndef WEFT_DEVICE_CE_SM90_GRADIENT_H
#define WEFT_DEVICE_CE_SM90_GRADIENT_H

#include "device/ce/backward.h"
#include "device/ce/sm90_staging.h"
#include "device/ptx/ptx.h"

#define GRADIENT_LOG2E  1.4426950408889634f
#define GRADIENT_LN2    0.6931471805599453f
#define GRADIENT_NO_ROW 3.0e38f

/* The target's row of W of this rank, or one of these, which are above any row. */
enum { GRADIENT_ELSEWHERE = 0x7ffffffe, GRADIENT_DEAD = 0x7fffffff };

/* f32 C, A, B and the target's bits, one for each row. */
DEV struct f32x4 row_constants(const struct backward_args *args, uint32_t row) {
  return ld_global_f32x4(gmem_add(args->constants, (uint64_t)row * 16));
}

/* Of a row below row_tiles * 256, once it is prepared. */
DEV uint32_t row_counts(const struct backward_args *args, uint32_t row) {
  return ld_global_u32(gmem_add(args->constants, (uint64_t)row * 16 + 12)) != GRADIENT_DEAD;
}

DEV float temperature_inverse(const struct backward_args *args) {
  return 1.0f / (args->temperature.a ? ld_global_f32(args->temperature) : args->temperature_value);
}

struct gradient_scale {
  float k;         /* log2(e) / T, times the cap where there is one */
  float cap_twice; /* 2 log2(e) / cap, or 0 */
};

DEV struct gradient_scale gradient_scale(const struct backward_args *args) {
  struct gradient_scale g;
  g.k = GRADIENT_LOG2E * temperature_inverse(args);
  g.cap_twice = 0.0f;
  if (args->softcap > 0.0f) {
    g.k *= args->softcap;
    g.cap_twice = 2.0f * GRADIENT_LOG2E / args->softcap;
  }
  return g;
}

/* 32 sums of a thread, two rows by 16 columns, become their gradients. `col` is the row of W of
 * the first. */
DEV void gradient_plain(float *d, float k, struct f32x4 upper, struct f32x4 lower) {
  UNROLL for (uint32_t i = 0; i < 32; i++) {
    const int below = i / 2 % 2;
    d[i] = ex2(fma_f32(d[i], k, below ? -lower.x : -upper.x)) * (below ? lower.y : upper.y);
  }
}

DEV void gradient_entropy(float *d, float k, struct f32x4 upper, struct f32x4 lower) {
  UNROLL for (uint32_t i = 0; i < 32; i++) {
    const int below = i / 2 % 2;
    const float u = fma_f32(d[i], k, below ? -lower.x : -upper.x);
    d[i] = ex2(u) * fma_f32(below ? lower.z : upper.z, u, below ? lower.y : upper.y);
  }
}

/* With t = tanh(a / cap) = 1 - w: w = 2 / (1 + e^(2a / cap)) and c' = 1 - t^2 = w (2 - w), neither
 * of which cancels. */
DEV void gradient_capped(float *d, struct gradient_scale g, struct f32x4 upper, struct f32x4 lower,
                         float upper_weight, float lower_weight, uint32_t col) {
  UNROLL for (uint32_t i = 0; i < 32; i++) {
    const int below = i / 2 % 2;
    const float w = 2.0f * rcp(1.0f + ex2(d[i] * g.cap_twice));
    const float u = fma_f32(1.0f - w, g.k, below ? -lower.x : -upper.x);
    float v = ex2(u) * fma_f32(below ? lower.z : upper.z, u, below ? lower.y : upper.y);
    if (f32_bits(below ? lower.w : upper.w) == col + i / 4 * 8 + i % 2)
      v -= below ? lower_weight : upper_weight;
    d[i] = v * (w * (2.0f - w));
  }
}

/* Where a row's target is among these columns, it is one lane's element. */
DEV void subtract_target(const struct backward_args *args, float *d, uint32_t row, uint32_t target,
                         uint32_t col, uint32_t below) {
  const float weight = ld_global_f32(gmem_add(args->target_weight, (uint64_t)row * 4));
  UNROLL for (uint32_t i = 0; i < 16; i++) {
    const uint32_t e = i / 2 * 4 + below * 2 + i % 2;
    if (target == col + i / 2 * 8 + i % 2) d[e] -= weight;
  }
}

/* A value as dZ holds it. */
DEV float half_rounded(float v) {
#ifdef BACKWARD_F16
  return f16_f32(pack_half2(v, 0.0f));
#else
  return bf16x2_lo(pack_half2(v, 0.0f));
#endif
}

/* A row's dX may be little else than its target's entry times a row of W: then all of the row would
 * be off by the rounding of that entry. What it takes away is kept, for dX to add. */
DEV void keep_residual(const struct backward_args *args, const float *d, uint32_t row,
                       uint32_t target, uint32_t col, uint32_t below) {
  float value = 0.0f;
  uint32_t found = 0;
  UNROLL for (uint32_t i = 0; i < 16; i++) {
    if (target == col + i / 2 * 8 + i % 2) {
      value = d[i / 2 * 4 + below * 2 + i % 2];
      found = 1;
    }
  }
  if (found)
    st_global_f32(gmem_add(args->residual, (uint64_t)row * 4), value - half_rounded(value));
}

/* A row that does not count: its logits may be NaN, and then so is what was made of them. */
DEV void drop_row(float *d, uint32_t below) {
  UNROLL for (uint32_t i = 0; i < 16; i++) d[i / 2 * 4 + below * 2 + i % 2] = 0.0f;
}

/* Columns from `end` on do not exist. */
DEV void mask_columns(float *d, uint32_t col, uint32_t end) {
  UNROLL for (uint32_t i = 0; i < 32; i++) if (col + i / 4 * 8 + i % 2 >= end) d[i] = 0.0f;
}

/* 64 columns, from `first_col`, of the two rows of this thread, `row` and `row` + 8. */
DEV void gradient(const struct backward_args *args, float *d, struct gradient_scale g,
                  struct f32x4 upper, struct f32x4 lower, uint32_t row, uint32_t first_col) {
  const uint32_t col = first_col + lane_index() % 4 * 2;
  const uint32_t upper_target = f32_bits(upper.w), lower_target = f32_bits(lower.w);
  if (g.cap_twice != 0.0f) {
    float upper_weight = 0.0f, lower_weight = 0.0f;
    if (upper_target - first_col < 64)
      upper_weight = ld_global_f32(gmem_add(args->target_weight, (uint64_t)row * 4));
    if (lower_target - first_col < 64)
      lower_weight = ld_global_f32(gmem_add(args->target_weight, (uint64_t)(row + 8) * 4));
    gradient_capped(d, g, upper, lower, upper_weight, lower_weight, col);
  } else {
    if (args->g_entropy.a)
      gradient_entropy(d, g.k, upper, lower);
    else
      gradient_plain(d, g.k, upper, lower);
    if (upper_target - first_col < 64) subtract_target(args, d, row, upper_target, col, 0);
    if (lower_target - first_col < 64) subtract_target(args, d, row + 8, lower_target, col, 1);
  }
  if (upper_target - first_col < 64) keep_residual(args, d, row, upper_target, col, 0);
  if (lower_target - first_col < 64) keep_residual(args, d, row + 8, lower_target, col, 1);
  if (upper_target == GRADIENT_DEAD) drop_row(d, 0);
  if (lower_target == GRADIENT_DEAD) drop_row(d, 1);
  if (first_col + 64 > args->rows) mask_columns(d, col, args->rows);
}

/* ---- The constants ---- */

DEV float row_value(struct gmem array, uint64_t row) {
  return array.a ? ld_global_f32(gmem_add(array, row * 4)) : 0.0f;
}

/* The row's target among this rank's rows of W, GRADIENT_ELSEWHERE, or GRADIENT_DEAD for a row that
 * does not count. `report`: one that is outside the vocabulary is counted. */
DEV uint32_t row_target(const struct backward_args *args, uint32_t row, int report) {
  if (row >= args->tokens) return GRADIENT_DEAD;
  int64_t target;
  if (args->target_i64)
    target = (int64_t)ld_global_u64(gmem_add(args->target, (uint64_t)row * 8));
  else
    target = (int32_t)ld_global_u32(gmem_add(args->target, (uint64_t)row * 4));
  if (target == args->ignore_index) return GRADIENT_DEAD;
  if (target < 0 || target >= args->vocab) {
    if (report && args->count_targets) {
      red_add_u32(relaxed, gpu, gmem_add(args->errors, 4), 1);
      if (args->host_errors.a) st_u32(relaxed, sys, gmem_add(args->host_errors, 8), row);
    }
    return GRADIENT_DEAD;
  }
  target -= args->vocab_start;
  return target >= 0 && target < args->rows ? (uint32_t)target : GRADIENT_ELSEWHERE;
}

DEV float magnitude(float v) {
  return max_f32(v, -v);
}

/* The power of two by which f16 dZ is scaled: |dZ| <= (|g_nll| + |g_lse| + 16 |g_entropy|) / T
 * stays below 2^14, well inside f16, and as far as can be from where f16 loses bits. `most` is the
 * largest such sum, without 1 / T. */
DEV float gradient_power(float most, float inverse_temperature) {
  const uint32_t exponent = f32_bits(most * inverse_temperature) >> 23; /* biased by 127 */
  if (exponent == 0 || exponent > 240) return 1.0f;
  const uint32_t power = 13 + 127 + 127 - exponent;
  return bits_f32((power > 227 ? 227 : power) << 23); /* at most 2^100 */
}

/* The largest sum among every 128th token, of all that count, from `thread` on. */
DEV float largest_gradient(const struct backward_args *args, uint32_t thread) {
  float most = 0.0f;
  for (uint32_t row = thread; row < args->tokens; row += 128) {
    const float size = magnitude(row_value(args->g_nll, row)) +
                       magnitude(row_value(args->g_lse, row)) +
                       16.0f * magnitude(row_value(args->g_entropy, row));
    /* NaN and infinity set no scale */
    if (size > most && size < 3.0e38f && row_target(args, row, 0) != GRADIENT_DEAD) most = size;
  }
  UNROLL for (uint32_t mask = 16; mask != 0; mask /= 2) most =
      max_f32(most, shfl_xor_f32(most, mask));
  return most;
}

/* Writes the constants of a row; C is still to come where there are no statistics yet. */
DEV void prepare_row(const struct backward_args *args, uint32_t row, float power) {
  const uint32_t target = row_target(args, row, 1);
  struct f32x4 c;
  float weight = 0.0f;
  c.x = GRADIENT_NO_ROW;
  c.y = c.z = 0.0f;
  c.w = bits_f32(target);
  if (target != GRADIENT_DEAD) {
    const float factor = temperature_inverse(args) * power;
    const float g_nll = row_value(args->g_nll, row), g_lse = row_value(args->g_lse, row);
    float direct = g_nll + g_lse;
    if (args->stats.a) {
      const struct f32x4 s = ld_global_f32x4(gmem_add(args->stats, (uint64_t)row * 16));
      const float log2_s = lg2(s.y);
      const float entropy = GRADIENT_LN2 * log2_s - s.w / s.y;
      const float g_entropy = row_value(args->g_entropy, row);
      c.x = fma_f32(s.x, GRADIENT_LOG2E, log2_s);
      direct -= g_entropy * entropy;
      c.z = -g_entropy * GRADIENT_LN2 * factor;
    }
    c.y = direct * factor;
    weight = g_nll * factor;
  }
  st_global_f32x4(gmem_add(args->constants, (uint64_t)row * 16), c);
  st_global_f32(gmem_add(args->target_weight, (uint64_t)row * 4), weight);
  st_global_f32(gmem_add(args->residual, (uint64_t)row * 4), 0.0f);
}

#endif
