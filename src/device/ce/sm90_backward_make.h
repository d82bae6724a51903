/* The consumers of the backward kernel: a warpgroup multiplies, turns logits into gradients, and
 * hands results to its storer. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_MAKE_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_MAKE_H

#include "device/ce/sm90_backward_base.h"
#include "device/ce/sm90_gradient.h"
#include "device/ce/sm90_staging.h"

struct consumer {
  uint32_t index, thread, rank; /* 0 or 1; of the warpgroup; the CTA's in the cluster */
  struct staging staging;
};

/* Warpgroups that take turns: the second multiplies after the first, and the first's next turn
 * comes after the second. A consumer must not look at a stage's barrier before the other has seen
 * the phases in between, since it could not tell a phase from the one before the last. */
enum { TURN_OF_FIRST = 11, TURN_OF_SECOND = 12 }; /* barriers */

DEV void turn_begin(const struct consumer *c) {
  if (c->index == 1) bar_sync(TURN_OF_SECOND, 256);
}

/* All products are issued. */
DEV void turn_pass(const struct consumer *c) {
  bar_arrive(c->index == 0 ? TURN_OF_SECOND : TURN_OF_FIRST, 256);
}

/* The results are out. */
DEV void turn_end(const struct consumer *c) {
  if (c->index == 0) bar_sync(TURN_OF_FIRST, 256);
}

/* Rows of this thread in a block of 64: this one, and 8 below. */
DEV uint32_t fragment_row(uint32_t thread) {
  return thread / 32 * 16 + thread % 32 / 4;
}

/* 64 tokens' constants; every warpgroup that multiplies takes its own. */
DEV void prepare(const struct backward_args *args, struct consumer *c,
                 const struct backward_tile *t) {
  float power = 1.0f;
#ifdef BACKWARD_F16
  const struct smem scratch = staging_open(&c->staging);
  const float most = largest_gradient(args, c->thread);
  if (c->thread % 32 == 0) st_shared_f32(smem_add(scratch, c->thread / 32 * 4), most);
  bar_sync(STAGING_OWN + c->index, 128);
  float all = 0.0f;
  UNROLL for (uint32_t w = 0; w < 4; w++) all =
      max_f32(all, ld_shared_f32(smem_add(scratch, w * 4)));
  power = gradient_power(all, temperature_inverse(args));
  if (c->thread == 0 && c->index == 0 && c->rank == 0)
    st_global_f32(gmem_add(args->unscale, (uint64_t)t->row * 4), 1.0f / power);
#else
  staging_open(&c->staging);
#endif
  if (c->thread < 64)
    prepare_row(args, t->row * BACKWARD_TILE + c->rank * 128 + c->index * 64 + c->thread, power);
  staging_close(&c->staging);
}

DEV struct ring make_dz(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float sums[192];
  const uint32_t steps = steps_of(args->hidden);
  /* The stages of the other consumer's tile lie before or after. */
  if (c->index == 1) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  turn_begin(c);
  ring = dz_multiply(s.stages, s.dz, ring, steps, c->index, c->thread, sums);
  turn_pass(c);
  /* Loaded behind the last products. */
  const struct backward_tile t = inbox_tile(args, s, in);
  const uint32_t row = t.row * BACKWARD_TILE + c->rank * 128 + fragment_row(c->thread);
  const struct gradient_scale scale = gradient_scale(args);
  struct f32x4 upper = row_constants(args, row), lower = row_constants(args, row + 8);
  dz_finish(s.dz, ring, c->thread, sums);
  if (c->index == 0) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  const uint32_t col =
      (t.wave * args->schedule.wave_cols + t.col) * BACKWARD_TILE_COLS + c->index * 192;
  UNROLL for (uint32_t i = 0; i < 2; i++) {
    if (i != 0) {
      upper = row_constants(args, row + i * 64);
      lower = row_constants(args, row + i * 64 + 8);
    }
    UNROLL for (uint32_t n = 0; n < 3; n++) {
      gradient(args, sums + i * 96 + n * 32, scale, upper, lower, row + i * 64, col + n * 64);
      stage_half(staging_open(&c->staging), c->thread, sums + i * 96 + n * 32, 0);
      staging_close(&c->staging);
    }
  }
  turn_end(c);
  return ring;
}

/* What undoes the power of two in dZ: 1 in bf16, where there is none. */
DEV float unscale(const struct backward_args *args, uint32_t row_tile) {
#ifdef BACKWARD_F16
  return ld_global_f32(gmem_add(args->unscale, (uint64_t)row_tile * 4));
#else
  (void)args, (void)row_tile;
  return 1.0f;
#endif
}

/* Of dW a block at a time, just before it goes out: all at once takes more registers than there
 * are. */
DEV void multiply(float *d, uint32_t count, float by) {
  UNROLL for (uint32_t i = 0; i < count; i++) d[i] *= by;
}

/* A pair of results, at (row, h), to an output that tensor stores can't write. */
DEV void put_pair(struct gmem to, int64_t stride, uint32_t row, uint32_t h, uint32_t rows,
                  uint32_t hidden, uint32_t f32, float first, float second) {
  if (row >= rows) return;
  const uint64_t at = (uint64_t)row * (uint64_t)stride + h;
  const uint32_t pair = pack_half2(first, second);
  if (h < hidden) {
    if (f32)
      st_global_f32(gmem_add(to, at * 4), first);
    else
      st_global_u16(gmem_add(to, at * 2), (uint16_t)pair);
  }
  if (h + 1 < hidden) {
    if (f32)
      st_global_f32(gmem_add(to, at * 4 + 4), second);
    else
      st_global_u16(gmem_add(to, at * 2 + 2), (uint16_t)(pair >> 16));
  }
}

/* To a thread's sums of dX, two rows from `row` and columns from `h`: what the rounding of their
 * targets' entries of dZ took away. */
DEV void add_residual(const struct backward_args *args, float *d, uint32_t row, uint32_t h) {
  UNROLL for (uint32_t part = 0; part < DX_BLOCKS * 2; part++) {
    const uint32_t at = row + part * 8 + part / 2 * 48;
    const float residual = ld_global_f32(gmem_add(args->residual, (uint64_t)at * 4));
    const uint32_t target = f32_bits(row_constants(args, at).w);
    if (residual == 0.0f || target >= args->rows) continue;
    const struct gmem from =
        gmem_add(args->w_rows, (uint64_t)target * args->w_stride_bytes + (uint64_t)h * 2);
    float *sum = d + part / 2 * (DX_COLS / 2) + part % 2 * 2;
    UNROLL for (uint32_t j = 0; j < DX_COLS / 8; j++) {
      uint32_t pair = 0;
      if (h + j * 8 + 1 < args->hidden && !args->by_hand)
        pair = ld_global_u32(gmem_add(from, j * 16));
      else if (h + j * 8 < args->hidden)
        pair = ld_global_u16(gmem_add(from, j * 16));
      if (h + j * 8 + 1 < args->hidden && args->by_hand)
        pair |= (uint32_t)ld_global_u16(gmem_add(from, j * 16 + 2)) << 16;
#ifdef BACKWARD_F16
      sum[j * 4] = fma_f32(residual, f16_f32(pair), sum[j * 4]);
      sum[j * 4 + 1] = fma_f32(residual, f16_f32(pair >> 16), sum[j * 4 + 1]);
#else
      sum[j * 4] = fma_f32(residual, bf16x2_lo(pair), sum[j * 4]);
      sum[j * 4 + 1] = fma_f32(residual, bf16x2_hi(pair), sum[j * 4 + 1]);
#endif
    }
  }
}

DEV struct ring make_dx(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float d[128];
  const uint32_t steps = wave_steps(args, inbox_tile(args, s, in).wave);
  if (DX_IN_TURN) {
    if (c->index == 1) ring = ring_skip(ring, steps, BACKWARD_STAGES_DX);
    turn_begin(c);
  }
  ring = dx_multiply(s.stages, s.dx, ring, steps, c->index, c->thread, d);
  if (DX_IN_TURN) turn_pass(c);
  dx_finish(s.dx, ring, c->thread, d);
  if (DX_IN_TURN && c->index == 0) ring = ring_skip(ring, steps, BACKWARD_STAGES_DX);
  const struct backward_tile t = inbox_tile(args, s, in);
  const uint32_t row = t.row * BACKWARD_TILE + c->rank * 128 + (DX_IN_TURN ? 0 : c->index * 64) +
                       fragment_row(c->thread);
  const uint32_t h =
      t.h * BACKWARD_TILE + (DX_IN_TURN ? c->index * DX_COLS : 0) + c->thread % 4 * 2;
  const uint32_t last = is_last_wave(args, t.wave);
  if (last) add_residual(args, d, row, h);
  multiply(d, 128, unscale(args, t.row));
  if (last && t.wave != 0) {
    /* What the waves before have summed up. Rows and columns beyond the end have no sums. */
    UNROLL for (uint32_t part = 0; part < DX_BLOCKS * 2; part++) { /* rows of this thread */
      const uint32_t at = row + part * 8 + part / 2 * 48;
      if (at >= args->tokens) continue;
      const struct gmem from = gmem_add(args->sums, ((uint64_t)at * args->sums_stride + h) * 4);
      float *sum = d + part / 2 * (DX_COLS / 2) + part % 2 * 2;
      UNROLL for (uint32_t j = 0; j < DX_COLS / 8; j++) {
        if (h + j * 8 < args->hidden) {
          const struct f32x2 pair = ld_global_f32x2(gmem_add(from, j * 32));
          sum[j * 4] += pair.x;
          sum[j * 4 + 1] += pair.y;
        }
      }
    }
  }
  if (last) {
    /* Of a row that does not count, whatever W holds. */
    UNROLL for (uint32_t part = 0; part < DX_BLOCKS * 2; part++) {
      float *sum = d + part / 2 * (DX_COLS / 2) + part % 2 * 2;
      const uint32_t mask = row_counts(args, row + part * 8 + part / 2 * 48) ? 0xffffffffu : 0;
      UNROLL for (uint32_t j = 0; j < DX_COLS / 4; j++) sum[j / 2 * 4 + j % 2] =
          bits_f32(f32_bits(sum[j / 2 * 4 + j % 2]) & mask);
    }
  }
  if (last && !args->dx_mapped) {
    staging_open(&c->staging);
    UNROLL for (uint32_t i = 0; i < 64; i++) {
      const uint32_t block = i / (DX_COLS / 4), e = i % (DX_COLS / 4);
      put_pair(args->dx, args->dx_stride, row + block * 64 + e % 2 * 8, h + e / 2 * 8, args->tokens,
               args->hidden, args->dx_f32, d[i * 2], d[i * 2 + 1]);
    }
    staging_close(&c->staging);
  } else if (last && !args->dx_f32) {
    UNROLL for (uint32_t n = 0; n < 4; n++) {
      stage_half(staging_open(&c->staging), c->thread, d + n * 32, 0);
      staging_close(&c->staging);
    }
  } else {
    UNROLL for (uint32_t n = 0; n < 8; n++) {
      stage_f32(staging_open(&c->staging), c->thread, d + n * 16, 0);
      staging_close(&c->staging);
    }
  }
  if (DX_IN_TURN) turn_end(c);
  return ring;
}

/* Adds what dW holds, 64 rows of W from `v` by 64 hidden columns from `h`, through the staging
 * block in which its sums are going to be. */
DEV void add_old_half(const struct backward_args *args, struct consumer *c, struct smem block,
                      uint32_t v, uint32_t h, float *d) {
  UNROLL for (uint32_t i = 0; i < 4; i++) {
    const uint32_t line = i * 16 + c->thread / 8, piece = c->thread % 8;
    struct u32x4 old = {0, 0, 0, 0};
    if (v + line < args->rows && h + piece * 8 < args->hidden)
      old = ld_global_u32x4(gmem_add(
          args->dw, ((uint64_t)(v + line) * (uint64_t)args->dw_stride + h + piece * 8) * 2));
    st_shared_u32x4(staged(block, line, piece), old);
  }
  bar_sync(STAGING_OWN + c->index, 128);
  const uint32_t warp = c->thread / 32, lane = c->thread % 32;
  const uint32_t below = (lane / 8) % 2, right = lane / 16, i = lane % 8;
  UNROLL for (uint32_t q = 0; q < 4; q++) {
    const struct u32x4 old =
        ldmatrix_x4_trans(staged(block, q * 16 + right * 8 + i, warp * 2 + below));
    const uint32_t pairs[4] = {old.x, old.y, old.z, old.w};
    UNROLL for (uint32_t e = 0; e < 4; e++) {
#ifdef BACKWARD_F16
      d[q * 8 + e * 2] += f16_f32(pairs[e]);
      d[q * 8 + e * 2 + 1] += f16_f32(pairs[e] >> 16);
#else
      d[q * 8 + e * 2] += bf16x2_lo(pairs[e]);
      d[q * 8 + e * 2 + 1] += bf16x2_hi(pairs[e]);
#endif
    }
  }
  bar_sync(STAGING_OWN + c->index, 128);
}

/* One result to a dW that tensor stores can't write. */
DEV void put_dw(const struct backward_args *args, uint32_t v, uint32_t h, float value) {
  if (v >= args->rows || h >= args->hidden) return;
  const uint64_t at = (uint64_t)v * (uint64_t)args->dw_stride + h;
  if (args->dw_f32) {
    const struct gmem to = gmem_add(args->dw, at * 4);
    st_global_f32(to, args->dw_accumulate ? value + ld_global_f32(to) : value);
  } else {
    const struct gmem to = gmem_add(args->dw, at * 2);
    if (args->dw_accumulate) {
#ifdef BACKWARD_F16
      value += f16_f32(ld_global_u16(to));
#else
      value += bits_f32((uint32_t)ld_global_u16(to) << 16);
#endif
    }
    st_global_u16(to, (uint16_t)pack_half2(value, 0.0f));
  }
}

DEV struct ring make_dw(const struct backward_args *args, struct shared s, struct consumer *c,
                        struct inbox in, struct ring ring) {
  float sums[192];
  const uint32_t steps = steps_of(args->tokens);
  ring = dw_multiply(s.stages, s.dw, ring, steps, c->index, c->thread, sums);
  dw_finish(s.dw, ring, c->thread, sums);
  const struct backward_tile t = inbox_tile(args, s, in);
  const float by = unscale(args, 0);
  const uint32_t h = t.h * BACKWARD_TILE + c->index * 128;
  const uint32_t v =
      (t.wave * args->schedule.wave_cols + t.col) * BACKWARD_TILE_COLS + c->rank * 192;
  if (!args->dw_mapped) {
    staging_open(&c->staging);
    UNROLL for (uint32_t i = 0; i < 2; i++) {
      UNROLL for (uint32_t e = 0; e < 96; e++)
          put_dw(args, v + e / 4 * 8 + c->thread % 4 * 2 + e % 2,
                 h + i * 64 + fragment_row(c->thread) + e / 2 % 2 * 8, sums[i * 96 + e] * by);
    }
    staging_close(&c->staging);
    return ring;
  }
  UNROLL for (uint32_t i = 0; i < 2; i++) {
    if (args->dw_f32) {
      UNROLL for (uint32_t n = 0; n < 6; n++) {
        multiply(sums + i * 96 + n * 16, 16, by);
        stage_f32(staging_open(&c->staging), c->thread, sums + i * 96 + n * 16, 1);
        staging_close(&c->staging);
      }
    } else {
      UNROLL for (uint32_t n = 0; n < 3; n++) {
        const struct smem block = staging_open(&c->staging);
        multiply(sums + i * 96 + n * 32, 32, by);
        if (args->dw_accumulate)
          add_old_half(args, c, block, v + n * 64, h + i * 64, sums + i * 96 + n * 32);
        stage_half(block, c->thread, sums + i * 96 + n * 32, 1);
        staging_close(&c->staging);
      }
    }
  }
  return ring;
}

#endif
