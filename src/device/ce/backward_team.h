/* The tiles by which a team sums dX inside backward, and their places among the last wave's dW
 * tiles, behind which the exchange runs. Plain C, the same for host, device and loom.
 *
 *   SHARE    one: tells the peers that this rank's part of dX is there
 *   REDUCE   a piece of this rank's rows of the sum
 *   GATHER   a piece of a peer's rows, copied; or, where dX stays scattered, one that waits until
 *            no peer reads this rank's part any more
 *
 * Those that wait for peers have greater indices than all tiles of dX, on every rank, so what they
 * wait for is under way or done: there is no cyclic wait. */
#ifndef WEFT_DEVICE_CE_BACKWARD_TEAM_H
#define WEFT_DEVICE_CE_BACKWARD_TEAM_H

#include "device/host_device.h"

enum {
  BACKWARD_TEAM_ROWS = 32,   /* of a piece: as many for each of the cluster's four warpgroups */
  BACKWARD_TEAM_PARTIES = 4, /* warpgroups that take part in each of the tiles */
};

enum backward_team_part {
  BACKWARD_TEAM_NONE,
  BACKWARD_TEAM_SHARE,
  BACKWARD_TEAM_REDUCE,
  BACKWARD_TEAM_GATHER
};

/* All 0 without a team. Indices are those of backward_schedule.h, which knows no team: the dealer
 * puts the team's tiles in between, so that no other role has to count them. */
struct backward_team {
  uint32_t tiles;                          /* 1 + reduce + gather */
  uint32_t reduce, gather;                 /* tiles of each, at least 1 */
  uint32_t share_at, reduce_at, gather_at; /* indices before which they stand, not decreasing */
};

/* What the dealer deals out in place of an index: the part in bits 24 to 30, the piece below. */
#define BACKWARD_TEAM_TILE 0x80000000u

HOST_DEVICE enum backward_team_part backward_team_part(uint32_t dealt) {
  return dealt & BACKWARD_TEAM_TILE ? (enum backward_team_part)(dealt >> 24 & 0x7f)
                                    : BACKWARD_TEAM_NONE;
}
HOST_DEVICE uint32_t backward_team_piece(uint32_t dealt) {
  return dealt & 0xffffff;
}

/* The n-th tile of all: an index, or a tile of the team. */
HOST_DEVICE uint32_t backward_team_deal(const struct backward_team *t, uint32_t n) {
  if (t->tiles == 0 || n < t->share_at) return n;
  if (n == t->share_at) return BACKWARD_TEAM_TILE | BACKWARD_TEAM_SHARE << 24;
  n -= 1;
  if (n < t->reduce_at) return n;
  if (n - t->reduce_at < t->reduce)
    return BACKWARD_TEAM_TILE | BACKWARD_TEAM_REDUCE << 24 | (n - t->reduce_at);
  n -= t->reduce;
  if (n < t->gather_at) return n;
  if (n - t->gather_at < t->gather)
    return BACKWARD_TEAM_TILE | BACKWARD_TEAM_GATHER << 24 | (n - t->gather_at);
  return n - t->gather;
}

/* Pieces of a rank's rows. */
HOST_DEVICE uint32_t backward_team_pieces(uint32_t shard_rows) {
  const uint32_t pieces = (shard_rows + BACKWARD_TEAM_ROWS - 1) / BACKWARD_TEAM_ROWS;
  return pieces > 0 ? pieces : 1;
}

/* `first` is the index behind the last wave's dX, from which there are `dw_tiles`; `clusters` run.
 * Each part stands as late as leaves dW behind it to run beside, and not before it has likely what
 * it waits for. */
HOST_DEVICE struct backward_team backward_team_make(uint32_t shard_rows, uint32_t ranks,
                                                    uint32_t scatter, uint32_t first,
                                                    uint32_t dw_tiles, uint32_t clusters) {
  struct backward_team t;
  const uint32_t last = dw_tiles > clusters ? dw_tiles - clusters : 0;
  const uint32_t share = clusters < last ? clusters : last;
  t.reduce = backward_team_pieces(shard_rows);
  t.gather = scatter ? 1 : (ranks - 1) * t.reduce;
  t.tiles = 1 + t.reduce + t.gather;
  t.share_at = first + share;
  t.reduce_at = first + share + (last - share) / 3;
  t.gather_at = first + share + (last - share) / 3 * 2;
  return t;
}

#endif
