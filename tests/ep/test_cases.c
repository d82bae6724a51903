/* The cases from the field: combines repeated, flights, empty ranks, long inputs, odd widths,
 * number formats, ranks that disagree or fail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fp8.h"
#include "ep_case.h"
#include "ep_law.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef weft_status (*body_fn)(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]);

typedef struct team {
  const ep_case *c;
  body_fn body;
  char why[EP_RANKS][256];
} team;

static weft_status on_rank(int64_t rank, weft_comm *comm, void *user) {
  team *t = (team *)user;
  return t->body(t->c, rank, comm, t->why[rank]);
}

static void run(const ep_case *c, body_fn body, int64_t timeout_ms) {
  static team t;
  ranks_result results[EP_RANKS];
  memset(&t, 0, sizeof t);
  t.c = c;
  t.body = body;
  assert_int_equal(ranks_run_simple(c->ranks, 1, timeout_ms, on_rank, &t, results), WEFT_OK);
  for (int64_t r = 0; r < c->ranks; r++)
    if (results[r].status != WEFT_OK)
      fail_msg("rank %lld: %s: %s; last error: %s", (long long)r,
               weft_status_string(results[r].status), t.why[r], results[r].error);
}

/* What a law found wrong is a SYSTEM error of the test. */
#define LAW(condition)                                                                             \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      snprintf(why, 256, "line %d: %.100s; %.120s", __LINE__, #condition, weft_last_error());      \
      return WEFT_ERR_SYSTEM;                                                                      \
    }                                                                                              \
  } while (0)

typedef struct desk {
  weft_ep_plan *plan;
  weft_ep_plan_info info;
  weft_ep_handle *handle[3];
  ep_inputs in;
  ep_received got;
  uint16_t *y, *out;
  float *values;
  weft_ep_dispatch_args d;
  weft_ep_combine_args m;
} desk;

static weft_status open_desk(desk *k, const ep_case *c, int64_t rank, weft_comm *comm, int masking,
                             int64_t timeout_ms) {
  weft_ep_config config = ep_config(c);
  const weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  const weft_ep_combine_args m = WEFT_EP_COMBINE_ARGS_INIT;
  memset(k, 0, sizeof *k);
  config.masking = masking;
  config.timeout_ms = timeout_ms;
  k->info = info;
  k->m = m;
  weft_status status = weft_ep_plan_create(comm, &config, &k->plan);
  for (int i = 0; i < 3 && status == WEFT_OK; i++)
    status = weft_ep_handle_create(k->plan, &k->handle[i]);
  if (status != WEFT_OK) return status;
  weft_ep_plan_info_get(k->plan, &k->info);
  k->in = ep_inputs_make(c, rank, c->seed);
  k->got = ep_received_make(&k->info, c);
  k->y = (uint16_t *)malloc((size_t)(k->info.rows_max * c->hidden + 1) * 2);
  k->values = (float *)malloc((size_t)(k->info.rows_max + 1) * 4);
  k->out = (uint16_t *)malloc((size_t)(c->tokens[rank] * c->hidden + 1) * 2);
  k->d = ep_dispatch_args(c, rank, &k->in, &k->got);
  k->m.y = k->y;
  k->m.out = k->out;
  k->m.topk_weights = k->in.weights;
  return WEFT_OK;
}

static void close_desk(desk *k) {
  for (int i = 0; i < 3; i++)
    weft_ep_handle_destroy(k->handle[i]);
  weft_ep_plan_destroy(k->plan);
  ep_inputs_free(&k->in);
  ep_received_free(&k->got);
  free(k->y);
  free(k->values);
  free(k->out);
}

/* E1: combines repeated: the right bits each time. */
static weft_status repeat(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  LAW(open_desk(&k, c, rank, comm, 0, 0) == WEFT_OK);
  LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_OK);
  ep_fill_rows(c, &k.info, rank, &k.got, k.y, k.values);
  const size_t bytes = (size_t)(c->tokens[rank] * c->hidden) * 2;
  uint16_t *first = (uint16_t *)malloc(bytes + 1);
  const int rounds = c->tokens_max <= 128 ? 1024 : 64;
  for (int i = 0; i < rounds; i++) {
    memset(k.out, 0xff, bytes);
    LAW(weft_ep_combine(k.handle[0], &k.m, NULL) == WEFT_OK);
    if (i == 0) {
      if (ep_check_combined(c, rank, c->seed, true, -1, k.out, NULL, why)) return WEFT_ERR_SYSTEM;
      memcpy(first, k.out, bytes);
    }
    LAW(memcmp(first, k.out, bytes) == 0);
  }
  free(first);
  close_desk(&k);
  return WEFT_OK;
}

static void e1_combines_repeat(void **state) {
  (void)state;
  static const int64_t tokens[] = {128, 256, 257, 512, 1024};
  for (int i = 0; i < 5; i++)
    for (int64_t topk = 2; topk <= 8; topk += 6) {
      ep_case c = ep_case_of(2, tokens[i], 8, 16, topk);
      c.ones = true;
      run(&c, repeat, 60000);
    }
}

/* E3: two dispatches in flight, combines interleaved; a third is refused. */
static weft_status interleave(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  ep_case other = *c;
  other.seed = c->seed + 7;
  LAW(open_desk(&k, c, rank, comm, 0, 0) == WEFT_OK);
  ep_inputs in = ep_inputs_make(&other, rank, other.seed);
  ep_received got = ep_received_make(&k.info, c);
  const weft_ep_dispatch_args d = ep_dispatch_args(&other, rank, &in, &got);
  for (int round = 0; round < 5; round++) {
    LAW(weft_ep_dispatch_send(k.handle[0], &k.d, NULL) == WEFT_OK);
    LAW(weft_ep_dispatch_send(k.handle[1], &d, NULL) == WEFT_OK);
    LAW(weft_ep_dispatch_send(k.handle[2], &k.d, NULL) == WEFT_ERR_BUSY);
    LAW(weft_ep_dispatch_receive(k.handle[1], &d, NULL) == WEFT_OK);
    LAW(weft_ep_dispatch_receive(k.handle[0], &k.d, NULL) == WEFT_OK);
    LAW(weft_ep_dispatch_receive(k.handle[0], &k.d, NULL) == WEFT_ERR_ARGUMENT);
    if (ep_check_received(c, &k.info, rank, c->seed, c->seed, &k.got, why) ||
        ep_check_received(&other, &k.info, rank, other.seed, other.seed, &got, why))
      return WEFT_ERR_SYSTEM;
    uint16_t *y = (uint16_t *)malloc((size_t)(k.info.rows_max * c->hidden + 1) * 2);
    ep_fill_rows(c, &k.info, rank, &k.got, k.y, k.values);
    ep_fill_rows(&other, &k.info, rank, &got, y, k.values);
    weft_ep_combine_args m = k.m;
    m.y = y;
    m.topk_weights = in.weights;
    LAW(weft_ep_combine_send(k.handle[1], &m, NULL) == WEFT_OK);
    LAW(weft_ep_combine_send(k.handle[0], &k.m, NULL) == WEFT_OK);
    LAW(weft_ep_dispatch_send(k.handle[2], &k.d, NULL) == WEFT_ERR_BUSY);
    LAW(weft_ep_handle_destroy(k.handle[0]) == WEFT_ERR_BUSY);
    LAW(weft_ep_combine_receive(k.handle[0], &k.m, NULL) == WEFT_OK);
    if (ep_check_combined(c, rank, c->seed, true, -1, k.out, NULL, why)) return WEFT_ERR_SYSTEM;
    LAW(weft_ep_combine_receive(k.handle[1], &m, NULL) == WEFT_OK);
    if (ep_check_combined(&other, rank, other.seed, true, -1, k.out, NULL, why))
      return WEFT_ERR_SYSTEM;
    free(y);
  }
  weft_ep_stats stats = WEFT_EP_STATS_INIT;
  int64_t rows[64];
  stats.expert_rows = rows;
  LAW(weft_ep_stats_get(k.plan, &stats, 1) == WEFT_OK);
  LAW(stats.dispatches == 10 && stats.combines == 10);
  LAW(rows[0] == 5 * (k.got.counts[0] + got.counts[0]));
  LAW(weft_ep_stats_get(k.plan, &stats, 0) == WEFT_OK && stats.dispatches == 0 && rows[0] == 0);
  ep_inputs_free(&in);
  ep_received_free(&got);
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  close_desk(&k);
  return WEFT_OK;
}

static void e3_two_in_flight(void **state) {
  (void)state;
  const ep_case c = ep_case_of(3, 40, 16, 6, 3);
  run(&c, interleave, 60000);
}

/* E5: configs that differ are an error on every rank. */
static weft_status differ(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  weft_ep_config config = ep_config(c);
  weft_ep_plan *plan = NULL;
  config.tokens_max += rank == 1;
  LAW(weft_ep_plan_create(comm, &config, &plan) == WEFT_ERR_MISMATCH && plan == NULL);
  LAW(strstr(weft_last_error(), "tokens_max") != NULL);
  config = ep_config(c);
  config.hidden = rank == 2 ? 12 : 16;
  LAW(weft_ep_plan_create(comm, &config, &plan) == (rank == 2 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER));
  LAW(strstr(weft_last_error(), "hidden") != NULL);
  return WEFT_OK;
}

static void e5_configs_differ(void **state) {
  (void)state;
  const ep_case c = ep_case_of(4, 8, 16, 8, 2);
  run(&c, differ, 60000);
}

/* E6: none on one rank, on all, the most; and more than that is an error that leaves the team
 * whole. */
static weft_status refuse(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  int64_t bad[2] = {c->experts, -2};
  LAW(open_desk(&k, c, rank, comm, 0, 0) == WEFT_OK);
  for (int i = 0; i < 8; i++) {
    weft_ep_dispatch_args d = k.d;
    int64_t *topk = (int64_t *)d.topk_idx, kept = topk[0];
    const char *word = "args.tokens";
    if (i % 4 == 0 && rank == 1) d.tokens = c->tokens_max + 1;
    if (i % 4 == 1 && rank == 1) topk[0] = bad[i / 4];
    if (i % 4 == 2 && rank == 1) d.x = NULL;
    if (i % 4 == 3 && rank == 1) topk[0] = topk[1] = 0;
    if (i % 4 == 1 || i % 4 == 3) word = "topk_idx";
    if (i % 4 == 2) word = "args.x";
    const weft_status status = weft_ep_dispatch(k.handle[0], &d, NULL);
    LAW(status == (rank == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER));
    LAW(strstr(weft_last_error(), word) != NULL);
    LAW(rank == 1 || strstr(weft_last_error(), "rank 1") != NULL);
    ep_inputs_free(&k.in);
    k.in = ep_inputs_make(c, rank, c->seed);
    (void)kept;
    k.d = ep_dispatch_args(c, rank, &k.in, &k.got);
    k.m.topk_weights = k.in.weights;
    LAW(weft_ep_combine(k.handle[0], &k.m, NULL) == WEFT_ERR_ARGUMENT);
    LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_OK);
    if (ep_check_received(c, &k.info, rank, c->seed, c->seed, &k.got, why)) return WEFT_ERR_SYSTEM;
    /* one rank combines, the others dispatch; and handles in another order */
    const weft_status mixed = rank == 0 ? weft_ep_combine(k.handle[0], &k.m, NULL)
                                        : weft_ep_dispatch(k.handle[1], &k.d, NULL);
    LAW(mixed == WEFT_ERR_MISMATCH);
    LAW(weft_ep_dispatch(k.handle[1], &k.d, NULL) == WEFT_OK);
    LAW(weft_ep_combine(k.handle[rank == 2], &k.m, NULL) == WEFT_ERR_MISMATCH);
    LAW(weft_ep_dispatch(k.handle[0], NULL, NULL) == WEFT_ERR_ARGUMENT);
    LAW(weft_ep_dispatch(k.handle[0], &k.d, &k) == WEFT_ERR_ARGUMENT);
    LAW(weft_ep_dispatch_send(k.handle[2], &k.d, NULL) == WEFT_OK);
    d = k.d;
    d.recv_x = NULL;
    LAW(weft_ep_dispatch_receive(k.handle[2], &d, NULL) == WEFT_ERR_ARGUMENT);
    LAW(weft_ep_dispatch_receive(k.handle[2], &k.d, NULL) == WEFT_OK);
    LAW(weft_ep_plan_destroy(k.plan) == WEFT_ERR_BUSY);
    weft_ep_handle_destroy(k.handle[0]);
    LAW(weft_ep_handle_create(k.plan, &k.handle[0]) == WEFT_OK);
  }
  LAW(weft_ep_dispatch(NULL, &k.d, NULL) == WEFT_ERR_ARGUMENT);
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  close_desk(&k);
  return WEFT_OK;
}

static void e6_none_and_too_many(void **state) {
  (void)state;
  ep_case c = ep_case_of(3, 20, 16, 6, 3);
  run(&c, refuse, 60000);
  c.tokens[1] = 0;
  run(&c, ep_everything, 60000);
  c.tokens[0] = c.tokens[2] = 0;
  run(&c, ep_everything, 60000);
}

/* E7 and E8: many tokens; widths that no list holds. */
static void e7_many_tokens(void **state) {
  (void)state;
  static const int64_t tokens[] = {512, 1024, 4096, 8192};
  for (int i = 0; i < 4; i++) {
    const ep_case c = ep_case_of(2, tokens[i], 8, 4, 2);
    run(&c, ep_everything, 60000);
  }
}

static void e8_odd_widths(void **state) {
  (void)state;
  static const int64_t widths[] = {2880, 7168, 8, 4104};
  for (int i = 0; i < 8; i++) {
    ep_case c = ep_case_of(2, 5, widths[i / 2], 4, 3);
    c.dtype = i % 2 ? WEFT_E4M3 : WEFT_BF16;
    run(&c, ep_everything, 60000);
  }
}

/* E9, masking off: an absent rank is named by all others, nothing hangs, and after a reset the team
 * is whole again. */
static weft_status absent(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  LAW(open_desk(&k, c, rank, comm, 0, 200) == WEFT_OK);
  if (rank == 1) {
    ranks_sleep_ms(300); /* late by 1.5 × timeout */
    LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_ERR_TIMEOUT);
  } else {
    LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_ERR_TIMEOUT);
    LAW(strstr(weft_last_error(), "rank 1") != NULL);
  }
  LAW(weft_comm_reset(comm) == WEFT_OK);
  LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_OK);
  if (ep_check_received(c, &k.info, rank, c->seed, c->seed, &k.got, why)) return WEFT_ERR_SYSTEM;
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  close_desk(&k);
  return WEFT_OK;
}

/* E9, masking on: after a round of all, rank 1 is late; the others mask it and go on without its
 * rows; it finds out, and comes back by a reset. */
static weft_status masked(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  int32_t mask[EP_RANKS];
  ep_case without = *c;
  without.tokens[1] = 0;
  LAW(open_desk(&k, c, rank, comm, 1, 300) == WEFT_OK);
  LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_OK);
  ep_fill_rows(c, &k.info, rank, &k.got, k.y, k.values);
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  if (rank == 1) {
    ranks_sleep_ms(450);
    LAW(weft_ep_combine(k.handle[0], &k.m, NULL) == WEFT_OK);
    LAW(weft_ep_mask_get(k.plan, mask, c->ranks) == WEFT_OK);
    for (int64_t r = 0; r < c->ranks; r++)
      LAW(mask[r] == (r != 1));
  } else {
    LAW(weft_ep_combine(k.handle[0], &k.m, NULL) == WEFT_OK);
    if (ep_check_combined(c, rank, c->seed, true, 1, k.out, NULL, why)) return WEFT_ERR_SYSTEM;
    LAW(weft_ep_mask_get(k.plan, mask, c->ranks) == WEFT_OK);
    for (int64_t r = 0; r < c->ranks; r++)
      LAW(mask[r] == (r == 1));
    weft_async_error error = WEFT_ASYNC_ERROR_INIT;
    LAW(weft_comm_async_error(comm, &error) == WEFT_OK);
    LAW(error.status == WEFT_ERR_TIMEOUT && error.peer == 1);
    for (int i = 0; i < 4; i++) /* no wait for it any more */
      LAW(weft_ep_dispatch(k.handle[1], &k.d, NULL) == WEFT_OK);
    if (ep_check_received(&without, &k.info, rank, c->seed, c->seed, &k.got, why))
      return WEFT_ERR_SYSTEM;
  }
  LAW(weft_comm_reset(comm) == WEFT_OK);
  LAW(weft_ep_mask_get(k.plan, mask, c->ranks) == WEFT_OK);
  for (int64_t r = 0; r < c->ranks; r++)
    LAW(mask[r] == 0);
  LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_OK);
  if (ep_check_received(c, &k.info, rank, c->seed, c->seed, &k.got, why)) return WEFT_ERR_SYSTEM;
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  close_desk(&k);
  return WEFT_OK;
}

/* A rank that has destroyed its plan is named at once. */
static weft_status left_early(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  desk k;
  LAW(open_desk(&k, c, rank, comm, 0, 20000) == WEFT_OK);
  if (rank != 1) {
    LAW(weft_ep_dispatch(k.handle[0], &k.d, NULL) == WEFT_ERR_PEER);
    LAW(strstr(weft_last_error(), "rank 1") != NULL);
    LAW(weft_comm_reset(comm) == WEFT_OK);
    close_desk(&k);
    return WEFT_OK;
  }
  close_desk(&k);
  LAW(weft_comm_reset(comm) == WEFT_OK);
  return WEFT_OK;
}

static void e9_absent_ranks(void **state) {
  (void)state;
  const ep_case c = ep_case_of(4, 16, 16, 8, 3);
  run(&c, absent, 20000);
  run(&c, masked, 20000);
  run(&c, left_early, 20000);
}

/* E4M3 itself: every code there and back, and the nearest code of many numbers. */
static void codes(void **state) {
  (void)state;
  for (int code = 0; code < 256; code++) {
    const float value = weft__e4m3_to_f32((uint8_t)code);
    if ((code & 0x7f) == 0x7f) {
      assert_true(isnan(value));
      continue;
    }
    assert_true((double)value == ep_e4m3(code));
    assert_int_equal(weft__e4m3_from_f32(value), code);
  }
  assert_int_equal(weft__e4m3_from_f32(NAN), 0x7f);
  assert_int_equal(weft__e4m3_from_f32(INFINITY), 0x7e);
  assert_int_equal(weft__e4m3_from_f32(-1e30f), 0xfe);
  for (int i = 0; i < 65536; i++) {
    const float value = ep_bf16((uint16_t)i);
    if (!isfinite(value)) continue;
    assert_int_equal(weft__e4m3_from_f32(value), ep_e4m3_nearest((double)value));
  }
  for (int code = 0; code < 126; code++) { /* around every midpoint */
    const float middle = (float)((ep_e4m3(code) + ep_e4m3(code + 1)) / 2);
    const float near[3] = {middle, nextafterf(middle, 0), nextafterf(middle, 500)};
    for (int i = 0; i < 3; i++)
      assert_int_equal(weft__e4m3_from_f32(near[i]), ep_e4m3_nearest((double)near[i]));
  }
}

/* E10: blocks of zeros, of ±448, with one infinity, with one NaN, tiny and huge ones; a short one.
 */
static void e10_blocks(void **state) {
  (void)state;
  enum { H = 7 * 128 + 8, BLOCKS = 8 };
  static uint16_t x[H];
  static uint8_t recv[H];
  uint32_t scales[BLOCKS];
  int64_t expert = 0;
  for (int i = 0; i < H; i++)
    x[i] = ep_to_bf16(i % 2 ? -3.5f : 448.0f / (float)(1 + i % 128));
  for (int i = 0; i < 128; i++) {
    x[i] = 0;
    x[128 + i] = ep_to_bf16(i % 2 ? -448.0f : 448.0f);
    x[512 + i] = ep_to_bf16(1e-7f * (float)i);
    x[640 + i] = ep_to_bf16(3e38f / (float)(1 + i));
  }
  x[2 * 128 + 77] = 0xff80;
  x[3 * 128 + 5] = 0x7fc1;
  for (int format = 0; format < 3; format++) {
    weft_ep_config config = WEFT_EP_CONFIG_INIT;
    weft_ep_dispatch_args d = WEFT_EP_DISPATCH_ARGS_INIT;
    weft_ep_plan *plan = NULL;
    weft_ep_handle *handle = NULL;
    config.tokens_max = 1;
    config.hidden = H;
    config.experts = 1;
    config.dtype = WEFT_E4M3;
    config.scale_format = format;
    assert_int_equal(weft_ep_plan_create(NULL, &config, &plan), WEFT_OK);
    assert_int_equal(weft_ep_handle_create(plan, &handle), WEFT_OK);
    d.tokens = 1;
    d.x = x;
    d.topk_idx = &expert;
    d.recv_x = recv;
    d.recv_scales = scales;
    assert_int_equal(weft_ep_dispatch(handle, &d, NULL), WEFT_OK);
    for (int b = 0; b < BLOCKS; b++) {
      char why[200];
      const uint32_t scale = format == 2 ? scales[b / 4] >> (8 * (b % 4)) & 0xff : scales[b];
      if (ep_law_block(format, x + b * 128, b == 7 ? 8 : 128, recv + b * 128, scale, why))
        fail_msg("format %d, block %d: %s", format, b, why);
      for (int i = 0; i < (b == 7 ? 8 : 128); i++)
        assert_int_equal((recv[b * 128 + i] & 0x7f) == 0x7f, b == 2 || b == 3);
    }
    weft_ep_handle_destroy(handle);
    weft_ep_plan_destroy(plan);
  }
}

/* A call writes all over a workspace that the caller gave: its arrays must lie elsewhere. */
static void inside_workspace(void **state) {
  (void)state;
  enum { H = 8 };
  uint16_t x[H] = {0}, recv[H];
  int64_t expert = 0;
  weft_ep_config config = WEFT_EP_CONFIG_INIT;
  weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  weft_ep_dispatch_args d = WEFT_EP_DISPATCH_ARGS_INIT;
  weft_ep_plan *plan = NULL;
  weft_ep_handle *handle = NULL;
  config.tokens_max = 1;
  config.hidden = H;
  config.experts = 1;
  assert_int_equal(weft_ep_plan_query(&config, &machine, &info), WEFT_OK);
  const size_t bytes = ((size_t)info.local_bytes + 127) / 64 * 64;
  config.workspace = aligned_alloc(64, bytes);
  config.workspace_bytes = (int64_t)bytes;
  assert_non_null(config.workspace);
  assert_int_equal(weft_ep_plan_create(NULL, &config, &plan), WEFT_OK);
  assert_int_equal(weft_ep_handle_create(plan, &handle), WEFT_OK);
  d.tokens = 1;
  d.x = x;
  d.topk_idx = &expert;
  d.recv_x = config.workspace;
  assert_int_equal(weft_ep_dispatch(handle, &d, NULL), WEFT_ERR_ARGUMENT);
  assert_non_null(strstr(weft_last_error(), "args.recv_x"));
  assert_non_null(strstr(weft_last_error(), "config.workspace"));
  d.recv_x = recv;
  assert_int_equal(weft_ep_dispatch(handle, &d, NULL), WEFT_OK);
  weft_ep_handle_destroy(handle);
  weft_ep_plan_destroy(plan);
  free(config.workspace);
}

/* ep and a ce team in one process, on the same world. */
static weft_status with_ce(const ep_case *c, int64_t rank, weft_comm *comm, char why[256]) {
  float x[16], w[8], nll[4];
  int64_t target[4] = {0, 1, 2, 3};
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = NULL;
  for (int i = 0; i < 16; i++)
    x[i] = 0;
  for (int i = 0; i < 8; i++)
    w[i] = 1;
  config.max_tokens = 4;
  config.hidden = 4;
  config.vocab = 2 * c->ranks;
  config.vocab_start = 2 * rank;
  config.vocab_local = 2;
  config.threads = 1;
  args.tokens = 4;
  args.x = x;
  args.w = w;
  args.target = target;
  args.nll = nll;
  LAW(weft_ce_plan_create(comm, &config, &plan) == WEFT_OK);
  for (int i = 0; i < 4; i++) {
    const weft_status status = ep_everything(c, rank, comm, why);
    if (status != WEFT_OK) return status;
    LAW(weft_ce_forward(plan, &args, NULL) == WEFT_OK);
    LAW(fabsf(nll[0] - logf((float)(2 * c->ranks))) < 1e-5f);
  }
  LAW(weft_comm_barrier(comm) == WEFT_OK);
  weft_ce_plan_destroy(plan);
  return WEFT_OK;
}

static void beside_ce(void **state) {
  (void)state;
  const ep_case c = ep_case_of(4, 10, 16, 8, 2);
  run(&c, with_ce, 60000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(codes),
      cmocka_unit_test(e10_blocks),
      cmocka_unit_test(e3_two_in_flight),
      cmocka_unit_test(e5_configs_differ),
      cmocka_unit_test(e6_none_and_too_many),
      cmocka_unit_test(e9_absent_ranks),
      cmocka_unit_test(inside_workspace),
      cmocka_unit_test(beside_ce),
      cmocka_unit_test(e8_odd_widths),
      cmocka_unit_test(e7_many_tokens),
      cmocka_unit_test(e1_combines_repeat),
  };
  return cmocka_run_group_tests_name("ep cases", tests, NULL, NULL);
}
