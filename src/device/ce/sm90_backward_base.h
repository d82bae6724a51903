/* What the roles of the backward kernel share: the layout of shared memory, counters, and the
 * mailbox by which a CTA's roles learn the cluster's next tile. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_BASE_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_BASE_H

#include "device/ce/sm90_backward_shapes.h"

struct shared {
  struct smem stages;
  struct ring_barriers dz, dx, dw;   /* of three rings over the same stages */
  struct smem staging;               /* two blocks a consumer */
  struct smem tile_full, tile_empty; /* [2] */
  struct smem want, handed, credit;  /* between producer and dealers; see deal() */
  struct smem meeting;               /* [2], of the CTAs' producers; see meet() */
  struct smem tile, handed_tile;     /* u32 [2], u32 */
};

enum { TILE_READERS = 1 + 2 }; /* producer, and a thread of each consumer */

DEV struct shared shared_layout(void) {
  struct shared s;
  s.stages = smem_base();
  s.staging = smem_add(s.stages, BACKWARD_RING_BYTES);
  s.dz.full = smem_add(s.staging, BACKWARD_STAGING_BLOCKS * BACKWARD_BLOCK_BYTES);
  s.dz.empty = smem_add(s.dz.full, BACKWARD_STAGES_DZ * 8);
  s.dx.full = smem_add(s.dz.empty, BACKWARD_STAGES_DZ * 8);
  s.dx.empty = smem_add(s.dx.full, BACKWARD_STAGES_DX * 8);
  s.dw.full = smem_add(s.dx.empty, BACKWARD_STAGES_DX * 8);
  s.dw.empty = smem_add(s.dw.full, BACKWARD_STAGES_DW * 8);
  s.tile_full = smem_add(s.dw.empty, BACKWARD_STAGES_DW * 8);
  s.tile_empty = smem_add(s.tile_full, 2 * 8);
  s.want = smem_add(s.tile_empty, 2 * 8);
  s.handed = smem_add(s.want, 8);
  s.credit = smem_add(s.handed, 8);
  s.meeting = smem_add(s.credit, 8);
  s.tile = smem_add(s.meeting, 2 * 8);
  s.handed_tile = smem_add(s.tile, 8);
  return s;
}

DEV void init_barriers(struct shared s) {
  ring_init(s.dz, BACKWARD_STAGES_DZ, 1);
  ring_init(s.dx, BACKWARD_STAGES_DX, DX_IN_TURN ? 1 : 2);
  ring_init(s.dw, BACKWARD_STAGES_DW, 2);
  for (uint32_t i = 0; i < 2; i++) {
    mbarrier_init(smem_add(s.tile_full, i * 8), 1);
    mbarrier_init(smem_add(s.tile_empty, i * 8), TILE_READERS);
    mbarrier_init(smem_add(s.meeting, i * 8), 1);
  }
  mbarrier_init(s.want, 1);
  mbarrier_init(s.handed, 1);
  mbarrier_init(s.credit, 1);
}

DEV struct gmem counter(const struct backward_args *args, uint32_t index) {
  return gmem_add(args->counters, (uint64_t)index * 4);
}

DEV struct wait_limit limit(const struct backward_args *args) {
  struct wait_limit l;
  l.error = args->errors;
  l.timeout_ns = args->timeout_ns;
  return l;
}

/* ---- Tiles ---- */

/* The tile that a role is at: slot and parity of the mailbox. */
struct inbox {
  uint32_t slot, parity;
};

/* The index of the tile. It stays there until the producer and the consumers are done with it. */
DEV uint32_t inbox_read(struct shared s, struct inbox in) {
  mbarrier_wait(smem_add(s.tile_full, in.slot * 8), in.parity);
  return ld_shared_u32(smem_add(s.tile, in.slot * 4));
}

DEV struct inbox inbox_next(struct inbox in) {
  in.parity ^= in.slot;
  in.slot ^= 1;
  return in;
}

/* The tile, read once more: nothing of it has to stay in registers during the multiplication. */
DEV struct backward_tile inbox_tile(const struct backward_args *args, struct shared s,
                                    struct inbox in) {
  return backward_tile(&args->schedule, ld_shared_u32(smem_add(s.tile, in.slot * 4)));
}

/* One thread has read the tile for its role. */
DEV void inbox_done(struct shared s, struct inbox in) {
  mbarrier_arrive(smem_add(s.tile_empty, in.slot * 8));
}

/* Waits until the producer asks for a tile. For speed alone: a tile that is dealt later may go to
 * the cluster that is ready for it first. */
DEV void pace(struct shared s, uint32_t parity) {
  mbarrier_pace(s.want, parity);
}

/* Dealer, one thread in each CTA. The first CTA's takes the next index when its producer is about
 * to be done with the tile before, hands it to the other's, and both put it into their mailboxes.
 * The last index dealt is the first beyond the end. */
DEV void deal(const struct backward_args *args, struct shared s, uint32_t rank) {
  for (uint32_t n = 0;; n++) {
    uint32_t index;
    if (rank == 0) {
      if (n != 0) pace(s, (n - 1) & 1);
      index = args->first + atom_add_u32(relaxed, gpu, counter(args, BACKWARD_NEXT), 1);
      index = backward_team_deal(&args->team, index);
      if (n != 0) mbarrier_wait_cluster(s.credit, (n - 1) & 1);
      st_dsmem_u32(cluster_map(s.handed_tile, 1), index);
      mbarrier_arrive_remote_cluster(cluster_map(s.handed, 1));
    } else {
      mbarrier_wait_cluster(s.handed, n & 1);
      index = ld_shared_u32(s.handed_tile);
      mbarrier_arrive_remote_cluster(cluster_map(s.credit, 0));
    }
    const uint32_t slot = n & 1;
    if (n > 1) mbarrier_wait(smem_add(s.tile_empty, slot * 8), (n / 2 - 1) & 1);
    st_shared_u32(smem_add(s.tile, slot * 4), index);
    mbarrier_arrive(smem_add(s.tile_full, slot * 8));
    if (!(index & BACKWARD_TEAM_TILE) && index >= args->end) return;
  }
}

/* Steps of depth of a wave's dX. */
DEV uint32_t wave_steps(const struct backward_args *args, uint32_t wave) {
  const uint32_t full = args->schedule.wave_cols * BACKWARD_TILE_COLS;
  const uint32_t left = args->rows - wave * full;
  return ((left < full ? left : full) - 1) / BACKWARD_DEPTH_STEP + 1;
}

DEV uint32_t steps_of(uint32_t depth) {
  return (depth - 1) / BACKWARD_DEPTH_STEP + 1;
}

/* A role's place in the three rings. */
struct rings {
  struct ring dz, dx, dw;
};

/* 1 where dX of this tile is final, else its sums are added up in the workspace. */
DEV uint32_t is_last_wave(const struct backward_args *args, uint32_t wave) {
  return (wave + 1) * args->schedule.wave_cols >= args->schedule.col_tiles;
}

#endif
