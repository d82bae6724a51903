/* The tile schedule's law: every tile of the result exactly once, whatever the sizes; and the order
 * that keeps an operand in L2: within a group of rows, a column's tiles come together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/gemm/schedule.h"

static void check(uint32_t rows, uint32_t cols, uint32_t tile_rows, uint32_t tile_cols,
                  uint32_t group_rows) {
  const struct gemm_schedule s = gemm_schedule_make(rows, cols, tile_rows, tile_cols, group_rows);
  const uint32_t count = gemm_schedule_count(&s);
  /* The least number of tiles that covers the result. */
  assert_true((uint64_t)s.row_tiles * tile_rows >= rows);
  assert_true((uint64_t)s.col_tiles * tile_cols >= cols);
  assert_true((uint64_t)(s.row_tiles - 1) * tile_rows < rows);
  assert_true((uint64_t)(s.col_tiles - 1) * tile_cols < cols);
  unsigned char *seen = calloc(count, 1);
  assert_non_null(seen);
  struct gemm_tile previous = {0, 0};
  for (uint32_t i = 0; i < count; i++) {
    const struct gemm_tile tile = gemm_schedule_tile(&s, i);
    assert_in_range(tile.row, 0, s.row_tiles - 1);
    assert_in_range(tile.col, 0, s.col_tiles - 1);
    unsigned char *mark = &seen[(size_t)tile.row * s.col_tiles + tile.col];
    assert_int_equal(*mark, 0);
    *mark = 1;
    if (i > 0 && tile.row / s.group == previous.row / s.group) {
      assert_true(tile.col == previous.col || tile.col == previous.col + 1);
      if (tile.col == previous.col) assert_int_equal(tile.row, previous.row + 1);
    }
    if (group_rows != 0 && group_rows >= tile_rows)
      assert_true((uint64_t)s.group * tile_rows <= group_rows);
    previous = tile;
  }
  free(seen); /* count distinct tiles among row_tiles * col_tiles = count places: each once */
}

static void every_tile_once(void **state) {
  (void)state;
  static const uint32_t rows[] = {1, 127, 128, 129, 256, 4096, 4097, 5000};
  static const uint32_t cols[] = {1, 7, 384, 385, 4096, 5000, 50257};
  static const uint32_t tiles[][2] = {{256, 384}, {256, 256}, {512, 192}, {128, 128}, {1, 5000}};
  static const uint32_t groups[] = {0, 1, 256, 300, 2048, 100000};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
      for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
          check(rows[r], cols[c], tiles[t][0], tiles[t][1], groups[g]);
}

static void large_sizes_do_not_wrap(void **state) {
  (void)state;
  const uint32_t side = UINT32_MAX; /* 2^32 - 1 elements in tiles of 2^16: 2^16 tiles a side */
  const struct gemm_schedule s = gemm_schedule_make(side, side - 65536, 65536, 65536, 1u << 20);
  const uint32_t last = gemm_schedule_count(&s) - 1;
  assert_int_equal(s.row_tiles, 65536);
  assert_int_equal(s.col_tiles, 65535);
  assert_int_equal(gemm_schedule_tile(&s, last).row, 65535);
  assert_int_equal(gemm_schedule_tile(&s, last).col, 65534);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_tile_once),
      cmocka_unit_test(large_sizes_do_not_wrap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
