/* The producer of the backward kernel: a warp, of which one thread issues tensor copies, keeps the
 * rings filled, tile after tile, and waits for what the tile reads. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_LOAD_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_LOAD_H

#include "device/ce/sm90_backward_by_hand.h"

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

/* ---- By hand: the same, by the whole warp ---- */

DEV struct ring walk_dz_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, const struct backward_tile *t, uint32_t wave_start,
                                struct ring ring, uint32_t *met) {
  const uint32_t steps = steps_of(args->hidden);
  const uint32_t row = t->row * BACKWARD_TILE + rank * 128;
  const uint32_t col = wave_start + t->col * BACKWARD_TILE_COLS;
  for (uint32_t step = 0; step < 2 * steps; step++) {
    const uint32_t second = step >= steps;
    if (issuer) ask_ahead(s, rank, step, 2 * steps);
    ring = dz_load_by_hand(args, s, rank, issuer, ring, met,
                           (step - second * steps) * BACKWARD_DEPTH_STEP, row, col + second * 192);
  }
  return ring;
}

DEV struct ring walk_dx_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, const struct backward_tile *t, uint32_t wave_start,
                                struct ring ring, uint32_t *met) {
  const uint32_t steps = wave_steps(args, t->wave), turns = DX_IN_TURN ? 2 : 1;
  struct operand a = {&args->dz, 0, 0};
  for (uint32_t step = 0; step < turns * steps; step++) {
    const uint32_t second = step >= steps;
    a.depth = (step - second * steps) * BACKWARD_DEPTH_STEP;
    if (issuer) ask_ahead(s, rank, step, turns * steps);
    ring = dx_load_by_hand(args, s, rank, issuer, ring, met, &a, wave_start + a.depth,
                           t->row * BACKWARD_TILE + rank * 128,
                           t->h * BACKWARD_TILE + second * DX_COLS);
  }
  return ring;
}

DEV struct ring walk_dw_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, const struct backward_tile *t, struct ring ring,
                                uint32_t *met) {
  const uint32_t steps = steps_of(args->tokens);
  struct operand b = {&args->dz_mn, 0, 1};
  for (uint32_t step = 0; step < steps; step++) {
    if (issuer) ask_ahead(s, rank, step, steps);
    ring = dw_load_by_hand(args, s, rank, issuer, ring, met, &b, t->h * BACKWARD_TILE,
                           t->col * BACKWARD_TILE_COLS + rank * 192);
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

/* ---- By tensor copies, but for steps of dW whose X is not clean ---- */

/* A step at a time. */
DEV struct ring walk_dw_unclean(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, const struct backward_tile *t, struct ring ring,
                                uint32_t *met) {
  const uint32_t steps = steps_of(args->tokens);
  const uint32_t h = t->h * BACKWARD_TILE, col = t->col * BACKWARD_TILE_COLS + rank * 192;
  struct operand a = {&args->x_mn, 0, args->h_wide}, b = {&args->dz_mn, 0, 1};
  for (uint32_t step = 0; step < steps; step++) {
    if (issuer) ask_ahead(s, rank, step, steps);
    if (ld_global_u32(counter(args, backward_unclean(&args->schedule, step))) != 0) {
      ring = dw_load_by_hand(args, s, rank, issuer, ring, met, &b, h, col);
    } else {
      if (issuer) {
        if (*met & 1) meet(s, rank, *met);
        dw_load(s.stages, s.dw, ring, rank, &a, &b, h, col);
      }
      if (*met & 1) *met = met_next(*met);
      ring = ring_next(ring, BACKWARD_STAGES_DW);
    }
    a.depth += BACKWARD_DEPTH_STEP;
    b.depth += BACKWARD_DEPTH_STEP;
  }
  return ring;
}

/* ---- All tiles ---- */

/* What the producer keeps from tile to tile, in one word, since it has few registers: the three
 * rings, 4 bits each in the order of the kinds, the kind of the tile before, 3 bits of meet()'s,
 * and whether any row that does not count is not clean. */
#define WORD_UNCLEAN (1u << 31)

DEV uint32_t kind_of(uint32_t word) {
  return word >> 16 & 3;
}

DEV struct ring ring_of(uint32_t word, uint32_t kind) {
  const uint32_t bits = word >> kind * 4;
  struct ring r;
  r.stage = bits & 7;
  r.parity = bits >> 3 & 1;
  return r;
}

DEV uint32_t met_of(uint32_t word) {
  return word >> 20 & 7;
}

DEV uint32_t word_keep(uint32_t word, uint32_t kind, struct ring r, uint32_t met) {
  const uint32_t rest = word & (WORD_UNCLEAN | 0xffffu) & ~(15u << kind * 4);
  return rest | (r.parity << 3 | r.stage) << kind * 4 | kind << 16 | (met & 7) << 20;
}

/* The warp: what the tile reads is there, and the stages are free for its kind. */
DEV void open_tile(const struct backward_args *args, struct shared s, uint32_t issuer,
                   const struct backward_tile *t, uint32_t word) {
  const uint32_t last_kind = kind_of(word);
  if (t->kind != last_kind) {
    if (last_kind == BACKWARD_DZ) dz_drain(s.dz, ring_of(word, BACKWARD_DZ));
    if (last_kind == BACKWARD_DX) dx_drain(s.dx, ring_of(word, BACKWARD_DX));
    if (last_kind == BACKWARD_DW) dw_drain(s.dw, ring_of(word, BACKWARD_DW));
  }
  if (issuer) {
    const struct backward_need need = backward_load_need(&args->schedule, t);
    wait_u32_ge(gpu, counter(args, need.counter), need.value, limit(args), BACKWARD_LOAD_TIMEOUT);
    /* What other CTAs have written, dZ and the sums of dX, before this CTA's tensor copies of it.
     */
    fence_proxy_async_global(backward_loads);
  }
  warp_sync();
}

/* The tile, and what is kept after it. */
DEV uint32_t load_tile_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                               uint32_t issuer, const struct backward_tile *t, uint32_t wave_start,
                               uint32_t word) {
  uint32_t met = met_of(word);
  if (t->kind == BACKWARD_DZ) {
    const struct ring ring =
        walk_dz_by_hand(args, s, rank, issuer, t, wave_start, ring_of(word, BACKWARD_DZ), &met);
    return word_keep(word, BACKWARD_DZ, ring, met);
  }
  if (t->kind == BACKWARD_DX) {
    const struct ring ring =
        walk_dx_by_hand(args, s, rank, issuer, t, wave_start, ring_of(word, BACKWARD_DX), &met);
    return word_keep(word, BACKWARD_DX, ring, met);
  }
  const struct ring ring =
      walk_dw_by_hand(args, s, rank, issuer, t, ring_of(word, BACKWARD_DW), &met);
  return word_keep(word, BACKWARD_DW, ring, met);
}

/* The same by copies: one lane issues them, and the others come to where it is. */
DEV uint32_t load_tile(const struct backward_args *args, struct shared s, uint32_t rank,
                       uint32_t issuer, const struct backward_tile *t, uint32_t wave_start,
                       uint32_t word) {
  uint32_t met = met_of(word);
  if (t->kind == BACKWARD_DW && (word & WORD_UNCLEAN)) {
    const struct ring ring =
        walk_dw_unclean(args, s, rank, issuer, t, ring_of(word, BACKWARD_DW), &met);
    return word_keep(word, BACKWARD_DW, ring, met);
  }
  if (met & 1) {
    if (issuer) meet(s, rank, met);
    met = met_next(met);
  }
  if (t->kind == BACKWARD_DZ) {
    const struct ring ring = ring_of(word, BACKWARD_DZ);
    if (issuer) load_dz(args, s, rank, t, wave_start, ring);
    word = word_keep(word, BACKWARD_DZ,
                     ring_skip(ring, 2 * steps_of(args->hidden), BACKWARD_STAGES_DZ), met);
  } else if (t->kind == BACKWARD_DX) {
    const struct ring ring = ring_of(word, BACKWARD_DX);
    const uint32_t steps = (DX_IN_TURN ? 2 : 1) * wave_steps(args, t->wave);
    if (issuer) load_dx(args, s, rank, t, wave_start, ring);
    word = word_keep(word, BACKWARD_DX, ring_skip(ring, steps, BACKWARD_STAGES_DX), met);
  } else {
    const struct ring ring = ring_of(word, BACKWARD_DW);
    if (issuer) load_dw(args, s, rank, t, ring);
    word = word_keep(word, BACKWARD_DW, ring_skip(ring, steps_of(args->tokens), BACKWARD_STAGES_DW),
                     met);
  }
  warp_converge(); /* lanes that went on would spin beside the one that issues copies */
  return word;
}

/* A warp: whether any row that does not count is not clean. */
DEV uint32_t any_unclean(const struct backward_args *args) {
  uint32_t found = 0;
  for (uint32_t i = lane_index(); i < args->schedule.row_tiles * (BACKWARD_TILE / 64); i += 32)
    found |= ld_global_u32(counter(args, backward_unclean(&args->schedule, i)));
  return warp_ballot(found != 0) != 0;
}

/* A warp. `by_hand` is args->by_hand: two loops, each of which keeps in registers what it needs. */
DEV void produce(const struct backward_args *args, struct shared s, uint32_t rank, int by_hand) {
  const uint32_t issuer = elect_one();
  uint32_t tiles = 0, word = BACKWARD_PREPARE << 16;
  if (!by_hand && any_unclean(args)) word |= WORD_UNCLEAN;
  for (;; tiles++) {
    const struct inbox in = {tiles & 1, tiles >> 1 & 1};
    const uint32_t index = inbox_read(s, in);
    warp_sync(); /* all lanes have read it */
    if (issuer) inbox_done(s, in);
    if (index & BACKWARD_TEAM_TILE) {
      if (issuer && rank == 0) mbarrier_arrive(s.want);
      continue;
    }
    if (index >= args->end) return;
    const struct backward_tile t = backward_tile(&args->schedule, index);
    if (t.kind == BACKWARD_PREPARE || t.kind == BACKWARD_CONVERT) {
      if (issuer && rank == 0) mbarrier_arrive(s.want);
      continue;
    }
    open_tile(args, s, issuer, &t, word);
    const uint32_t wave_start = t.wave * args->schedule.wave_cols * BACKWARD_TILE_COLS;
    word = by_hand ? load_tile_by_hand(args, s, rank, issuer, &t, wave_start, word)
                   : load_tile(args, s, rank, issuer, &t, wave_start, word);
  }
}

#endif
