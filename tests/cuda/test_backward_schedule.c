/* Backward's schedule without a device: each tile comes once, what a tile waits for comes before it
 * and can't be counted too early, and dZ is never overwritten while it is still read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "device/ce/backward_team.h"
#include "device/ce/step_schedule.h"

static uint32_t tiles(uint32_t count, uint32_t tile) {
  return (count + tile - 1) / tile;
}

static struct backward_schedule make(uint32_t tokens, uint32_t hidden, uint32_t rows,
                                     uint32_t wave_cols, uint32_t group, uint32_t dx, uint32_t dw) {
  struct backward_schedule s = {tiles(tokens, BACKWARD_TILE),
                                tiles(rows, BACKWARD_TILE_COLS),
                                tiles(hidden, BACKWARD_TILE),
                                wave_cols,
                                group,
                                dx,
                                dw,
                                0,
                                0,
                                0};
  if (s.wave_cols > s.col_tiles) s.wave_cols = s.col_tiles;
  if (s.group > s.row_tiles) s.group = s.row_tiles;
  return s;
}

/* Tails of each kind, one and several waves and groups, each product alone. */
static const struct {
  uint32_t tokens, hidden, rows, wave_cols, group, dx, dw;
} cases[] = {
    {1, 1, 1, 1, 1, 1, 1},
    {4096, 4096, 131072, 69, 8, 1, 1},
    {4097, 264, 9000, 5, 8, 1, 1},
    {5000, 2048, 50257, 44, 3, 1, 1},
    {5000, 520, 5000, 3, 8, 1, 0},
    {5000, 520, 5000, 3, 8, 0, 1},
    {300, 7168, 129280, 337, 1, 1, 1},
    {300, 7168, 1153, 1, 2, 1, 1},
    {2048, 256, 768, 2, 4, 1, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct backward_schedule case_schedule(int i) {
  return make(cases[i].tokens, cases[i].hidden, cases[i].rows, cases[i].wave_cols, cases[i].group,
              cases[i].dx, cases[i].dw);
}

static void each_tile_once(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    const struct backward_schedule s = case_schedule(i);
    const size_t dz = (size_t)s.row_tiles * s.col_tiles;
    const size_t dx = (size_t)s.dx * backward_waves(&s) * s.row_tiles * s.h_tiles;
    const size_t dw = (size_t)s.dw * s.col_tiles * s.h_tiles;
    assert_int_equal(backward_count(&s), s.row_tiles + dz + dx + dw);
    unsigned char *seen = calloc(s.row_tiles + dz + dx + dw, 1);
    assert_non_null(seen);
    uint32_t wave = 0;
    for (uint32_t index = 0; index < backward_count(&s); index++) {
      const struct backward_tile t = backward_tile(&s, index);
      const uint32_t col = t.wave * s.wave_cols + t.col;
      assert_true(t.wave >= wave && t.wave < backward_waves(&s));
      wave = t.wave;
      assert_true(t.row < s.row_tiles && t.h < s.h_tiles && col < s.col_tiles);
      assert_true(t.col < backward_wave_cols(&s, t.wave));
      size_t at = t.row;
      if (t.kind == BACKWARD_DZ) at = s.row_tiles + (size_t)t.row * s.col_tiles + col;
      if (t.kind == BACKWARD_DX)
        at = s.row_tiles + dz + ((size_t)t.wave * s.row_tiles + t.row) * s.h_tiles + t.h;
      if (t.kind == BACKWARD_DW) at = s.row_tiles + dz + dx + (size_t)col * s.h_tiles + t.h;
      assert_int_equal(seen[at]++, 0);
    }
    free(seen);
  }
}

/* What the tiles before an index have added: every need is met by then, so the smallest unfinished
 * tile can always go on. */
static void needs_come_before(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    const struct backward_schedule s = case_schedule(i);
    uint32_t *counters = calloc(backward_counters(&s), sizeof *counters);
    assert_non_null(counters);
    for (uint32_t index = 0; index < backward_count(&s); index++) {
      const struct backward_tile t = backward_tile(&s, index);
      const struct backward_need needs[] = {backward_load_need(&s, &t),
                                            backward_store_need(&s, &t, 0),
                                            backward_store_need(&s, &t, 1)};
      for (int n = 0; n < 3; n++) {
        assert_true(needs[n].counter < backward_counters(&s));
        assert_true(counters[needs[n].counter] >= needs[n].value);
      }
      for (uint32_t which = 0; which < 2; which++) {
        const uint32_t to = backward_signal(&s, &t, which);
        assert_true(to < backward_counters(&s) && (which == 1 || to != BACKWARD_NEXT));
        if (to != BACKWARD_NEXT) counters[to] += BACKWARD_SIGNALS;
      }
    }
    free(counters);
  }
}

/* Plays the tiles in random orders that the counters allow, several at a time, and looks after the
 * truth apart from the counters: who has written dZ, and who has yet to read it. */
struct play {
  struct backward_schedule s;
  uint32_t *counters;
  int32_t *dz_wave;                /* [row][col in wave]: whose dZ is there, -1 at first */
  uint32_t *row_reads, *col_reads; /* dX and dW tiles of it that are done, all waves */
  int32_t *dx_wave;                /* [row][h]: last wave added */
};

static int may_run(const struct play *p, const struct backward_tile *t) {
  const struct backward_need needs[] = {backward_load_need(&p->s, t),
                                        backward_store_need(&p->s, t, 0),
                                        backward_store_need(&p->s, t, 1)};
  for (int n = 0; n < 3; n++)
    if (p->counters[needs[n].counter] < needs[n].value) return 0;
  return 1;
}

static void run_tile(struct play *p, const struct backward_tile *t) {
  const struct backward_schedule *s = &p->s;
  const uint32_t cols = backward_wave_cols(s, t->wave);
  if (t->kind == BACKWARD_DZ) {
    int32_t *at = &p->dz_wave[t->row * s->wave_cols + t->col];
    assert_int_equal(*at, (int32_t)t->wave - 1);
    if (s->dx) assert_int_equal(p->row_reads[t->row], t->wave * s->h_tiles);
    if (s->dw) assert_int_equal(p->col_reads[t->col], t->wave * s->h_tiles);
    *at = (int32_t)t->wave;
  } else if (t->kind == BACKWARD_DX) {
    for (uint32_t c = 0; c < cols; c++)
      assert_int_equal(p->dz_wave[t->row * s->wave_cols + c], t->wave);
    int32_t *at = &p->dx_wave[t->row * s->h_tiles + t->h];
    assert_int_equal(*at, (int32_t)t->wave - 1); /* one adder a wave, in order */
    *at = (int32_t)t->wave;
    p->row_reads[t->row]++;
  } else if (t->kind == BACKWARD_DW) {
    for (uint32_t r = 0; r < s->row_tiles; r++)
      assert_int_equal(p->dz_wave[r * s->wave_cols + t->col], t->wave);
    p->col_reads[t->col]++;
  }
  for (uint32_t which = 0; which < 2; which++) {
    const uint32_t to = backward_signal(s, t, which);
    if (to != BACKWARD_NEXT) p->counters[to] += BACKWARD_SIGNALS;
  }
}

static void any_order_is_right(void **state) {
  (void)state;
  enum { CLUSTERS = 7 };
  for (int i = 0; i < CASES; i++) {
    for (unsigned seed = 1; seed <= 3; seed++) {
      struct play p = {.s = case_schedule(i)};
      const struct backward_schedule *s = &p.s;
      p.counters = calloc(backward_counters(s), sizeof *p.counters);
      p.dz_wave = malloc((size_t)s->row_tiles * s->wave_cols * sizeof *p.dz_wave);
      p.dx_wave = malloc((size_t)s->row_tiles * s->h_tiles * sizeof *p.dx_wave);
      p.row_reads = calloc(s->row_tiles, sizeof *p.row_reads);
      p.col_reads = calloc(s->wave_cols, sizeof *p.col_reads);
      assert_true(p.counters && p.dz_wave && p.dx_wave && p.row_reads && p.col_reads);
      memset(p.dz_wave, 0xff, (size_t)s->row_tiles * s->wave_cols * sizeof *p.dz_wave);
      memset(p.dx_wave, 0xff, (size_t)s->row_tiles * s->h_tiles * sizeof *p.dx_wave);
      uint32_t held[CLUSTERS], next = 0, done = 0;
      int holds[CLUSTERS] = {0};
      srand(seed);
      while (done < backward_count(s)) {
        const int c = rand() % CLUSTERS;
        if (!holds[c] && next < backward_count(s)) held[c] = next++, holds[c] = 1;
        if (!holds[c]) continue;
        const struct backward_tile t = backward_tile(s, held[c]);
        if (!may_run(&p, &t)) continue;
        run_tile(&p, &t);
        holds[c] = 0;
        done++;
      }
      free(p.counters), free(p.dz_wave), free(p.dx_wave), free(p.row_reads), free(p.col_reads);
    }
  }
}

/* With a team each tile comes once too, in the order of its index, and so do the team's own: one
 * SHARE, then each piece of REDUCE, then each of GATHER, none of them before the last wave's dX. */
static void team_tiles_in_between(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++)
    for (uint32_t ranks = 2; ranks <= 16; ranks = ranks * 2 + 1)
      for (uint32_t scatter = 0; scatter < 2; scatter++) {
        const struct backward_schedule s = case_schedule(i);
        const uint32_t count = backward_count(&s), rows = tiles(cases[i].tokens, ranks);
        const uint32_t dw = s.dw * backward_wave_cols(&s, backward_waves(&s) - 1) * s.h_tiles;
        const struct backward_team t =
            backward_team_make(rows, ranks, scatter, count - dw, dw, 66 / ranks);
        const uint32_t pieces = tiles(rows, BACKWARD_TEAM_ROWS);
        assert_int_equal(t.reduce, pieces);
        assert_int_equal(t.gather, scatter ? 1 : (ranks - 1) * pieces);
        uint32_t next = 0, seen[4] = {0, 0, 0, 0};
        for (uint32_t n = 0; n < count + t.tiles; n++) {
          const uint32_t dealt = backward_team_deal(&t, n);
          const uint32_t part = backward_team_part(dealt);
          if (part == BACKWARD_TEAM_NONE) {
            assert_int_equal(dealt, next++);
            continue;
          }
          assert_true(next >= count - dw);
          assert_int_equal(backward_team_piece(dealt), seen[part]++);
          for (uint32_t later = part + 1; later <= BACKWARD_TEAM_GATHER; later++)
            assert_int_equal(seen[later], 0);
        }
        assert_int_equal(next, count);
        assert_int_equal(seen[BACKWARD_TEAM_SHARE], 1);
        assert_int_equal(seen[BACKWARD_TEAM_REDUCE], t.reduce);
        assert_int_equal(seen[BACKWARD_TEAM_GATHER], t.gather);
        /* The first beyond all is beyond the end for every role. */
        assert_int_equal(backward_team_deal(&t, count + t.tiles), count);
      }
}

/* ---- Steps ---- */

static const struct {
  uint32_t tokens, hidden, rows, group, dx, dw;
} steps[] = {
    {1, 1, 1, 1, 1, 1},          {4096, 4096, 131072, 4, 1, 1}, {4096, 4096, 131072, 3, 1, 1},
    {4097, 264, 9000, 8, 1, 1},  {5000, 520, 50257, 3, 1, 0},   {5000, 520, 5000, 2, 0, 1},
    {300, 512, 129280, 1, 1, 1}, {2048, 256, 768, 4, 1, 1},     {2000, 72, 1153, 3, 1, 1},
};
enum { STEPS = sizeof steps / sizeof *steps };

static struct backward_schedule step_case(int i) {
  struct backward_schedule s = make(steps[i].tokens, steps[i].hidden, steps[i].rows, UINT32_MAX,
                                    steps[i].group, steps[i].dx, steps[i].dw);
  s.keeps = 1;
  s.left = step_left(&s);
  s.early = step_early(&s);
  return s;
}

/* Each exponential is converted once, behind dZ tiles in order or in a tile of its own, and never
 * before all dZ tiles of its row have been dealt out; all of a row are before its dX. */
static void each_conversion_once(void **state) {
  (void)state;
  for (int i = 0; i < STEPS; i++) {
    const struct backward_schedule s = step_case(i);
    const uint32_t all = s.row_tiles * s.col_tiles;
    uint32_t *dealt = calloc(s.row_tiles, sizeof *dealt), next = 0, most = 0;
    unsigned char *seen = calloc(all, 1);
    assert_true(dealt && seen);
    uint32_t *converted = calloc(s.row_tiles, sizeof *converted);
    assert_non_null(converted);
    for (uint32_t index = 0; index < backward_count(&s); index++) {
      const struct backward_tile t = backward_tile(&s, index);
      if (t.kind == BACKWARD_DX) assert_int_equal(converted[t.row], s.col_tiles);
      if (t.kind == BACKWARD_CONVERT) {
        const struct backward_tile at = step_tile(&s, step_alone(&s, index).first);
        assert_true(at.kind == BACKWARD_DZ && at.row == t.row && at.col == t.col);
        assert_int_equal(dealt[t.row], s.col_tiles);
        assert_int_equal(seen[t.row * s.col_tiles + t.col]++, 0);
        converted[t.row]++;
      }
      if (t.kind != BACKWARD_DZ) continue;
      const struct step_range r = step_conversions(&s, index - s.row_tiles);
      for (uint32_t n = r.first; n < r.end; n++) {
        const struct backward_tile at = step_tile(&s, n);
        assert_int_equal(n, next++);
        assert_int_equal(at.kind, BACKWARD_DZ);
        assert_int_equal(dealt[at.row], s.col_tiles);
        assert_int_equal(seen[at.row * s.col_tiles + at.col]++, 0);
        converted[at.row]++;
      }
      if (r.end - r.first > most) most = r.end - r.first;
      dealt[t.row]++;
    }
    assert_true(most <= STEP_MOST);
    for (uint32_t n = 0; n < all; n++)
      assert_int_equal(seen[n], 1);
    free(dealt), free(seen), free(converted);
  }
}

/* Counters of a step do not overlap, and what dX and dW wait for is what conversions add. */
static void steps_are_complete(void **state) {
  (void)state;
  for (int i = 0; i < STEPS; i++) {
    const struct backward_schedule s = step_case(i);
    const uint32_t count = backward_counters(&s);
    unsigned char *used = calloc(count, 1);
    assert_non_null(used);
    for (uint32_t row = 0; row < s.row_tiles; row++) {
      used[backward_prepared(&s, row)]++, used[backward_dz_of_row(&s, row)]++;
      used[backward_dx_of_row(&s, row)]++, used[backward_kept_of_row(&s, row)]++;
      for (uint32_t half = 0; half < 2; half++)
        used[backward_summed(&s, row, half)]++, used[backward_merged(&s, row, half)]++;
    }
    for (uint32_t col = 0; col < s.col_tiles; col++)
      used[backward_dz_of_col(&s, col)]++, used[backward_dw_of_col(&s, col)]++;
    for (uint32_t n = 1; n < count; n++)
      assert_int_equal(used[n], 1);
    free(used);
    uint32_t tiles_of_kind[5] = {0};
    for (uint32_t index = 0; index < backward_count(&s); index++) {
      const struct backward_tile t = backward_tile(&s, index);
      const struct backward_need need = backward_load_need(&s, &t);
      tiles_of_kind[t.kind]++;
      if (t.kind == BACKWARD_DX) {
        assert_int_equal(need.counter, backward_dz_of_row(&s, t.row));
        assert_int_equal(need.value, BACKWARD_SIGNALS * s.col_tiles);
      } else if (t.kind == BACKWARD_DW) {
        assert_int_equal(need.counter, backward_dz_of_col(&s, t.col));
        assert_int_equal(need.value, BACKWARD_SIGNALS * s.row_tiles);
      } else if (t.kind == BACKWARD_DZ) {
        assert_int_equal(backward_signal(&s, &t, 0), backward_kept_of_row(&s, t.row));
        assert_int_equal(backward_signal(&s, &t, 1), 0);
      } else if (t.kind == BACKWARD_CONVERT) {
        assert_int_equal(backward_signal(&s, &t, 0), 0);
        assert_int_equal(need.value, 0);
      }
    }
    assert_int_equal(tiles_of_kind[BACKWARD_DZ], s.row_tiles * s.col_tiles);
    assert_int_equal(tiles_of_kind[BACKWARD_CONVERT], s.left);
    assert_int_equal(tiles_of_kind[BACKWARD_DX], s.dx * s.row_tiles * s.h_tiles);
    assert_int_equal(tiles_of_kind[BACKWARD_DW], s.dw * s.col_tiles * s.h_tiles);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_tile_once),       cmocka_unit_test(needs_come_before),
      cmocka_unit_test(any_order_is_right),   cmocka_unit_test(team_tiles_in_between),
      cmocka_unit_test(each_conversion_once), cmocka_unit_test(steps_are_complete)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
