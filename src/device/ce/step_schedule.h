/* When the exponentials of a step become dZ: which of them each dZ tile converts behind its own
 * work. Plain C, the same for host, device and loom.
 *
 * dZ tiles are numbered in the order in which they are dealt (backward_schedule.h), and converted
 * in that order. A row's exponentials can be converted when its sum is known, that is when its
 * group of rows has walked all of the vocabulary: a tile of the next group converts as many as it
 * takes for the group before to be done by the end of this one, from STEP_SLACK tiles after its
 * start on, so that the last tiles of the group before, which are still at work then, are not
 * waited for. What is left after the last dZ tile gets tiles of its own; tiles of dX of converted
 * rows come before them, so that nobody waits for the last dZ tiles of others. So a conversion
 * needs only dZ tiles of smaller numbers, all of an earlier group: there is no cyclic wait. */
#ifndef WEFT_DEVICE_CE_STEP_SCHEDULE_H
#define WEFT_DEVICE_CE_STEP_SCHEDULE_H

#include "device/ce/backward_schedule.h"

enum {
  STEP_SLACK = 128, /* two tiles for each cluster of 132 SMs */
  STEP_MOST = 6,    /* conversions behind one tile; more would take longer than the next tile */
  STEP_EARLY = 132, /* tiles of dX, two for each cluster, before what is left */
};

struct step_range {
  uint32_t first, end; /* numbers of dZ tiles */
};

/* Tiles converted by the time `tiles` of the group's `size` are done, evenly; a whole group before
 * it had `before`. */
HOST_DEVICE uint32_t step_converted(uint32_t before, uint32_t size, uint32_t tiles) {
  const uint32_t slack = size / 2 < STEP_SLACK ? size / 2 : STEP_SLACK;
  if (tiles <= slack || size == 0) return 0;
  if (before / STEP_MOST >= size - slack) return (tiles - slack) * STEP_MOST;
  return (uint32_t)((uint64_t)(tiles - slack) * before / (size - slack));
}

/* What dZ tile `number` converts. */
HOST_DEVICE struct step_range step_conversions(const struct backward_schedule *s, uint32_t number) {
  struct step_range r = {0, 0};
  const struct backward_group g = backward_group(s, number);
  if (g.before == 0) return r;
  const uint32_t start = g.row * s->col_tiles, before = g.before * s->col_tiles;
  const uint32_t size = g.rows * s->col_tiles;
  r.first = start - before + step_converted(before, size, number - start);
  r.end = start - before + step_converted(before, size, number - start + 1);
  return r;
}

/* What no dZ tile converts: the schedule's `left`, the last group and, where that is too small to
 * convert the one before, some of it. Groups before convert all: they are at least half as large.
 */
HOST_DEVICE uint32_t step_left(const struct backward_schedule *s) {
  const uint32_t all = s->row_tiles * s->col_tiles;
  return all - step_conversions(s, all - 1).end;
}

/* Tiles of dX that come before those: of rows in groups that are converted, if there are so many.
 * `left` is set. */
HOST_DEVICE uint32_t step_early(const struct backward_schedule *s) {
  if (s->left == 0) return 0;
  const struct backward_group g = backward_group(s, s->row_tiles * s->col_tiles - s->left);
  /* dX walks in groups of its own: all of the rows in those before. */
  const uint32_t rows = g.row / s->group * s->group;
  const uint32_t tiles = rows * s->h_tiles * s->dx;
  return tiles < STEP_EARLY ? tiles : STEP_EARLY;
}

HOST_DEVICE struct backward_tile step_tile(const struct backward_schedule *s, uint32_t number) {
  return backward_tile(s, s->row_tiles + number);
}

/* What the tile of that index, a conversion of its own, converts. */
HOST_DEVICE struct step_range step_alone(const struct backward_schedule *s, uint32_t index) {
  struct step_range r;
  r.first = index - s->row_tiles - s->left - s->early;
  r.end = r.first + 1;
  return r;
}

#endif
