/* The tiles of the backward pass in the order in which they are dealt out, and what each waits for:
 * (schedule, index) -> tile, tile -> counters. Plain C, the same for host, device and loom; it
 * knows tiles and counters, not what a tile costs.
 *
 * The vocabulary is walked in waves of `wave_cols` columns of tiles. First, once, a tile for each
 * row of tiles prepares its tokens' constants. Then, wave after wave:
 *
 *   dZ (row, col)  the gradient of the logits of that tile, into the wave's buffer
 *   dX (row, h)    adds the wave's share: sums over the wave's columns
 *   dW (col, h)    complete: sums over all tokens
 *
 * Clusters take the next index when they are ready for it. Whatever a tile waits for has a smaller
 * index, so the tile of the smallest unfinished index can always go on: there is no cyclic wait.
 *
 * Counters only grow during a call, from zero. Each tile adds BACKWARD_SIGNALS to each of its own,
 * one for each warpgroup that multiplies. A count of a later wave can't stand in for a missing one:
 * a row's dZ tiles store only when all dX tiles of its earlier waves are done, which needed all of
 * its dZ tiles of those waves; likewise for columns and dW.
 *
 * A step (step_schedule.h) has one wave, whose dZ tiles leave exponentials. They become dZ behind
 * later dZ tiles, and the last `left` of them in tiles of their own, after the first `early` tiles
 * of dX, which need none of them. */
#ifndef WEFT_DEVICE_CE_BACKWARD_SCHEDULE_H
#define WEFT_DEVICE_CE_BACKWARD_SCHEDULE_H

#include "device/gemm/schedule.h"

enum {
  BACKWARD_TILE = 256,      /* tokens, and hidden columns, of a cluster's tile */
  BACKWARD_TILE_COLS = 384, /* vocabulary rows of a cluster's tile */
  BACKWARD_SIGNALS = 4,     /* two CTAs of two warpgroups */
};

struct backward_schedule {
  uint32_t row_tiles, col_tiles, h_tiles;
  uint32_t wave_cols; /* columns of tiles of a wave; the last wave may have fewer */
  uint32_t group;     /* rows of tiles that walk the vocabulary together */
  uint32_t dx, dw;    /* 1 where it is wanted */
  uint32_t keeps;     /* 1: a step */
  uint32_t left;      /* of a step: conversions in tiles of their own */
  uint32_t early;     /* and tiles of dX before them */
};

enum backward_kind {
  BACKWARD_PREPARE,
  BACKWARD_DZ,
  BACKWARD_DX,
  BACKWARD_DW,
  BACKWARD_CONVERT, /* of a step: exponentials (row, col) to dZ */
};

struct backward_tile {
  uint32_t kind, wave;
  uint32_t row, col, h; /* col counts from the wave's start */
};

/* A counter's index and the least value to wait for; 0 is no wait. */
struct backward_need {
  uint32_t counter, value;
};

HOST_DEVICE uint32_t backward_waves(const struct backward_schedule *s) {
  return s->col_tiles / s->wave_cols + (s->col_tiles % s->wave_cols != 0);
}

/* Columns of tiles of a wave. */
HOST_DEVICE uint32_t backward_wave_cols(const struct backward_schedule *s, uint32_t wave) {
  const uint32_t left = s->col_tiles - wave * s->wave_cols;
  return left < s->wave_cols ? left : s->wave_cols;
}

HOST_DEVICE uint32_t backward_wave_tiles(const struct backward_schedule *s, uint32_t cols) {
  return s->row_tiles * cols + s->left + s->dx * s->row_tiles * s->h_tiles +
         s->dw * cols * s->h_tiles;
}

/* Rows of tiles that walk the vocabulary together in a step. The last `group` rows are cut in half
 * again and again, down to BACKWARD_TAIL: what the last of them leaves is converted in the open. */
enum { BACKWARD_TAIL = 2 };
struct backward_group {
  uint32_t row, rows; /* its first, and how many */
  uint32_t before;    /* rows of the group before, 0: none */
};

/* The group of dZ tile `number`. */
HOST_DEVICE struct backward_group backward_group(const struct backward_schedule *s,
                                                 uint32_t number) {
  struct backward_group g = {0, s->group, 0};
  const uint32_t full = s->row_tiles < 2 * s->group ? 0 : s->row_tiles / s->group - 1;
  const uint32_t of = number / (s->group * s->col_tiles);
  if (of < full) {
    g.row = of * s->group;
    g.before = of == 0 ? 0 : s->group;
    return g;
  }
  g.row = full * s->group;
  g.rows = full == 0 ? 0 : s->group;
  do {
    const uint32_t left = s->row_tiles - g.row;
    g.before = g.rows;
    g.rows = left <= BACKWARD_TAIL ? left : (left + 1) / 2;
    g.row += g.rows;
  } while (g.row < s->row_tiles && number >= g.row * s->col_tiles);
  g.row -= g.rows;
  return g;
}

/* The host sees to it that this stays below 2^31. */
HOST_DEVICE uint32_t backward_count(const struct backward_schedule *s) {
  const uint32_t last = backward_waves(s) - 1;
  return s->row_tiles + last * backward_wave_tiles(s, s->wave_cols) +
         backward_wave_tiles(s, backward_wave_cols(s, last));
}

HOST_DEVICE struct backward_tile backward_tile(const struct backward_schedule *s, uint32_t index) {
  struct backward_tile t = {BACKWARD_PREPARE, 0, index, 0, 0};
  if (index < s->row_tiles) return t;
  index -= s->row_tiles;
  const uint32_t wave_tiles = backward_wave_tiles(s, s->wave_cols);
  t.wave = index / wave_tiles;
  index -= t.wave * wave_tiles;
  const uint32_t cols = backward_wave_cols(s, t.wave);
  struct gemm_schedule walk = {s->row_tiles, cols, s->group};
  t.kind = BACKWARD_DZ;
  if (index >= s->row_tiles * cols) {
    index -= s->row_tiles * cols;
    const uint32_t dx_tiles = s->dx * s->row_tiles * s->h_tiles;
    if (index - s->early < s->left) { /* not where index is less than early: it wraps around */
      t.kind = BACKWARD_CONVERT;
      index += s->row_tiles * cols - s->left - s->early;
    } else {
      if (index >= s->early) index -= s->left;
      t.kind = BACKWARD_DX;
      walk.col_tiles = s->h_tiles;
      if (index >= dx_tiles) {
        index -= dx_tiles;
        t.kind = BACKWARD_DW;
        t.row = 0;
        t.col = index / s->h_tiles;
        t.h = index % s->h_tiles;
        return t;
      }
    }
  }
  if (s->keeps && t.kind != BACKWARD_DX) {
    const struct backward_group g = backward_group(s, index);
    index -= g.row * cols;
    t.row = g.row + index % g.rows;
    t.col = index / g.rows;
    return t;
  }
  const struct gemm_tile at = gemm_schedule_tile(&walk, index);
  t.row = at.row;
  t.col = t.kind == BACKWARD_DX ? 0 : at.col;
  t.h = t.kind == BACKWARD_DX ? at.col : 0;
  return t;
}

/* Counters, u32 each, zero at the start of a call (sm90_backward_begin.h). */
enum { BACKWARD_NEXT }; /* the next index to be dealt out */
HOST_DEVICE uint32_t backward_prepared(const struct backward_schedule *s, uint32_t row) {
  (void)s;
  return 1 + row;
}
HOST_DEVICE uint32_t backward_dz_of_row(const struct backward_schedule *s, uint32_t row) {
  return 1 + s->row_tiles + row;
}
HOST_DEVICE uint32_t backward_dx_of_row(const struct backward_schedule *s, uint32_t row) {
  return 1 + 2 * s->row_tiles + row;
}
HOST_DEVICE uint32_t backward_dz_of_col(const struct backward_schedule *s, uint32_t col) {
  return 1 + 3 * s->row_tiles + col;
}
HOST_DEVICE uint32_t backward_dw_of_col(const struct backward_schedule *s, uint32_t col) {
  return 1 + 3 * s->row_tiles + s->wave_cols + col;
}
/* Of a step alone: exponentials stored; and, for each CTA's half of a row of tiles, sums of
 * columns written, and 1 when they are merged. */
HOST_DEVICE uint32_t backward_kept_of_row(const struct backward_schedule *s, uint32_t row) {
  return 1 + 3 * s->row_tiles + 2 * s->wave_cols + row;
}
HOST_DEVICE uint32_t backward_summed(const struct backward_schedule *s, uint32_t row,
                                     uint32_t half) {
  return 1 + 4 * s->row_tiles + 2 * s->wave_cols + 2 * row + half;
}
HOST_DEVICE uint32_t backward_merged(const struct backward_schedule *s, uint32_t row,
                                     uint32_t half) {
  return 1 + 6 * s->row_tiles + 2 * s->wave_cols + 2 * row + half;
}
HOST_DEVICE uint32_t backward_counters(const struct backward_schedule *s) {
  return 1 + (s->keeps ? 8 : 3) * s->row_tiles + 2 * s->wave_cols;
}

/* Words behind the counters, one for each 64 tokens: whether one that does not count holds values
 * that are not finite. */
HOST_DEVICE uint32_t backward_unclean(const struct backward_schedule *s, uint32_t step) {
  return backward_counters(s) + step;
}
HOST_DEVICE uint32_t backward_words(const struct backward_schedule *s) {
  return backward_counters(s) + s->row_tiles * (BACKWARD_TILE / 64);
}

/* Before the tile's operands are loaded. */
HOST_DEVICE struct backward_need backward_load_need(const struct backward_schedule *s,
                                                    const struct backward_tile *t) {
  struct backward_need n = {0, 0};
  if (t->kind == BACKWARD_DZ) {
    n.counter = backward_prepared(s, t->row);
    n.value = BACKWARD_SIGNALS;
  } else if (t->kind == BACKWARD_DX) {
    n.counter = backward_dz_of_row(s, t->row);
    n.value = BACKWARD_SIGNALS * (t->wave * s->wave_cols + backward_wave_cols(s, t->wave));
  } else if (t->kind == BACKWARD_DW) {
    n.counter = backward_dz_of_col(s, t->col);
    n.value = BACKWARD_SIGNALS * (t->wave + 1) * s->row_tiles;
  }
  return n;
}

/* Before a dZ tile overwrites the buffer: `which` 0, the last wave's dX tiles of its row, and 1,
 * the dW tiles of its column, have read it. */
HOST_DEVICE struct backward_need backward_store_need(const struct backward_schedule *s,
                                                     const struct backward_tile *t,
                                                     uint32_t which) {
  struct backward_need n = {0, 0};
  if (t->kind != BACKWARD_DZ) return n;
  n.counter = which == 0 ? backward_dx_of_row(s, t->row) : backward_dw_of_col(s, t->col);
  n.value = BACKWARD_SIGNALS * t->wave * s->h_tiles * (which == 0 ? s->dx : s->dw);
  return n;
}

/* The counters that a finished tile adds to, `which` 0 or 1; a second one is dZ's alone. 0: none.
 */
HOST_DEVICE uint32_t backward_signal(const struct backward_schedule *s,
                                     const struct backward_tile *t, uint32_t which) {
  if (t->kind == BACKWARD_DZ && !s->keeps)
    return which == 0 ? backward_dz_of_row(s, t->row) : backward_dz_of_col(s, t->col);
  if (which != 0 || t->kind == BACKWARD_CONVERT) return 0; /* step_convert() adds its own */
  if (t->kind == BACKWARD_DZ) return backward_kept_of_row(s, t->row);
  if (t->kind == BACKWARD_PREPARE) return backward_prepared(s, t->row);
  return t->kind == BACKWARD_DX ? backward_dx_of_row(s, t->row) : backward_dw_of_col(s, t->col);
}

#endif
