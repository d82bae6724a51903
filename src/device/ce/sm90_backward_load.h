/* The producer of the backward kernel: one thread keeps the rings filled, tile after tile, and
 * waits for what the tile reads. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_LOAD_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_LOAD_H

#include "device/ce/sm90_backward_base.h"

/* So many steps before the last the next tile is asked for: time for it to come, without taking it
 * from a cluster that is ready earlier. */
#define WANT_AHEAD 6

/* Before the loads of step `step` of `steps`. */
DEV void ask_ahead(struct shared s, uint32_t rank, uint32_t step, uint32_t steps) {
  if (rank == 0 && step == (steps < WANT_AHEAD ? 0 : steps - WANT_AHEAD)) mbarrier_arrive(s.want);
}

DEV struct ring load_dz(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, uint32_t wave_start, struct ring ring) {
  const uint32_t steps = steps_of(args->hidden);
  const uint32_t row = t->row * BACKWARD_TILE + rank * 128;
  uint32_t col = wave_start + t->col * BACKWARD_TILE_COLS;
  struct operand a = {&args->x, 0, 0}, b = {&args->w, 0, 0};
  /* The first consumer's tile, then the second's. */
  for (uint32_t step = 0; step < 2 * steps; step++) {
    if (step == steps) {
      a.depth = b.depth = 0;
      col += 192;
    }
    ask_ahead(s, rank, step, 2 * steps);
    ring = dz_load(s.stages, s.dz, ring, rank, &a, &b, row, col);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

DEV struct ring load_dx(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, uint32_t wave_start, struct ring ring) {
  const uint32_t steps = wave_steps(args, t->wave);
  struct operand a = {&args->dz, 0, 0}, b = {&args->w_mn, wave_start, args->h_wide};
  const uint32_t turns = DX_IN_TURN ? 2 : 1;
  uint32_t h = t->h * BACKWARD_TILE;
  for (uint32_t step = 0; step < turns * steps; step++) {
    if (DX_IN_TURN && step == steps) {
      a.depth = 0;
      b.depth = wave_start;
      h += DX_COLS;
    }
    ask_ahead(s, rank, step, turns * steps);
    ring = dx_load(s.stages, s.dx, ring, rank, &a, &b, t->row * BACKWARD_TILE + rank * 128, h);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

DEV struct ring load_dw(const struct backward_args *args, struct shared s, uint32_t rank,
                        const struct backward_tile *t, struct ring ring) {
  const uint32_t steps = steps_of(args->tokens);
  struct operand a = {&args->x_mn, 0, args->h_wide}, b = {&args->dz_mn, 0, 1};
  for (uint32_t step = 0; step < steps; step++) {
    ask_ahead(s, rank, step, steps);
    ring = dw_load(s.stages, s.dw, ring, rank, &a, &b, t->h * BACKWARD_TILE,
                   t->col * BACKWARD_TILE_COLS + rank * 192);
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

/* One thread. */
DEV void produce(const struct backward_args *args, struct shared s, uint32_t rank) {
  struct inbox in = {0, 0};
  struct rings at = {{0, 0}, {0, 0}, {0, 0}};
  uint32_t last_kind = BACKWARD_PREPARE;
  for (;;) {
    const uint32_t index = inbox_read(s, in);
    inbox_done(s, in);
    in = inbox_next(in);
    if (index & BACKWARD_TEAM_TILE) {
      if (rank == 0) mbarrier_arrive(s.want);
      continue;
    }
    if (index >= args->end) return;
    const struct backward_tile t = backward_tile(&args->schedule, index);
    if (t.kind == BACKWARD_PREPARE || t.kind == BACKWARD_CONVERT) {
      if (rank == 0) mbarrier_arrive(s.want);
      continue;
    }
    if (t.kind != last_kind) {
      if (last_kind == BACKWARD_DZ) dz_drain(s.dz, at.dz);
      if (last_kind == BACKWARD_DX) dx_drain(s.dx, at.dx);
      if (last_kind == BACKWARD_DW) dw_drain(s.dw, at.dw);
      last_kind = t.kind;
    }
    const struct backward_need need = backward_load_need(&args->schedule, &t);
    wait_u32_ge(gpu, counter(args, need.counter), need.value, limit(args), BACKWARD_LOAD_TIMEOUT);
    /* What other CTAs have written, dZ and the sums of dX, before this CTA's tensor copies of it.
     */
    fence_proxy_async_global(backward_loads);
    const uint32_t wave_start = t.wave * args->schedule.wave_cols * BACKWARD_TILE_COLS;
    if (t.kind == BACKWARD_DZ)
      at.dz = load_dz(args, s, rank, &t, wave_start, at.dz);
    else if (t.kind == BACKWARD_DX)
      at.dx = load_dx(args, s, rank, &t, wave_start, at.dx);
    else
      at.dw = load_dw(args, s, rank, &t, at.dw);
  }
}

#endif
