/* Dispatch and combine on a GPU by the public API, ranks of one process on GPU 0, issued by one
 * thread, against the laws by which tests/ep holds the CPU backend: layouts, formats, rank counts,
 * both halves, the cases from the field.
 *
 *   test_ep [--quick] */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ep/ep_law.h"
#include "ep_issue.h"
#include "graph.h"

static const struct cuda_driver *driver;
static int passed, failed, quick;

static void check(int good, const char *what, const char *reason) {
  passed += good;
  failed += !good;
  if (!good) printf("FAILED %s: %s\n", what, reason);
  fflush(stdout);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Dispatch, combine with and without weights, dispatch again: whole, or in halves with two in
 * flight. */
static int everything(const ep_case *c, int halves) {
  static struct desk d;
  weft_ep_config config = ep_config(c);
  const int sets = halves ? 2 : 1;
  int good = 1;
  snprintf(why, sizeof why, "a call failed");
  desk_open(&d, c, sets, world_of(c->ranks), &config);
  for (int i = 0; i < sets && good && !halves; i++)
    good = issue(&d, DISPATCH, i, 0) == WEFT_OK;
  if (halves) {
    good = issue(&d, SEND_DISPATCH, 0, 0) == WEFT_OK && issue(&d, SEND_DISPATCH, 1, 0) == WEFT_OK &&
           issue(&d, RECEIVE_DISPATCH, 1, 0) == WEFT_OK &&
           issue(&d, RECEIVE_DISPATCH, 0, 0) == WEFT_OK;
  }
  desk_wait(&d);
  for (int i = 0; i < sets && good; i++)
    good = team_error(&d) == WEFT_OK && received(&d, i, 0);
  if (good)
    for (int i = 0; i < sets && !(c->zero_copy && i > 0); i++)
      experts(&d, i);
  if (good && halves && !c->zero_copy)
    good = issue(&d, SEND_COMBINE, 0, 1) == WEFT_OK && issue(&d, SEND_COMBINE, 1, 1) == WEFT_OK &&
           issue(&d, RECEIVE_COMBINE, 1, 1) == WEFT_OK &&
           issue(&d, RECEIVE_COMBINE, 0, 1) == WEFT_OK;
  else if (good)
    good = issue(&d, COMBINE, 0, 1) == WEFT_OK;
  desk_wait(&d);
  for (int i = 0; i < sets && good && !(c->zero_copy && i > 0); i++)
    good = team_error(&d) == WEFT_OK && combined(&d, i, 1);
  if (good) {
    poison(&d, 0);
    good = issue(&d, COMBINE, 0, 0) == WEFT_OK && issue(&d, DISPATCH, 0, 1) == WEFT_OK;
    desk_wait(&d);
  }
  if (good) good = team_error(&d) == WEFT_OK && combined(&d, 0, 0) && received(&d, 0, 1);
  desk_close(&d);
  return good;
}

static void run_case(const ep_case *c, int halves, const char *name) {
  char text[200];
  snprintf(text, sizeof text,
           "%s: %lld ranks, n %lld, H %lld, E %lld, K %lld, dtype %d, layout %d, "
           "scales %d %d, halves %d",
           name, (long long)c->ranks, (long long)c->tokens_max, (long long)c->hidden,
           (long long)c->experts, (long long)c->topk, c->dtype, c->layout, c->scale_format,
           c->scale_order, halves);
  check(everything(c, halves), text, why);
}

/* Every value of each choice, with every rank count, not every product. */
static void matrix(void) {
  static const int64_t ranks[] = {2, 4, 1, 3, 8, 16}, widths[] = {264, 8, 1160, 2880, 4104, 7168};
  const int rounds = quick ? 18 : 60;
  for (int i = 0; i < rounds; i++) {
    const int64_t r = ranks[i % 6], k = (int64_t[]){3, 1, 8, 2, 32, 5, 4}[i % 7];
    ep_case c = ep_case_of(r, 5 + i % 4 * 9, widths[i % 5 == 4 ? 5 : (i / 6 + i) % 5],
                           r * (1 + i % 3) * 2, k);
    for (int64_t t = 0; t < r; t++)
      c.tokens[t] = (t * 7 + i) % (c.tokens_max + 1);
    c.seed = 100 + (uint64_t)i;
    c.dtype = i / 2 % 2 ? WEFT_E4M3 : WEFT_BF16;
    if (c.dtype == WEFT_E4M3) c.scale_format = i % 3, c.scale_order = i / 3 % 2;
    c.layout = i / 4 % 2 ? WEFT_EP_PACKED : WEFT_EP_SLAB;
    if (c.layout == WEFT_EP_PACKED) c.alignment = i % 3 ? 128 : 1;
    c.topk_dtype = i % 2 ? WEFT_I32 : WEFT_I64;
    c.zero_copy = i / 5 % 2;
    run_case(&c, i / 6 % 2, "matrix");
  }
}

/* E1: combines repeated: the right bits each time. */
static void e1_repeat(void) {
  static const int64_t tokens[] = {128, 256, 257, 512, 1024};
  for (int i = 0; i < (quick ? 2 : 5); i++)
    for (int64_t topk = 2; topk <= 8; topk += 6) {
      static struct desk d;
      ep_case c = ep_case_of(4, tokens[i], 264, 16, topk);
      const weft_ep_config config = ep_config(&c);
      const int rounds = quick ? 256 : 1024;
      int good = 1;
      c.ones = true;
      desk_open(&d, &c, 1, world_of(4), &config);
      good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
      desk_wait(&d);
      experts(&d, 0);
      const size_t bytes = (size_t)(c.tokens_max * c.hidden) * 2;
      unsigned char *first = (unsigned char *)malloc(bytes), *now = (unsigned char *)malloc(bytes);
      for (int n = 0; n < rounds && good; n++) {
        if (n % 64 == 0) poison(&d, 0);
        good = issue(&d, COMBINE, 0, 1) == WEFT_OK;
        if (n % 16 != 15) continue;
        desk_wait(&d);
        for (int64_t r = 0; r < 4 && good; r++) {
          if (n == 15) good = !desk_check_combined(&d, r, 0, 1, -1, why);
          gpu_download(now, d.rank[r].set[0].out, bytes);
          if (n == 15 && r == 0) memcpy(first, now, bytes);
          if (r == 0) good = good && memcmp(first, now, bytes) == 0;
        }
      }
      good = good && team_error(&d) == WEFT_OK;
      check(good, "E1 combine repeated", why);
      free(first);
      free(now);
      desk_close(&d);
    }
}

/* E3: a third operation in flight is refused by the host; the two are right (matrix, in halves). */
static void e3_third(void) {
  static struct desk d;
  const ep_case c = ep_case_of(3, 40, 264, 6, 3);
  const weft_ep_config config = ep_config(&c);
  desk_open(&d, &c, 3, world_of(3), &config);
  int good = issue(&d, SEND_DISPATCH, 0, 0) == WEFT_OK && issue(&d, SEND_DISPATCH, 1, 0) == WEFT_OK;
  for (int64_t r = 0; r < 3; r++)
    good = good && issue_rank(&d, r, SEND_DISPATCH, 2, 0) == WEFT_ERR_BUSY;
  good = good && issue(&d, RECEIVE_DISPATCH, 0, 0) == WEFT_OK &&
         issue(&d, SEND_DISPATCH, 2, 0) == WEFT_OK &&
         issue(&d, RECEIVE_DISPATCH, 1, 0) == WEFT_OK &&
         issue(&d, RECEIVE_DISPATCH, 2, 0) == WEFT_OK;
  desk_wait(&d);
  for (int i = 0; i < 3 && good; i++)
    good = team_error(&d) == WEFT_OK && received(&d, i, 0);
  weft_ep_stats stats = WEFT_EP_STATS_INIT;
  int64_t rows[8];
  stats.expert_rows = rows;
  good = good && weft_ep_stats_get(d.rank[1].plan, &stats, 1) == WEFT_OK && stats.dispatches == 3 &&
         rows[0] == d.rank[1].set[0].got.counts[0] + d.rank[1].set[1].got.counts[0] +
                        d.rank[1].set[2].got.counts[0];
  check(good, "E3 a third is refused", why);
  desk_close(&d);
}

/* E4: operations of one plan from two streams: the plan keeps them in order. */
static void e4_streams(int64_t ranks) {
  static struct desk d;
  const ep_case c = ep_case_of(ranks, 200, 264, ranks * 4, 4);
  const weft_ep_config config = ep_config(&c);
  cuda_stream stream[2][EP_RANKS];
  int good = 1;
  desk_open(&d, &c, 2, world_of(ranks), &config);
  good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
  desk_wait(&d);
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  experts(&d, 0);
  for (int64_t r = 0; r < ranks; r++)
    for (int i = 0; i < 2; i++)
      gpu_require(driver->cuStreamCreate(&stream[i][r], GPU_NON_BLOCKING), "cuStreamCreate");
  for (int n = 0; n < 200 && good; n++)
    for (int64_t r = 0; r < ranks && good; r++) {
      const weft_ep_dispatch_args a = desk_dispatch_args(&d, r, 1, 0);
      const weft_ep_combine_args m = desk_combine_args(&d, r, 0, 1);
      good = weft_ep_dispatch(d.rank[r].set[1].handle, &a, stream[0][r]) == WEFT_OK &&
             weft_ep_combine(d.rank[r].set[0].handle, &m, stream[1][r]) == WEFT_OK;
    }
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  good = good && team_error(&d) == WEFT_OK && received(&d, 1, 0) && combined(&d, 0, 1);
  check(good, "E4 two streams", why);
  for (int64_t r = 0; r < ranks; r++)
    for (int i = 0; i < 2; i++)
      driver->cuStreamDestroy(stream[i][r]);
  desk_close(&d);
}

/* E5: configs that differ are an error on every rank. */
static void e5_differ(void) {
  weft_comm **comms = world_of(2);
  const ep_case c = ep_case_of(2, 8, 16, 8, 2);
  weft_ep_plan *plan[2] = {NULL, NULL};
  gpu_require_status(weft_group_start(), "group_start");
  for (int r = 0; r < 2; r++) {
    weft_ep_config config = ep_config(&c);
    config.tokens_max += r;
    weft_ep_plan_create(comms[r], &config, &plan[r]);
  }
  const weft_status status = weft_group_end();
  check(status == WEFT_ERR_MISMATCH && plan[0] == NULL && plan[1] == NULL, "E5 configs differ",
        weft_last_error());
}

static void recover(struct desk *d, const char *what) {
  desk_wait(d);
  gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    gpu_require_status(weft_comm_reset(d->rank[r].comm), "reset");
  gpu_require_status(weft_group_end(), what);
}

/* E6 and E9: indices that are none, more tokens than the plan's, ranks that make different calls or
 * none: reported, and after a reset all is well. */
static void e6_e9_faults(void) {
  static const char *const names[] = {"an index out of range", "an expert twice",
                                      "more tokens than tokens_max", "different calls",
                                      "a rank absent"};
  static const weft_status expected[] = {WEFT_ERR_ARGUMENT, WEFT_ERR_ARGUMENT, WEFT_ERR_PEER,
                                         WEFT_ERR_MISMATCH, WEFT_ERR_TIMEOUT};
  static struct desk d;
  ep_case c = ep_case_of(3, 20, 264, 6, 3);
  weft_ep_config config = ep_config(&c);
  config.timeout_ms = 300;
  desk_open(&d, &c, 1, world_of(3), &config);
  for (int i = 0; i < 5; i++) {
    int good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
    desk_wait(&d);
    good = good && team_error(&d) == WEFT_OK && received(&d, 0, 0);
    check(good, "before a fault", why);
    int64_t bad[2] = {i == 0 ? 6 : d.rank[1].set[0].in.topk[1],
                      i == 0 ? -2 : d.rank[1].set[0].in.topk[1]};
    if (i == 1) bad[0] = bad[1] = 2;
    if (i < 2) gpu_require(driver->cuMemcpyHtoD(d.rank[1].set[0].topk, bad, 16), "copy");
    for (int64_t r = 0; r < 3; r++) {
      weft_ep_dispatch_args a = desk_dispatch_args(&d, r, 0, 0);
      if (i == 4 && r == 1) continue;
      if (i == 2 && r == 1) a.tokens = 21;
      if (i == 3 && r == 1)
        issue_rank(&d, r, COMBINE, 0, 0);
      else
        weft_ep_dispatch(d.rank[r].set[0].handle, &a, NULL);
    }
    desk_wait(&d);
    weft_async_error error = WEFT_ASYNC_ERROR_INIT;
    weft_comm_async_error(d.rank[0].comm, &error);
    good = error.status == (int32_t)expected[i];
    if (i == 4) good = good && error.peer == 1;
    check(good, names[i], error.message);
    recover(&d, names[i]);
    gpu_require(driver->cuMemcpyHtoD(d.rank[1].set[0].topk, d.rank[1].set[0].in.topk_idx,
                                     (size_t)(c.tokens[1] * c.topk) * 8),
                "copy");
  }
  int good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
  desk_wait(&d);
  check(good && team_error(&d) == WEFT_OK && received(&d, 0, 0), "after the faults", why);
  desk_close(&d);
}

/* E9 with masking: the others go on without an absent rank, which comes back by a reset. */
static void e9_masked(void) {
  static struct desk d;
  const ep_case c = ep_case_of(4, 16, 264, 8, 3);
  weft_ep_config config = ep_config(&c);
  int32_t mask[4];
  config.timeout_ms = 200;
  config.masking = 1;
  desk_open(&d, &c, 1, world_of(4), &config);
  int good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
  desk_wait(&d);
  good = good && team_error(&d) == WEFT_OK && received(&d, 0, 0);
  experts(&d, 0);
  for (int64_t r = 0; r < 4 && good; r++)
    if (r != 1) good = issue_rank(&d, r, COMBINE, 0, 1) == WEFT_OK;
  desk_wait(&d);
  for (int64_t r = 0; r < 4 && good; r++) {
    if (r == 1) continue;
    good = !desk_check_combined(&d, r, 0, 1, 1, why) &&
           weft_ep_mask_get(d.rank[r].plan, mask, 4) == WEFT_OK;
    for (int p = 0; p < 4; p++)
      good = good && mask[p] == (p == 1);
  }
  check(good, "E9 masked: the others go on", why);
  /* the late one finds out, and leaves out those who masked it */
  good = issue_rank(&d, 1, COMBINE, 0, 1) == WEFT_OK;
  desk_wait(&d);
  good = good && weft_ep_mask_get(d.rank[1].plan, mask, 4) == WEFT_OK;
  for (int p = 0; p < 4; p++)
    good = good && mask[p] == (p != 1);
  check(good, "E9 masked: the late one finds out", why);
  const double began = seconds();
  for (int n = 0; n < 3; n++)
    for (int64_t r = 0; r < 4; r++)
      if (r != 1) good = good && issue_rank(&d, r, COMBINE, 0, 1) == WEFT_OK;
  desk_wait(&d);
  check(good && seconds() - began < 0.15, "E9 masked: no wait any more", "took its time");
  recover(&d, "E9 masked");
  good = weft_ep_mask_get(d.rank[0].plan, mask, 4) == WEFT_OK && mask[1] == 0 &&
         issue(&d, DISPATCH, 0, 0) == WEFT_OK && issue(&d, COMBINE, 0, 1) == WEFT_OK;
  desk_wait(&d);
  check(good && team_error(&d) == WEFT_OK && received(&d, 0, 0) && combined(&d, 0, 1),
        "E9 masked: after a reset", why);
  desk_close(&d);
}

/* E10: blocks of zeros, of 448, with an infinity, with a NaN, tiny and huge ones; a short one. */
static void e10_blocks(void) {
  enum { H = 7 * 128 + 8, BLOCKS = 8 };
  static uint16_t x[H];
  static uint8_t codes[H];
  uint32_t scales[BLOCKS];
  const int64_t expert = 0;
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
    weft_ep_dispatch_args a = WEFT_EP_DISPATCH_ARGS_INIT;
    weft_ep_plan *plan = NULL;
    weft_ep_handle *handle = NULL;
    config.device = WEFT_DEVICE_CUDA;
    config.tokens_max = 1;
    config.hidden = H;
    config.experts = 1;
    config.dtype = WEFT_E4M3;
    config.scale_format = format;
    gpu_require_status(weft_ep_plan_create(NULL, &config, &plan), "plan without a team");
    gpu_require_status(weft_ep_handle_create(plan, &handle), "handle");
    const cuda_address on_x = gpu_upload(x, sizeof x), on_topk = gpu_upload(&expert, 8);
    const cuda_address on_codes = gpu_allocate(H), on_scales = gpu_allocate(sizeof scales);
    a.tokens = 1;
    a.x = (void *)(uintptr_t)on_x;
    a.topk_idx = (void *)(uintptr_t)on_topk;
    a.recv_x = (void *)(uintptr_t)on_codes;
    a.recv_scales = (void *)(uintptr_t)on_scales;
    int good = weft_ep_dispatch(handle, &a, NULL) == WEFT_OK;
    gpu_require(driver->cuCtxSynchronize(), "synchronize");
    gpu_download(codes, on_codes, H);
    gpu_download(scales, on_scales, sizeof scales);
    for (int b = 0; b < BLOCKS && good; b++) {
      const int n = b == 7 ? 8 : 128;
      const uint32_t scale = format == 2 ? scales[b / 4] >> (8 * (b % 4)) & 0xff : scales[b];
      good = !ep_law_block(format, x + b * 128, n, codes + b * 128, scale, why);
      for (int i = 0; i < n; i++)
        good = good && ((codes[b * 128 + i] & 0x7f) == 0x7f) == (b == 2 || b == 3);
    }
    check(good, "E10 blocks", why);
    gpu_free(on_x);
    gpu_free(on_topk);
    gpu_free(on_codes);
    gpu_free(on_scales);
    weft_ep_handle_destroy(handle);
    weft_ep_plan_destroy(plan);
  }
}

/* E11: a plan made inside a capture is an error in words. */
static void e11_capture(void) {
  static struct desk d;
  const ep_case c = ep_case_of(1, 4, 16, 2, 1);
  weft_ep_config config = ep_config(&c);
  weft_ep_plan *plan = NULL;
  cuda_stream stream;
  config.device = WEFT_DEVICE_CUDA;
  gpu_require(driver->cuStreamCreate(&stream, GPU_NON_BLOCKING), "cuStreamCreate");
  gpu_graph_begin(stream);
  const weft_status status = weft_ep_plan_create(NULL, &config, &plan);
  check(status == WEFT_ERR_ARGUMENT && strstr(weft_last_error(), "captured") != NULL,
        "E11 a plan inside a capture", weft_last_error());
  gpu_graph_abandon(stream);
  driver->cuStreamDestroy(stream);
  (void)d;
}

/* E12: a graph captured once, replayed with changed inputs: dispatch and combine of each rank. */
static void e12_replay(int64_t ranks, int32_t dtype) {
  static struct desk d;
  ep_case c = ep_case_of(ranks, 64, 264, ranks * 4, 4);
  struct gpu_graph graph[EP_RANKS];
  cuda_stream stream[EP_RANKS];
  int good = 1;
  c.dtype = dtype;
  const weft_ep_config config = ep_config(&c);
  desk_open(&d, &c, 2, world_of(ranks), &config); /* the second set lends its inputs */
  for (int64_t r = 0; r < ranks && good; r++) {
    const weft_ep_dispatch_args a = desk_dispatch_args(&d, r, 0, 0);
    const weft_ep_combine_args m = desk_combine_args(&d, r, 0, 1);
    gpu_require(driver->cuStreamCreate(&stream[r], GPU_NON_BLOCKING), "cuStreamCreate");
    gpu_graph_begin(stream[r]);
    good = weft_ep_dispatch(d.rank[r].set[0].handle, &a, stream[r]) == WEFT_OK &&
           weft_ep_combine(d.rank[r].set[0].handle, &m, stream[r]) == WEFT_OK;
    if (!good) snprintf(why, sizeof why, "capture: %.200s", weft_last_error());
    graph[r] = gpu_graph_end(stream[r]);
  }
  for (int n = 0; n < 100 && good; n++) {
    const int from = n % 2;
    struct desk_set kept[EP_RANKS];
    for (int64_t r = 0; r < ranks; r++) {
      const struct desk_set *own = &d.rank[r].set[0], *lent = &d.rank[r].set[from];
      const size_t slots = (size_t)(c.tokens[r] * c.topk);
      kept[r] = *own;
      gpu_require(driver->cuMemcpyHtoD(own->topk, lent->in.topk_idx, slots * 8), "topk");
      gpu_require(driver->cuMemcpyHtoD(own->weights, lent->in.weights, slots * 4), "weights");
      gpu_require(driver->cuMemcpyHtoD(own->x, lent->in.x, (size_t)(c.tokens[r] * c.hidden) * 2),
                  "x");
    }
    for (int64_t r = 0; r < ranks; r++)
      gpu_graph_launch(graph[r], stream[r]);
    for (int64_t r = 0; r < ranks; r++)
      gpu_require(driver->cuStreamSynchronize(stream[r]), "replay");
    if (n % 2 == 0 && n < 4) {
      /* y of these inputs, for the combine of the next replay but one */
      good = received(&d, 0, 0);
      experts(&d, 0);
      if (n > 0) good = good && combined(&d, 0, 1);
    }
    if (n > 4 && n % 20 == 10) good = good && received(&d, 0, 0) && combined(&d, 0, 1);
    if (n > 4 && n % 20 == 11) {
      /* the other inputs: their rows in this set's arrays */
      const ep_case first = d.c[0];
      d.c[0] = d.c[1];
      good = good && received(&d, 0, 0);
      d.c[0] = first;
    }
    good = good && team_error(&d) == WEFT_OK;
    (void)kept;
  }
  /* eager calls between replays take the same slots */
  good = good && issue(&d, DISPATCH, 1, 0) == WEFT_OK;
  desk_wait(&d);
  good = good && received(&d, 1, 0);
  check(good, "E12 replayed graph", why);
  for (int64_t r = 0; r < ranks; r++) {
    gpu_graph_free(graph[r]);
    driver->cuStreamDestroy(stream[r]);
  }
  desk_close(&d);
}

/* A graph of a send half alone, replayed twice: the second finds its slot in use. */
static void replayed_third(void) {
  static struct desk d;
  const ep_case c = ep_case_of(2, 16, 264, 4, 2);
  const weft_ep_config config = ep_config(&c);
  struct gpu_graph graph[2];
  cuda_stream stream[2];
  int good = 1;
  desk_open(&d, &c, 1, world_of(2), &config);
  for (int64_t r = 0; r < 2; r++) {
    const weft_ep_dispatch_args a = desk_dispatch_args(&d, r, 0, 0);
    gpu_require(driver->cuStreamCreate(&stream[r], GPU_NON_BLOCKING), "cuStreamCreate");
    gpu_graph_begin(stream[r]);
    good = good && weft_ep_dispatch_send(d.rank[r].set[0].handle, &a, stream[r]) == WEFT_OK;
    graph[r] = gpu_graph_end(stream[r]);
  }
  for (int n = 0; n < 2; n++) {
    for (int64_t r = 0; r < 2; r++)
      gpu_graph_launch(graph[r], stream[r]);
    for (int64_t r = 0; r < 2; r++)
      gpu_require(driver->cuStreamSynchronize(stream[r]), "replay");
    const weft_status status = team_error(&d);
    check(good && status == (n == 0 ? WEFT_OK : WEFT_ERR_BUSY), "a replayed third operation", why);
  }
  recover(&d, "a replayed third operation");
  good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
  desk_wait(&d);
  check(good && team_error(&d) == WEFT_OK && received(&d, 0, 0), "after it", why);
  for (int64_t r = 0; r < 2; r++) {
    gpu_graph_free(graph[r]);
    driver->cuStreamDestroy(stream[r]);
  }
  desk_close(&d);
}

/* ep and a ce team on the same ranks: X is 0, so every nll is ln V. */
static void beside_ce(int64_t ranks) {
  enum { M = 64, H = 64, ROWS = 256 };
  static struct desk d;
  static float nll[M];
  const ep_case c = ep_case_of(ranks, 40, 264, ranks * 2, 2);
  const weft_ep_config config = ep_config(&c);
  weft_ce_plan *plan[EP_RANKS];
  cuda_address x, w, target, on_nll[EP_RANKS];
  int good = 1;
  desk_open(&d, &c, 1, world_of(ranks), &config);
  x = gpu_allocate(M * H * 2);
  w = gpu_allocate(ROWS * H * 2);
  target = gpu_allocate(M * 8);
  gpu_require(driver->cuMemsetD8Async(x, 0, M * H * 2, NULL), "x");
  gpu_require(driver->cuMemsetD8Async(w, 0x3c, ROWS * H * 2, NULL), "w");
  gpu_require(driver->cuMemsetD8Async(target, 0, M * 8, NULL), "target");
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < ranks; r++) {
    weft_ce_config ce = WEFT_CE_CONFIG_INIT;
    ce.max_tokens = M;
    ce.hidden = H;
    ce.vocab = ROWS * ranks;
    ce.vocab_start = ROWS * r;
    ce.vocab_local = ROWS;
    ce.dtype = WEFT_BF16;
    gpu_require_status(weft_ce_plan_create(d.rank[r].comm, &ce, &plan[r]), "ce_plan_create");
    on_nll[r] = gpu_allocate(M * 4);
  }
  gpu_require_status(weft_group_end(), "group_end");
  for (int n = 0; n < 20 && good; n++) {
    good = issue(&d, DISPATCH, 0, 0) == WEFT_OK;
    for (int64_t r = 0; r < ranks && good; r++) {
      weft_ce_args a = WEFT_CE_ARGS_INIT;
      a.tokens = M;
      a.x = (void *)(uintptr_t)x;
      a.w = (void *)(uintptr_t)w;
      a.target = (void *)(uintptr_t)target;
      a.nll = (float *)(uintptr_t)on_nll[r];
      good = weft_ce_forward(plan[r], &a, NULL) == WEFT_OK;
    }
    desk_wait(&d);
    if (n == 0 && good) experts(&d, 0);
    good = good && issue(&d, COMBINE, 0, 1) == WEFT_OK;
  }
  if (!good) snprintf(why, sizeof why, "%.230s", weft_last_error());
  desk_wait(&d);
  good = good && team_error(&d) == WEFT_OK && received(&d, 0, 0) && combined(&d, 0, 1);
  for (int64_t r = 0; r < ranks; r++) {
    gpu_download(nll, on_nll[r], M * 4);
    for (int i = 0; i < M; i++)
      good = good && fabsf(nll[i] - logf((float)(ROWS * ranks))) < 1e-4f;
    gpu_free(on_nll[r]);
    gpu_require_status(weft_ce_plan_destroy(plan[r]), "ce_plan_destroy");
  }
  gpu_free(x);
  gpu_free(w);
  gpu_free(target);
  check(good, "ep beside ce", why);
  desk_close(&d);
}

/* E7: many tokens. */
static void e7_many(void) {
  static const int64_t tokens[] = {512, 1024, 4096, 8192};
  for (int i = 0; i < (quick ? 2 : 4); i++) {
    ep_case c = ep_case_of(2, tokens[i], 264, 4, 2);
    run_case(&c, 0, "E7");
    c.dtype = WEFT_E4M3;
    run_case(&c, 1, "E7");
  }
}

int main(int count, char **arguments) {
  struct cuda_device_info info;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  quick = count > 1 && !strcmp(arguments[1], "--quick");
  driver = gpu_open(&info);
  const double began = seconds();
#define STEP(call)                                                                                 \
  do {                                                                                             \
    const double from = seconds();                                                                 \
    const int before = failed;                                                                     \
    call;                                                                                          \
    printf("%-28s %s %6.2f s\n", #call, failed == before ? "ok" : "FAILED", seconds() - from);     \
    fflush(stdout);                                                                                \
  } while (0)
  STEP(e10_blocks());
  STEP(matrix());
  STEP(e3_third());
  STEP(e4_streams(1));
  STEP(e4_streams(3));
  STEP(e12_replay(2, WEFT_BF16));
  STEP(e12_replay(4, WEFT_E4M3));
  STEP(e6_e9_faults());
  STEP(e9_masked());
  STEP(replayed_third());
  STEP(e5_differ());
  STEP(e1_repeat());
  STEP(e7_many());
  STEP(beside_ce(2));
  STEP(beside_ce(4));
  STEP(e11_capture());
  printf("%d passed, %d failed, %.1f s\n", passed, failed, seconds() - began);
  return failed ? 1 : 0;
}
