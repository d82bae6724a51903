/* The forward kernel's softmax: reduces a block of logits in registers to the running statistics of
 * its rows. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_REDUCE_H
#define WEFT_DEVICE_CE_SM90_FORWARD_REDUCE_H

#include "device/ce/sm90_forward_base.h"

/* cap · tanh(a / cap), off by less than 2e-7·cap and 4e-7·|a|: the series near 0, where the
 * quotient of exponentials loses its digits. */
DEV float soft_cap(float a, float cap, float inverse_cap) {
  const float x = a * inverse_cap, size = max_f32(x, -x), x2 = x * x;
  const float e = ex2(-2.0f * LOG2_E * size);
  const float far = (1.0f - e) * rcp(1.0f + e);
  const float near =
      fma_f32(x2,
              fma_f32(x2, fma_f32(x2, fma_f32(x2, 62.0f / 2835.0f, -17.0f / 315.0f), 2.0f / 15.0f),
                      -1.0f / 3.0f),
              1.0f) *
      x;
  return cap * (size < 0.3f ? near : x < 0.0f ? -far : far);
}

/* What a thread has seen of one row: its columns only, until the unit ends. m is the largest
 * c(x·w), before the scale to base 2; s and t are relative to it. */
struct row_state {
  float m, s, t;
};

/* Adds the row's columns of a block; `below` picks the thread's row that is 8 further down. wgmma's
 * results (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): thread t of the warpgroup
 * holds, for each 8 columns j, elements 4j and 4j + 1 of row t / 32 * 16 + t % 32 / 4 in columns
 * 8j + t % 4 * 2 and the next, and 4j + 2, 4j + 3 of the row 8 below. */
DEV void add_columns(const float *d, uint32_t below, float scale, uint32_t wants_entropy,
                     struct row_state *row) {
  float m0 = row->m, m1 = row->m;
  UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
    m0 = max_f32(m0, d[4 * j + 2 * below]);
    m1 = max_f32(m1, d[4 * j + 2 * below + 1]);
  }
  const float m = max_f32(m0, m1);
  /* All columns so far may be past the end: then every exponent below is minus infinity. */
  const float offset = m == MINUS_INFINITY ? 0.0f : -(m * scale);
  const float step = max_f32(fma_f32(row->m, scale, offset), LEAST_EXPONENT);
  const float factor = ex2(step);
  float s0 = 0.0f, s1 = 0.0f;
  if (wants_entropy) {
    float t0 = 0.0f, t1 = 0.0f;
    UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
      const float y0 = fma_f32(d[4 * j + 2 * below], scale, offset);
      const float y1 = fma_f32(d[4 * j + 2 * below + 1], scale, offset);
      const float e0 = ex2(y0), e1 = ex2(y1);
      s0 += e0;
      s1 += e1;
      t0 = fma_f32(e0, max_f32(y0, LEAST_EXPONENT), t0);
      t1 = fma_f32(e1, max_f32(y1, LEAST_EXPONENT), t1);
    }
    row->t = fma_f32(factor, fma_f32(step, row->s, row->t), t0 + t1);
  } else {
    UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
      s0 += ex2(fma_f32(d[4 * j + 2 * below], scale, offset));
      s1 += ex2(fma_f32(d[4 * j + 2 * below + 1], scale, offset));
    }
  }
  row->s = fma_f32(factor, row->s, s0 + s1);
  row->m = m;
}

/* Keeps the logit of a row's target, `column` columns into the tile, where this thread holds it. */
DEV void keep_target(const float *d, uint32_t below, uint32_t column, uint32_t lane, float scale,
                     struct smem to) {
  UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
    UNROLL for (uint32_t e = 0; e < 2; e++) {
      if (column == j * 8 + lane % 4 * 2 + e) st_shared_f32(to, d[4 * j + 2 * below + e] * scale);
    }
  }
}

/* Adds a block of a tile of logits, whose first row of W is `first`, to its rows' states. */
DEV void reduce(const struct forward_args *args, struct forward_shared shared,
                const struct consumer *self, uint32_t block, uint32_t first, float scale, float *d,
                struct row_state rows[2]) {
  const uint32_t lane = self->thread % 32;
  wgmma_pin(d, ACCUMULATORS);
  if (args->softcap > 0.0f) {
    const float inverse_cap = 1.0f / args->softcap;
    UNROLL for (uint32_t j = 0; j < ACCUMULATORS; j++) d[j] =
        soft_cap(d[j], args->softcap, inverse_cap);
  }
  if (first + FORWARD_TILE_COLS > args->rows) {
    UNROLL for (uint32_t j = 0; j < ACCUMULATORS; j++) {
      if (first + j / 4 * 8 + lane % 4 * 2 + j % 2 >= args->rows) d[j] = MINUS_INFINITY;
    }
  }
  /* of the token tile */
  const uint32_t row = (self->index * BLOCKS + block) * 64 + self->thread / 32 * 16 + lane / 4;
  const uint32_t column0 = ld_shared_u32(smem_add(shared.columns, row * 4)) - first;
  const uint32_t column1 = ld_shared_u32(smem_add(shared.columns, row * 4 + 32)) - first;
  if (warp_ballot(column0 < FORWARD_TILE_COLS || column1 < FORWARD_TILE_COLS)) {
    keep_target(d, 0, column0, lane, scale, smem_add(shared.logits, row * 4));
    keep_target(d, 1, column1, lane, scale, smem_add(shared.logits, row * 4 + 32));
  }
  add_columns(d, 0, scale, args->wants_entropy, &rows[0]);
  add_columns(d, 1, scale, args->wants_entropy, &rows[1]);
}

#endif
