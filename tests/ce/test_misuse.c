/* Wrong use of each public function of ce by one rank: a status, and a message with the argument
 * and its value. What a rank does to its team is in test_team_misuse.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "law.h"

static void expect(weft_status found, weft_status status, const char *name, const char *value) {
  if (found != status)
    fail_msg("status %s, expected %s; the message: %s", weft_status_string(found),
             weft_status_string(status), weft_last_error());
  if (strstr(weft_last_error(), name) == NULL || strstr(weft_last_error(), value) == NULL)
    fail_msg("the message \"%s\" lacks \"%s\" or \"%s\"", weft_last_error(), name, value);
}

/* ---- Configs ---- */

static weft_ce_config good_config(void) {
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  c.max_tokens = 8;
  c.hidden = 4;
  c.vocab = c.vocab_local = 10;
  c.wants = WEFT_CE_ENTROPY | WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  c.threads = 1;
  return c;
}

/* Creation and query refuse alike, and creation leaves a NULL plan. */
static void refused(const weft_ce_config *c, weft_status status, const char *name,
                    const char *value) {
  weft_ce_plan *plan = (weft_ce_plan *)&plan;
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  expect(weft_ce_plan_create(NULL, c, &plan), status, name, value);
  assert_null(plan);
  expect(weft_ce_plan_query(c, &machine, &info), status, name, value);
}

static void configs(void **state) {
  (void)state;
#define REFUSE(field, bad, status, value)                                                          \
  do {                                                                                             \
    weft_ce_config c = good_config();                                                              \
    c.field = bad;                                                                                 \
    refused(&c, status, #field, value);                                                            \
  } while (0)
  REFUSE(max_tokens, -1, WEFT_ERR_ARGUMENT, "-1");
  REFUSE(max_tokens, INT64_MAX, WEFT_ERR_ARGUMENT, "9223372036854775807");
  REFUSE(max_tokens, INT64_MIN, WEFT_ERR_ARGUMENT, "-9223372036854775808");
  REFUSE(hidden, 0, WEFT_ERR_ARGUMENT, " 0");
  REFUSE(hidden, -5, WEFT_ERR_ARGUMENT, "-5");
  REFUSE(hidden, INT64_MAX, WEFT_ERR_ARGUMENT, "9223372036854775807");
  REFUSE(vocab, 0, WEFT_ERR_ARGUMENT, " 0");
  REFUSE(vocab, INT64_MAX, WEFT_ERR_ARGUMENT, "9223372036854775807");
  REFUSE(vocab_start, -3, WEFT_ERR_ARGUMENT, "-3");
  REFUSE(vocab_local, -7, WEFT_ERR_ARGUMENT, "-7");
  REFUSE(vocab_local, INT64_MAX, WEFT_ERR_ARGUMENT, "9223372036854775807");
  REFUSE(workspace_budget, -1, WEFT_ERR_ARGUMENT, "-1");
  REFUSE(workspace_budget, 1, WEFT_ERR_WORKSPACE, " 1 ");
  REFUSE(workspace_bytes, -1, WEFT_ERR_ARGUMENT, "-1");
  REFUSE(softcap, NAN, WEFT_ERR_ARGUMENT, "nan");
  REFUSE(softcap, -1.5f, WEFT_ERR_ARGUMENT, "-1.5");
  REFUSE(softcap, INFINITY, WEFT_ERR_ARGUMENT, "inf");
  REFUSE(softcap, 0x1p-129f, WEFT_ERR_ARGUMENT, "1.46937e-39");
  REFUSE(wants, 16, WEFT_ERR_ARGUMENT, "0x10");
  REFUSE(wants, -1, WEFT_ERR_ARGUMENT, "0xffffffff");
  REFUSE(dtype, 0, WEFT_ERR_ARGUMENT, " 0");
  REFUSE(dtype, WEFT_I32, WEFT_ERR_ARGUMENT, " 4");
  REFUSE(dtype, 77, WEFT_ERR_ARGUMENT, "77");
  REFUSE(w_dtype, WEFT_BF16, WEFT_ERR_UNSUPPORTED, " 2");
  REFUSE(target_dtype, WEFT_F32, WEFT_ERR_ARGUMENT, " 1");
  REFUSE(dx_dtype, WEFT_BF16, WEFT_ERR_ARGUMENT, " 2");
  REFUSE(dw_dtype, WEFT_I64, WEFT_ERR_ARGUMENT, " 5");
  REFUSE(dx_mode, 3, WEFT_ERR_ARGUMENT, " 3");
  REFUSE(dx_mode, -1, WEFT_ERR_ARGUMENT, "-1");
  REFUSE(deterministic, 2, WEFT_ERR_ARGUMENT, " 2");
  REFUSE(max_sms, -4, WEFT_ERR_ARGUMENT, "-4");
  REFUSE(threads, -2, WEFT_ERR_ARGUMENT, "-2");
  REFUSE(threads, 1025, WEFT_ERR_ARGUMENT, "1025");
  REFUSE(x_sharded, 1, WEFT_ERR_UNSUPPORTED, " 1");
  REFUSE(bias, 1, WEFT_ERR_UNSUPPORTED, " 1");
  REFUSE(device, 9, WEFT_ERR_ARGUMENT, " 9");
  REFUSE(size, 0, WEFT_ERR_ARGUMENT, " 0");
  REFUSE(size, sizeof(weft_ce_config) - 1, WEFT_ERR_ARGUMENT, "config");
  REFUSE(size, (size_t)1 << 40, WEFT_ERR_ARGUMENT, "1099511627776");
#undef REFUSE
  refused(NULL, WEFT_ERR_ARGUMENT, "config", "NULL");
}

static void workspaces(void **state) {
  (void)state;
  weft_ce_config c = good_config();
  static _Alignas(64) unsigned char memory[256];
  char text[32];
  c.workspace = memory + 4;
  c.workspace_bytes = 1 << 30;
  snprintf(text, sizeof text, "%p", c.workspace);
  refused(&c, WEFT_ERR_ARGUMENT, "workspace", text);
  c.workspace = memory;
  c.workspace_bytes = 256;
  refused(&c, WEFT_ERR_WORKSPACE, "workspace_bytes", " 256");
  c.workspace_bytes = 0;
  refused(&c, WEFT_ERR_WORKSPACE, "workspace_bytes", " 0");
}

static void ranges_of_one_rank(void **state) {
  (void)state;
  weft_ce_config c = good_config();
  weft_ce_plan *plan = NULL;
  c.vocab_start = 1;
  expect(weft_ce_plan_create(NULL, &c, &plan), WEFT_ERR_MISMATCH, "vocab_start", " 1");
  c.vocab_start = 0;
  c.vocab_local = 9;
  expect(weft_ce_plan_create(NULL, &c, &plan), WEFT_ERR_MISMATCH, "vocab", " 9");
}

/* A caller with a newer header: its longer structs are taken while the new fields are 0. */
static void newer_and_older_structs(void **state) {
  (void)state;
  struct {
    weft_ce_config c;
    unsigned char tail[40];
  } config = {good_config(), {0}};
  weft_ce_plan *plan = NULL;
  char text[32];
  config.c.size = sizeof config;
  assert_int_equal(weft_ce_plan_create(NULL, &config.c, &plan), WEFT_OK);
  struct {
    weft_ce_args a;
    unsigned char tail[40];
  } args = {WEFT_CE_ARGS_INIT, {0}};
  float x[4] = {0}, w[40] = {0}, nll[1];
  int64_t target[1] = {3};
  args.a.size = sizeof args;
  args.a.tokens = 1;
  args.a.x = x;
  args.a.w = w;
  args.a.target = target;
  args.a.nll = nll;
  assert_int_equal(weft_ce_forward(plan, &args.a, NULL), WEFT_OK);
  args.tail[8] = 1;
  snprintf(text, sizeof text, "offset %zu", sizeof(weft_ce_args) + 8);
  expect(weft_ce_forward(plan, &args.a, NULL), WEFT_ERR_UNSUPPORTED, "args", text);
  args.a.size = 8;
  expect(weft_ce_forward(plan, &args.a, NULL), WEFT_ERR_ARGUMENT, "args.size", " 8");
  config.tail[39] = 1;
  snprintf(text, sizeof text, "offset %zu", sizeof(weft_ce_config) + 39);
  refused(&config.c, WEFT_ERR_UNSUPPORTED, "config", text);

  /* an info that is longer than the library's keeps what is beyond */
  struct {
    weft_ce_plan_info i;
    unsigned char tail[16];
  } info = {WEFT_CE_PLAN_INFO_INIT, {0}};
  memset(info.tail, 7, sizeof info.tail);
  info.i.size = sizeof info;
  assert_int_equal(weft_ce_plan_info_get(plan, &info.i), WEFT_OK);
  assert_int_equal(info.i.size, sizeof info);
  assert_true(info.i.local_bytes > 0 && info.tail[0] == 7 && info.tail[15] == 7);
  info.i.size = 16;
  expect(weft_ce_plan_info_get(plan, &info.i), WEFT_ERR_ARGUMENT, "info.size", " 16");
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

static void machines(void **state) {
  (void)state;
  const weft_ce_config c = good_config();
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  weft_ce_machine m = WEFT_CE_MACHINE_INIT;
  expect(weft_ce_plan_query(&c, NULL, &info), WEFT_ERR_ARGUMENT, "machine", "NULL");
  expect(weft_ce_plan_query(&c, &m, NULL), WEFT_ERR_ARGUMENT, "info", "NULL");
  m.arch = NULL;
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "arch", "NULL");
  m.arch = "tpu";
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "arch", "tpu");
  m.arch = "cpu";
  m.ranks = 0;
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "ranks", " 0");
  m.ranks = 4;
  m.hosts = 3;
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "hosts", " 3");
  m.hosts = 1;
  m.units = -1;
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "units", "-1");
  m.units = 0;
  m.size = 3;
  expect(weft_ce_plan_query(&c, &m, &info), WEFT_ERR_ARGUMENT, "machine.size", " 3");
}

static void null_plans(void **state) {
  (void)state;
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  const weft_ce_config c = good_config();
  expect(weft_ce_forward(NULL, &a, NULL), WEFT_ERR_ARGUMENT, "forward", "NULL");
  expect(weft_ce_backward(NULL, &a, NULL), WEFT_ERR_ARGUMENT, "backward", "NULL");
  expect(weft_ce_step(NULL, &a, NULL), WEFT_ERR_ARGUMENT, "step", "NULL");
  expect(weft_ce_plan_info_get(NULL, &info), WEFT_ERR_ARGUMENT, "plan", "NULL");
  expect(weft_ce_plan_create(NULL, &c, NULL), WEFT_ERR_ARGUMENT, "plan", "NULL");
  assert_int_equal(weft_ce_plan_destroy(NULL), WEFT_OK);
}

/* ---- Arguments of a call ---- */

enum { M = 8, H = 4, V = 10 };

typedef struct data {
  float x[M * H], w[V * H], g[3][M], stats[M * 4], nll[M], lse[M], entropy[M], dx[M * H], dw[V * H];
  int64_t target[M + 1];
} data;

typedef weft_status (*call_fn)(weft_ce_plan *, const weft_ce_args *, void *);
static const call_fn calls[] = {weft_ce_forward, weft_ce_backward, weft_ce_step};
enum { FORWARD = 1, BACKWARD = 2, STEP = 4 };

static weft_ce_args good_args(data *d) {
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  a.tokens = M;
  a.x = d->x;
  a.w = d->w;
  a.target = d->target;
  a.g_nll = d->g[0];
  a.g_entropy = d->g[1];
  a.g_lse = d->g[2];
  a.stats = d->stats;
  a.nll = d->nll;
  a.lse = d->lse;
  a.entropy = d->entropy;
  a.dx = d->dx;
  a.dw = d->dw;
  return a;
}

/* All of `phases` refuse `a`; the plan works afterwards. */
static void refuse_call(weft_ce_plan *plan, data *d, const weft_ce_args *a, int phases,
                        const char *name, const char *value) {
  for (int k = 0; k < 3; k++) {
    if (!(phases & 1 << k)) continue;
    expect(calls[k](plan, a, NULL), WEFT_ERR_ARGUMENT, name, value);
    const weft_ce_args good = good_args(d);
    assert_int_equal(weft_ce_forward(plan, &good, NULL), WEFT_OK);
  }
}

/* No array may lie in the workspace that the caller gave; right before it is right. */
static void arrays_in_the_workspace(void **state) {
  (void)state;
  static data d;
  static _Alignas(64) unsigned char memory[1 << 22];
  const int all = FORWARD | BACKWARD | STEP, before = 64 * ((M * H * 4 + 63) / 64);
  weft_ce_config c = good_config();
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  weft_ce_plan *plan = NULL;
  char text[32];
  assert_int_equal(weft_ce_plan_query(&c, &machine, &info), WEFT_OK);
  assert_true(before + info.local_bytes <= (int64_t)sizeof memory);
  c.workspace = memory + before;
  c.workspace_bytes = info.local_bytes;
  assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
  float *inside = (float *)((unsigned char *)c.workspace + info.local_bytes) - 1;
  snprintf(text, sizeof text, "%p", (void *)inside);
  weft_ce_args a = good_args(&d);
  a.x = inside;
  refuse_call(plan, &d, &a, all, "args.x", text);
  a = good_args(&d);
  a.nll = inside;
  refuse_call(plan, &d, &a, FORWARD | STEP, "args.nll", text);
  a = good_args(&d);
  a.dx = (float *)c.workspace - M * H + 1;
  refuse_call(plan, &d, &a, BACKWARD | STEP, "args.dx", "config.workspace");
  a.dx = (float *)c.workspace - M * H;
  assert_int_equal(weft_ce_step(plan, &a, NULL), WEFT_OK);
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

static void arguments(void **state) {
  (void)state;
  static data d;
  const weft_ce_config c = good_config();
  weft_ce_plan *plan = NULL;
  char text[64];
  float zero = 0, nan = NAN, below = -2, tiny = 0x1p-129f;
  for (int i = 0; i < M * H; i++)
    d.x[i] = (float)i / 7;
  for (int i = 0; i < V * H; i++)
    d.w[i] = (float)(i % 5);
  assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
  const int all = FORWARD | BACKWARD | STEP, loss = FORWARD | STEP, gradients = BACKWARD | STEP;
#define REFUSE(field, bad, phases, name, value)                                                    \
  do {                                                                                             \
    weft_ce_args a = good_args(&d);                                                                \
    a.field = bad;                                                                                 \
    refuse_call(plan, &d, &a, phases, name, value);                                                \
  } while (0)
#define MISALIGN(field, type, phases)                                                              \
  do {                                                                                             \
    weft_ce_args a = good_args(&d);                                                                \
    a.field = (type *)((unsigned char *)a.field + 2);                                              \
    snprintf(text, sizeof text, "%p", (const void *)a.field);                                      \
    refuse_call(plan, &d, &a, phases, "args." #field, text);                                       \
  } while (0)
  REFUSE(tokens, -1, all, "tokens", "-1");
  REFUSE(tokens, M + 1, all, "tokens", " 9");
  REFUSE(tokens, INT64_MAX, all, "tokens", "9223372036854775807");
  REFUSE(x, NULL, all, "args.x", "NULL");
  REFUSE(w, NULL, all, "args.w", "NULL");
  REFUSE(target, NULL, all, "args.target", "NULL");
  REFUSE(stats, NULL, BACKWARD, "args.stats", "NULL");
  REFUSE(dx, NULL, gradients, "args.dx", "NULL");
  REFUSE(dw, NULL, gradients, "args.dw", "NULL");
  REFUSE(x_stride, H - 1, all, "x_stride", " 3");
  REFUSE(x_stride, -H, all, "x_stride", "-4");
  REFUSE(x_stride, INT64_MAX, all, "x_stride", "9223372036854775807");
  REFUSE(w_stride, 1, all, "w_stride", " 1");
  REFUSE(dx_stride, 2, gradients, "dx_stride", " 2");
  REFUSE(dw_stride, -1, gradients, "dw_stride", "-1");
  REFUSE(temperature, 0, all, "temperature", " 0");
  REFUSE(temperature, -1, all, "temperature", "-1");
  REFUSE(temperature, NAN, all, "temperature", "nan");
  REFUSE(temperature, INFINITY, all, "temperature", "inf");
  REFUSE(temperature_ptr, &zero, all, "temperature_ptr", " 0");
  REFUSE(temperature_ptr, &nan, all, "temperature_ptr", "nan");
  REFUSE(temperature_ptr, &below, all, "temperature_ptr", "-2");
  /* 1 / T would be infinite */
  REFUSE(temperature, 0x1p-129f, all, "temperature", "1.46937e-39");
  REFUSE(temperature_ptr, &tiny, all, "temperature_ptr", "1.46937e-39");
  REFUSE(dw_accumulate, 2, all, "dw_accumulate", " 2");
  REFUSE(size, 0, all, "args.size", " 0");
  MISALIGN(x, const void, all);
  MISALIGN(w, const void, all);
  MISALIGN(target, const void, all);
  MISALIGN(stats, float, all);
  MISALIGN(nll, float, loss);
  MISALIGN(lse, float, loss);
  MISALIGN(entropy, float, loss);
  MISALIGN(g_nll, const float, gradients);
  MISALIGN(g_entropy, const float, gradients);
  MISALIGN(g_lse, const float, gradients);
  MISALIGN(dx, void, gradients);
  MISALIGN(dw, void, gradients);
  REFUSE(temperature_ptr, (const float *)((unsigned char *)d.nll + 1), all, "temperature_ptr",
         "0x");
  /* overlaps name both arrays */
  REFUSE(nll, d.lse, loss, "args.nll", "args.lse");
  REFUSE(entropy, d.lse + 3, loss, "args.entropy", "args.lse");
  REFUSE(nll, d.x + 5, loss, "args.nll", "args.x");
  REFUSE(stats, d.w + V * H - 1, loss, "args.stats", "args.w");
  REFUSE(dx, d.x, gradients, "args.dx", "args.x");
  REFUSE(dw, d.w, gradients, "args.dw", "args.w");
  REFUSE(dw, d.dx + M * H - 1, gradients, "args.dw", "args.dx");
  REFUSE(dx, d.stats, gradients, "args.dx", "args.stats");
  REFUSE(dx, (float *)d.target, gradients, "args.dx", "args.target");
  REFUSE(nll, d.g[1], STEP, "args.nll", "args.g_entropy");
#undef REFUSE
#undef MISALIGN
  for (int k = 0; k < 3; k++) {
    const weft_ce_args a = good_args(&d);
    snprintf(text, sizeof text, "%p", (void *)&d);
    expect(calls[k](plan, NULL, NULL), WEFT_ERR_ARGUMENT, "args", "NULL");
    expect(calls[k](plan, &a, &d), WEFT_ERR_ARGUMENT, "stream", text);
    assert_int_equal(calls[k](plan, &a, NULL), WEFT_OK);
  }
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

/* Calls that the plan was not made for. */
static void wants(void **state) {
  (void)state;
  static data d;
  weft_ce_config c = good_config();
  weft_ce_plan *plan = NULL;
  weft_ce_args a = good_args(&d);
  c.wants = 0;
  assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
  expect(weft_ce_forward(plan, &a, NULL), WEFT_ERR_ARGUMENT, "entropy", "WEFT_CE_ENTROPY");
  a.entropy = NULL;
  a.g_entropy = NULL;
  assert_int_equal(weft_ce_forward(plan, &a, NULL), WEFT_OK);
  expect(weft_ce_step(plan, &a, NULL), WEFT_ERR_ARGUMENT, "wants", "0x0");
  expect(weft_ce_backward(plan, &a, NULL), WEFT_ERR_ARGUMENT, "wants", "0x0");
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

/* Strides of rows that nobody could hold: the end of the array is past what a pointer reaches. */
static void spans_past_all_memory(void **state) {
  (void)state;
  static data d;
  weft_ce_config c = good_config();
  weft_ce_plan *plan = NULL;
  c.hidden = 1;
  c.vocab_local = INT64_C(1) << 40; /* padding but for 10 rows */
  assert_int_equal(weft_ce_plan_create(NULL, &c, &plan), WEFT_OK);
  weft_ce_args a = good_args(&d);
  a.w_stride = INT32_MAX;
  expect(weft_ce_forward(plan, &a, NULL), WEFT_ERR_ARGUMENT, "w_stride", "2147483647");
  a.w_stride = 0;
  a.dw_stride = INT32_MAX;
  expect(weft_ce_backward(plan, &a, NULL), WEFT_ERR_ARGUMENT, "dw_stride", "2147483647");
  assert_int_equal(weft_ce_plan_destroy(plan), WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(configs),
      cmocka_unit_test(workspaces),
      cmocka_unit_test(ranges_of_one_rank),
      cmocka_unit_test(newer_and_older_structs),
      cmocka_unit_test(machines),
      cmocka_unit_test(null_plans),
      cmocka_unit_test(arguments),
      cmocka_unit_test(arrays_in_the_workspace),
      cmocka_unit_test(wants),
      cmocka_unit_test(spans_past_all_memory),
  };
  return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
