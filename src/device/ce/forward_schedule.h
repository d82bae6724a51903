/* How forward cuts its work: plain C shared by host, device and loom. It knows counts of tokens and
 * of vocabulary rows, not what they hold.
 *
 * The vocabulary is cut into tiles of FORWARD_TILE_COLS rows of W, of which two neighbours are a
 * pair, one for each CTA of a cluster. Pairs are cut into `segments` runs, whose number and bounds
 * depend on the vocabulary alone: so a row's sums have the same order whatever tokens come with it.
 * A unit is one run of pairs for one tile of FORWARD_TILE_TOKENS tokens; cluster c of n takes units
 * c, c + n, c + 2n, ...
 *
 * Token tiles are cut into groups that walk the vocabulary together: inside a group all tiles of
 * one segment come before the next segment, so W is read from memory once a group. The first runs
 * are the longer ones where the pairs do not divide evenly, and odd groups walk backwards, so that
 * the longer units spread over the clusters, and a group begins with what the last one left in the
 * cache. */
#ifndef WEFT_DEVICE_CE_FORWARD_SCHEDULE_H
#define WEFT_DEVICE_CE_FORWARD_SCHEDULE_H

#include "device/host_device.h"

enum {
  FORWARD_TILE_TOKENS = 256,
  FORWARD_TILE_COLS = 192,
  /* Half as many as clusters of two on 132 SMs: two tiles of tokens are work for all of them, for
   * about the same time, and a unit is long enough that its end costs little. */
  FORWARD_SEGMENTS_MAX = 33,
  /* 4096 tokens, which share each tile of W: 528 units, eight for each of 66 clusters. */
  FORWARD_GROUP_TILES = 16,
  /* Steps of depth (64 of H each) that a cluster may be ahead of the last one. */
  FORWARD_PACE_STEPS = 16,
  FORWARD_GROUP_TILES_MAX = 16, /* that the kernel's control words have room for */
};

struct forward_schedule {
  uint32_t token_tiles;
  uint32_t tile_pairs; /* of the vocabulary */
  uint32_t segments;   /* 1 to tile_pairs */
  uint32_t group;      /* token tiles a group, at least 1 */
};

struct forward_unit {
  uint32_t token_tile, segment;
  uint32_t first_pair, pairs;
};

HOST_DEVICE struct forward_schedule forward_schedule_make(uint32_t tokens, uint32_t rows,
                                                          uint32_t segments_max, uint32_t group) {
  struct forward_schedule s;
  const uint32_t tiles = rows / FORWARD_TILE_COLS + (rows % FORWARD_TILE_COLS != 0);
  s.token_tiles = tokens / FORWARD_TILE_TOKENS + (tokens % FORWARD_TILE_TOKENS != 0);
  s.tile_pairs = tiles / 2 + tiles % 2;
  s.segments = s.tile_pairs < segments_max ? s.tile_pairs : segments_max;
  s.group = group;
  return s;
}

HOST_DEVICE uint32_t forward_schedule_count(const struct forward_schedule *s) {
  return s->token_tiles * s->segments;
}

/* Pairs of the longest unit. */
HOST_DEVICE uint32_t forward_schedule_longest(const struct forward_schedule *s) {
  return s->tile_pairs / s->segments + (s->tile_pairs % s->segments != 0);
}

HOST_DEVICE struct forward_unit forward_schedule_unit(const struct forward_schedule *s,
                                                      uint32_t index) {
  struct forward_unit u;
  /* per_group may pass 2^32 only where a group holds more tiles than there are: never here, since
   * the group is small. */
  const uint32_t per_group = s->group * s->segments;
  const uint32_t group = index / per_group, rest = index % per_group;
  const uint32_t first_tile = group * s->group, left = s->token_tiles - first_tile;
  const uint32_t tiles = left < s->group ? left : s->group;
  const uint32_t column = rest / tiles;
  u.token_tile = first_tile + rest % tiles;
  u.segment = group % 2 ? s->segments - 1 - column : column;
  const uint32_t least = s->tile_pairs / s->segments, longer = s->tile_pairs % s->segments;
  u.first_pair = u.segment * least + (u.segment < longer ? u.segment : longer);
  u.pairs = least + (u.segment < longer);
  return u;
}

#endif
