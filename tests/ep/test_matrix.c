/* Every layout, dtype, scale format and world, over 1 to 16 ranks, by brute force. */
#include <stdio.h>
#include <string.h>

#include "ce/exchange.h"
#include "ep_case.h"
#include "support/ranks.h"
#include "support/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct team {
  const ep_case *c;
  exchange *exchange;
  char why[EP_RANKS][256];
} team;

static weft_status on_rank(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  return ep_everything(t->c, rank, comm, t->why[rank]);
}

static weft_status on_external_rank(int64_t rank, weft_comm *none, void *user) {
  (void)none;
  team *t = (team *)user;
  weft_comm *comm = NULL;
  weft_status status = exchange_world(t->exchange, rank, 1, &comm);
  if (status == WEFT_OK) status = ep_everything(t->c, rank, comm, t->why[rank]);
  weft_comm_destroy(comm);
  return status;
}

static void describe(const ep_case *c, const team *t, const ranks_result *results) {
  for (int64_t r = 0; r < c->ranks; r++)
    if (results[r].status != WEFT_OK)
      fail_msg(
          "ranks %lld, H %lld, E %lld, K %lld, layout %d/%d, dtype %d, scales %d/%d: rank %lld "
          "%s: %s",
          (long long)c->ranks, (long long)c->hidden, (long long)c->experts, (long long)c->topk,
          c->layout, c->alignment, c->dtype, c->scale_format, c->scale_order, (long long)r,
          weft_status_string(results[r].status), t->why[r]);
}

static void run(const ep_case *c, bool external) {
  static team t;
  ranks_result results[EP_RANKS];
  memset(&t, 0, sizeof t);
  t.c = c;
  if (external) {
    t.exchange = exchange_new(c->ranks);
    assert_int_equal(ranks_run_bare(c->ranks, on_external_rank, &t, results), WEFT_OK);
    exchange_free(t.exchange);
  } else {
    assert_int_equal(ranks_run_simple(c->ranks, 1, 60000, on_rank, &t, results), WEFT_OK);
  }
  describe(c, &t, results);
}

/* Tokens that differ by rank, from none to the most. */
static void vary(ep_case *c) {
  for (int64_t r = 0; r < c->ranks; r++)
    c->tokens[r] = (r * 5 + 3) % (c->tokens_max + 1);
  c->tokens[c->ranks / 2] = 0;
  c->tokens[0] = c->tokens_max;
}

static void all_formats(int64_t ranks, int64_t hidden, bool external) {
  for (int layout = 0; layout < 5; layout++)
    for (int format = -1; format < 3; format++)
      for (int order = 0; order < (format < 0 ? 1 : 2); order++) {
        ep_case c = ep_case_of(ranks, 9, hidden, ranks * 3, 4);
        if (THREADS_ONLY && (order > 0 || format % 2 == 0)) continue;
        static const int32_t alignments[] = {1, 1, 8, 128, 6};
        c.layout = layout > 0;
        c.alignment = alignments[layout];
        c.dtype = format < 0 ? WEFT_BF16 : WEFT_E4M3;
        c.scale_format = format < 0 ? 0 : format;
        c.scale_order = order;
        c.topk_dtype = layout % 2 ? WEFT_I32 : WEFT_I64;
        c.zero_copy = layout == 2 || layout == 0;
        c.seed = (uint64_t)(layout * 100 + format * 10 + order);
        vary(&c);
        run(&c, external);
      }
}

static void formats_in_process(void **state) {
  (void)state;
  all_formats(1, 1160, false);
  all_formats(3, 136, false);
  all_formats(4, 520, false);
}

static void formats_by_exchange(void **state) {
  (void)state;
  all_formats(1, 136, true);
  all_formats(2, 1160, true);
  all_formats(5, 136, true);
}

static void rank_counts(void **state) {
  (void)state;
  for (int64_t ranks = 1; ranks <= EP_RANKS; ranks++) {
    ep_case c = ep_case_of(ranks, 13, 24, ranks * 2, 6);
    vary(&c);
    run(&c, false);
    run(&c, true);
    c.layout = WEFT_EP_PACKED;
    c.alignment = 16;
    c.dtype = WEFT_E4M3;
    run(&c, false);
  }
}

/* More top-k than experts at all, one expert a rank, K = 32. */
static void odd_shapes(void **state) {
  (void)state;
  ep_case c = ep_case_of(2, 7, 8, 2, 5);
  run(&c, false);
  run(&c, true);
  c = ep_case_of(4, 33, 16, 64, 32);
  c.none = 0;
  run(&c, false);
  c.layout = WEFT_EP_PACKED;
  c.alignment = 4096;
  run(&c, false);
  c = ep_case_of(3, 5, 8, 3, 1);
  c.none = 1; /* nobody sends anything */
  run(&c, false);
  run(&c, true);
  c = ep_case_of(2, 0, 8, 2, 1); /* no token at all may come */
  run(&c, false);
  run(&c, true);
}

static void without_a_team(void **state) {
  (void)state;
  char why[256];
  ep_case c = ep_case_of(1, 20, 264, 6, 3);
  for (int dtype = 0; dtype < 2; dtype++) {
    c.dtype = dtype ? WEFT_E4M3 : WEFT_BF16;
    if (ep_everything(&c, 0, NULL, why) != WEFT_OK) fail_msg("%s", why);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(formats_in_process), cmocka_unit_test(formats_by_exchange),
      cmocka_unit_test(rank_counts),        cmocka_unit_test(odd_shapes),
      cmocka_unit_test(without_a_team),
  };
  return cmocka_run_group_tests_name("ep matrix", tests, NULL, NULL);
}
