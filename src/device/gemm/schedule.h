/* The order in which a persistent GEMM walks the tiles of its result: (schedule, index) -> tile.
 * Plain C, the same for host, device and loom; it knows tiles, not what a tile costs. Work is dealt
 * to clusters: cluster c of n takes the indices c, c + n, c + 2n, ... below the tile count.
 *
 * Rows of tiles are cut into groups of `group`; inside a group, all rows of one column come before
 * the next column. So the columns' operand is read once a group, and the group's rows stay in L2.
 * The last group may be smaller. */
#ifndef WEFT_DEVICE_GEMM_SCHEDULE_H
#define WEFT_DEVICE_GEMM_SCHEDULE_H

#include "device/host_device.h"

struct gemm_schedule {
  uint32_t row_tiles, col_tiles; /* their product is below 2^32 */
  uint32_t group;                /* rows of tiles a group, 1 to row_tiles */
};

struct gemm_tile {
  uint32_t row, col;
};

/* `tile_rows` x `tile_cols` is what one cluster computes at a time; `group_rows` of 0 is one group.
 */
HOST_DEVICE struct gemm_schedule gemm_schedule_make(uint32_t rows, uint32_t cols,
                                                    uint32_t tile_rows, uint32_t tile_cols,
                                                    uint32_t group_rows) {
  struct gemm_schedule s;
  s.row_tiles = rows / tile_rows + (rows % tile_rows != 0);
  s.col_tiles = cols / tile_cols + (cols % tile_cols != 0);
  s.group = group_rows / tile_rows;
  if (group_rows != 0 && s.group == 0) s.group = 1;
  if (group_rows == 0 || s.group > s.row_tiles) s.group = s.row_tiles;
  return s;
}

HOST_DEVICE uint32_t gemm_schedule_count(const struct gemm_schedule *s) {
  return s->row_tiles * s->col_tiles;
}

HOST_DEVICE struct gemm_tile gemm_schedule_tile(const struct gemm_schedule *s, uint32_t index) {
  /* group * col_tiles <= row_tiles * col_tiles, which fits. */
  const uint32_t per_group = s->group * s->col_tiles;
  const uint32_t first_row = index / per_group * s->group;
  const uint32_t rest = index % per_group;
  const uint32_t left = s->row_tiles - first_row;
  const uint32_t rows = left < s->group ? left : s->group;
  struct gemm_tile tile;
  tile.row = first_row + rest % rows;
  tile.col = rest / rows;
  return tile;
}

#endif
