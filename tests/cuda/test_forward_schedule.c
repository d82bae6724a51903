/* Forward's schedule and plan, without a device: each tile of logits is computed once, a row's
 * segments do not depend on the tokens, groups come one after the other, no cluster has much more
 * work than another, and the workspace keeps to its size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

#include "device/ce/forward_schedule.h"

static const uint32_t token_counts[] = {1, 255, 256, 257, 2048, 2049, 4096, 4097, 5000, 16384};
static const uint32_t row_counts[] = {1,     7,     192,    193,    384,    385,   1000,
                                      50257, 65536, 129280, 131072, 151936, 262144};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct forward_schedule make(uint32_t tokens, uint32_t rows) {
  return forward_schedule_make(tokens, rows, FORWARD_SEGMENTS_MAX, FORWARD_GROUP_TILES);
}

static void each_tile_once(void **state) {
  (void)state;
  for (size_t m = 0; m < COUNT(token_counts); m++)
    for (size_t v = 0; v < COUNT(row_counts); v++) {
      const struct forward_schedule s = make(token_counts[m], row_counts[v]);
      const size_t cells = (size_t)s.token_tiles * s.tile_pairs;
      assert_true((uint64_t)s.token_tiles * FORWARD_TILE_TOKENS >= token_counts[m]);
      assert_true((uint64_t)s.tile_pairs * 2 * FORWARD_TILE_COLS >= row_counts[v]);
      unsigned char *seen = calloc(cells, 1);
      assert_non_null(seen);
      for (uint32_t i = 0; i < forward_schedule_count(&s); i++) {
        const struct forward_unit u = forward_schedule_unit(&s, i);
        assert_true(u.token_tile < s.token_tiles && u.segment < s.segments && u.pairs > 0);
        assert_true(u.first_pair + u.pairs <= s.tile_pairs);
        for (uint32_t p = u.first_pair; p < u.first_pair + u.pairs; p++)
          seen[(size_t)u.token_tile * s.tile_pairs + p]++;
      }
      for (size_t i = 0; i < cells; i++)
        assert_int_equal(seen[i], 1);
      free(seen);
    }
}

/* The law of batch invariance: a segment's pairs are a function of the vocabulary. */
static void segments_ignore_tokens(void **state) {
  (void)state;
  for (size_t v = 0; v < COUNT(row_counts); v++) {
    struct forward_unit first[FORWARD_SEGMENTS_MAX];
    const struct forward_schedule one = make(1, row_counts[v]);
    for (uint32_t i = 0; i < one.segments; i++) {
      const struct forward_unit u = forward_schedule_unit(&one, i);
      first[u.segment] = u;
    }
    for (size_t m = 0; m < COUNT(token_counts); m++) {
      const struct forward_schedule s = make(token_counts[m], row_counts[v]);
      assert_int_equal(s.segments, one.segments);
      for (uint32_t i = 0; i < forward_schedule_count(&s); i++) {
        const struct forward_unit u = forward_schedule_unit(&s, i);
        assert_int_equal(u.first_pair, first[u.segment].first_pair);
        assert_int_equal(u.pairs, first[u.segment].pairs);
      }
    }
  }
}

/* A unit waits for units of the group before alone, so these must have smaller numbers. */
static void groups_follow_each_other(void **state) {
  (void)state;
  for (size_t m = 0; m < COUNT(token_counts); m++) {
    const struct forward_schedule s = make(token_counts[m], 50257);
    uint32_t group = 0;
    for (uint32_t i = 0; i < forward_schedule_count(&s); i++) {
      const uint32_t now = forward_schedule_unit(&s, i).token_tile / s.group;
      assert_true(now == group || now == group + 1);
      group = now;
    }
  }
}

/* The busiest of 66 clusters, in pairs, against an even share. */
static void clusters_share_evenly(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens, rows;
    double most;
  } shapes[] = {{4096, 131072, 1.005},  {8192, 151936, 1.001}, {8192, 129280, 1.005},
                {16384, 131072, 1.005}, {2048, 131072, 1.02},  {1024, 131072, 1.03},
                {4096, 128256, 1.02},   {8192, 202048, 1.01}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    const struct forward_schedule s = make(shapes[i].tokens, shapes[i].rows);
    uint32_t work[66] = {0}, most = 0;
    for (uint32_t k = 0; k < forward_schedule_count(&s); k++)
      work[k % 66] += forward_schedule_unit(&s, k).pairs;
    for (int c = 0; c < 66; c++)
      if (work[c] > most) most = work[c];
    const double even = (double)s.token_tiles * s.tile_pairs / 66;
    if (!(most <= shapes[i].most * even))
      fail_msg("%u x %u: %u pairs, an even share is %.2f", shapes[i].tokens, shapes[i].rows, most,
               even);
  }
}

/* A plan can be asked for on any machine; forward keeps to 4 MiB whatever M and V. */
static void plan_without_device(void **state) {
  (void)state;
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  machine.arch = "sm90";
  machine.units = 132;
  for (size_t v = 0; v < COUNT(row_counts); v++) {
    weft_ce_config config = WEFT_CE_CONFIG_INIT;
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
    config.max_tokens = 1 << 20;
    config.hidden = 4096;
    config.vocab = config.vocab_local = row_counts[v];
    config.dtype = config.w_dtype = WEFT_BF16;
    config.wants = WEFT_CE_ENTROPY;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_OK);
    assert_true(info.local_bytes <= 4 << 20 && info.local_bytes > 0);
    assert_int_equal(info.symmetric_bytes, 0);
    assert_int_equal(info.units, 132);
    assert_true(info.least_bytes <= info.local_bytes);
    config.workspace_budget = info.least_bytes;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_OK);
    config.workspace_budget = info.least_bytes - 1;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_ERR_WORKSPACE);
    config.workspace_budget = 0;
    config.dtype = config.w_dtype = WEFT_F32;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_ERR_UNSUPPORTED);
    machine.ranks = 2;
    config.dtype = config.w_dtype = WEFT_BF16;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_OK);
    assert_true(info.symmetric_bytes >= 2 * config.max_tokens * 16);
    const int64_t both = info.local_bytes + info.symmetric_bytes;
    assert_true(info.least_bytes <= both);
    config.workspace_budget = info.least_bytes - 1;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_ERR_WORKSPACE);
    config.workspace_budget = 0;
    machine.hosts = 2;
    assert_int_equal(weft_ce_plan_query(&config, &machine, &info), WEFT_ERR_UNSUPPORTED);
    machine.ranks = machine.hosts = 1;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_tile_once),           cmocka_unit_test(segments_ignore_tokens),
      cmocka_unit_test(groups_follow_each_other), cmocka_unit_test(clusters_share_evenly),
      cmocka_unit_test(plan_without_device),
  };
  return cmocka_run_group_tests_name("forward schedule", tests, NULL, NULL);
}
