/* When the exponentials of a step become dZ: which of them each dZ tile converts behind its own
 * work. Plain C, the same for host, device and loom.
 *
 * dZ tiles are numbered in the order in which they are dealt (backward_schedule.h), and converted
 * in that order. A row's exponentials can be converted when its sum is known, that is when its
 * group of rows has walked all of the vocabulary: a tile of the next group converts as many as it
 * takes for the group before to be done by the end of this one, from STEP_SLACK tiles after its
 * start on, so that the last tiles of the group before, which are still at work then, are not
 * waited for. What is left after the last dZ tile gets tiles of its own. So a conversion needs only
 * dZ tiles of smaller numbers, all of an earlier group: there is no cyclic wait. */
#ifndef WEFT_DEVICE_CE_STEP_SCHEDULE_H
#define WEFT_DEVICE_CE_STEP_SCHEDULE_H

#include "device/ce/backward_schedule.h"

enum {
  STEP_SLACK = 128, /* two tiles for each cluster of 132 SMs */
  STEP_MOST = 6,    /* conversions behind one tile; more would take longer than the next tile */
};

struct step_range {
  uint32_t first, end; /* numbers of dZ tiles */
};

/* Tiles converted by the time `tiles` of the group's `size` are done; a whole group before it had
 * `before`. */
HOST_DEVICE uint32_t step_converted(uint32_t before, uint32_t size, uint32_t tiles) {
  const uint32_t slack = size / 2 < STEP_SLACK ? size / 2 : STEP_SLACK;
  if (tiles <= slack) return 0;
  uint32_t rate = (before - 1) / (size - slack) + 1;
  if (rate > STEP_MOST) rate = STEP_MOST;
  /* No overflow: before / rate is compared, not their product. */
  return tiles - slack > before / rate ? before : (tiles - slack) * rate;
}

/* What dZ tile `number` converts. */
HOST_DEVICE struct step_range step_conversions(const struct backward_schedule *s, uint32_t number) {
  struct step_range r = {0, 0};
  const uint32_t before = s->group * s->col_tiles, group = number / before;
  if (group == 0) return r;
  const uint32_t start = group * before, all = s->row_tiles * s->col_tiles;
  const uint32_t size = all - start < before ? all - start : before;
  r.first = start - before + step_converted(before, size, number - start);
  r.end = start - before + step_converted(before, size, number - start + 1);
  return r;
}

/* What no dZ tile converts: the schedule's `left`. */
HOST_DEVICE uint32_t step_left(const struct backward_schedule *s) {
  const uint32_t all = s->row_tiles * s->col_tiles;
  return all - step_conversions(s, all - 1).end;
}

HOST_DEVICE struct backward_tile step_tile(const struct backward_schedule *s, uint32_t number) {
  return backward_tile(s, s->row_tiles + number);
}

#endif
