/* The team's tiles of the backward kernel (backward_team.h), by the warpgroups that multiply: while
 * some of them sum or copy rows of dX, the others go on with dW. Knows the peer view through
 * dx_reduce_parts.h. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_TEAM_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_TEAM_H

#include "device/ce/dx_reduce_parts.h"
#include "device/ce/sm90_backward_make.h"

/* This rank's part of dX is in its arena, all of it. */
DEV void wait_for_own_part(const struct backward_args *args, uint32_t thread) {
  const struct backward_schedule *const s = &args->schedule;
  const struct peer_view *const view = &args->exchange.view;
  for (uint32_t row = thread; row < s->row_tiles; row += 128)
    wait_u32_ge(gpu, counter(args, backward_dx_of_row(s, row)),
                BACKWARD_SIGNALS * s->h_tiles * backward_waves(s), peer_limit(view),
                peer_error(PEER_ERROR_LOCAL, PEER_PHASE_DX_PARTIAL, view->rank));
}

/* A warpgroup's share of a piece of this rank's rows; the last one of all announces the sum. */
DEV void reduce_piece(const struct backward_args *args, const struct consumer *c, uint32_t epoch,
                      uint32_t piece, uint32_t group, struct smem scratch) {
  const struct dx_reduce_args *const team = &args->exchange;
  const uint32_t rows = BACKWARD_TEAM_ROWS / BACKWARD_TEAM_PARTIES;
  const uint32_t first = piece * BACKWARD_TEAM_ROWS + group * rows;
  dx_wait_parts(team, epoch, c->thread, 128);
  bar_sync(STAGING_OWN + c->index, 128);
  dx_reduce_rows(team, first, first + rows, c->thread, 128);
  bar_sync(STAGING_OWN + c->index, 128);
  if (c->thread == 0) {
    const uint32_t all = args->team.reduce * BACKWARD_TEAM_PARTIES;
    const uint32_t last = atom_add_u32(acq_rel, gpu, team->counter, 1) + 1 == all;
    st_shared_u32(scratch, last);
    if (last) st_global_u32(team->counter, 0);
  }
  bar_sync(STAGING_OWN + c->index, 128);
  if (ld_shared_u32(scratch)) dx_announce(team, team->summed, epoch, c->thread, 128);
}

/* A warpgroup's share of a piece of a peer's rows. */
DEV void gather_piece(const struct backward_args *args, const struct consumer *c, uint32_t epoch,
                      uint32_t piece, uint32_t group) {
  const struct dx_reduce_args *const team = &args->exchange;
  const struct peer_view *const view = &team->view;
  const uint32_t rows = BACKWARD_TEAM_ROWS / BACKWARD_TEAM_PARTIES;
  const uint32_t pieces = args->team.reduce;
  if (team->scatter) {
    for (uint32_t peer = c->thread; group == 0 && peer < view->ranks; peer += 128)
      dx_wait_sum(team, epoch, peer);
    return;
  }
  const uint32_t peer = (view->rank + 1 + piece / pieces) % view->ranks;
  const uint32_t first = piece % pieces * BACKWARD_TEAM_ROWS + group * rows;
  if (c->thread == 0) dx_wait_sum(team, epoch, peer);
  bar_sync(STAGING_OWN + c->index, 128);
  dx_copy_rows(team, peer, first, first + rows, c->thread, 128);
}

/* A warpgroup. */
DEV void team_tile(const struct backward_args *args, struct consumer *c, uint32_t dealt) {
  const uint32_t epoch = epoch_read(args->exchange.epoch), group = c->rank * 2 + c->index;
  const struct smem scratch = staging_open(&c->staging);
  if (backward_team_part(dealt) == BACKWARD_TEAM_REDUCE) {
    reduce_piece(args, c, epoch, backward_team_piece(dealt), group, scratch);
  } else if (backward_team_part(dealt) == BACKWARD_TEAM_GATHER) {
    gather_piece(args, c, epoch, backward_team_piece(dealt), group);
  } else if (group == 0) {
    wait_for_own_part(args, c->thread);
    bar_sync(STAGING_OWN + c->index, 128);
    dx_announce(&args->exchange, args->exchange.ready, epoch, c->thread, 128);
  }
  /* All of the warpgroup have read the epoch: they have met at the block since. */
  if (c->thread == 0)
    epoch_end(args->exchange.epoch, epoch, args->team.tiles * BACKWARD_TEAM_PARTIES);
  staging_close(&c->staging);
}

#endif
