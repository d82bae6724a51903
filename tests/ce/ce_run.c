/* A case on its world: plan, two runs, and what must hold for one rank alone. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ce_case.h"
#include "exchange.h"
#include "support/ranks.h"

typedef struct run {
  const ce_case *c;
  const ce_problem *p;
  ce_output *outputs;
  exchange *external;
} run;

static weft_status fail(ce_output *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (out->failure[0] == '\0') vsnprintf(out->failure, sizeof out->failure, format, arguments);
  va_end(arguments);
  return WEFT_ERR_SYSTEM;
}

static weft_ce_config config_of(const ce_case *c, int64_t rank) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = c->tokens + c->spare_tokens;
  config.hidden = c->hidden;
  config.vocab = c->vocab;
  ce_range(c, rank, &config.vocab_start, &config.vocab_local);
  config.ignore_index = c->ignore_index;
  config.softcap = (float)c->cap;
  config.wants = (c->entropy || (c->upstream & UP_ENTROPY) ? WEFT_CE_ENTROPY : 0) |
                 (c->no_dx ? 0 : WEFT_CE_DX) | (c->no_dw ? 0 : WEFT_CE_DW) |
                 (c->step ? WEFT_CE_STEP : 0);
  config.dtype = c->dtype;
  config.target_dtype = c->target_dtype;
  config.dx_dtype = c->dx_dtype;
  config.dw_dtype = c->dw_dtype;
  config.dx_mode = c->dx_mode;
  config.threads = c->threads;
  return config;
}

static int64_t dx_rows(const ce_case *c, int64_t rank) {
  const int64_t shard = (c->tokens + c->ranks - 1) / c->ranks;
  if (c->dx_mode != WEFT_DX_REDUCE_SCATTER) return c->tokens;
  const int64_t rest = c->tokens - rank * shard;
  return rest < 0 ? 0 : rest < shard ? rest : shard;
}

static ce_output output_new(const ce_case *c, int64_t rank) {
  int64_t start, local;
  ce_range(c, rank, &start, &local);
  const int dx_dtype = c->dx_dtype != WEFT_DTYPE_DEFAULT ? c->dx_dtype : c->dtype;
  const int dw_dtype = c->dw_dtype != WEFT_DTYPE_DEFAULT ? c->dw_dtype : c->dtype;
  const int64_t h = c->hidden, stride = h + c->stride_extra, m = c->tokens;
  ce_output o = {.nll = matrix_new(WEFT_F32, 1, m, 0, c->offset),
                 .lse = matrix_new(WEFT_F32, 1, m, 0, c->offset),
                 .entropy = matrix_new(WEFT_F32, 1, m, 0, c->offset),
                 .stats = matrix_new(WEFT_F32, m, 4, 0, c->offset),
                 .dx = matrix_new(dx_dtype, dx_rows(c, rank), h, stride, c->offset),
                 .dw = matrix_new(dw_dtype, local, h, stride, c->offset)};
  return o;
}

static void output_free(ce_output *o) {
  matrix *const all[] = {&o->nll, &o->lse, &o->entropy, &o->stats, &o->dx, &o->dw};
  for (int i = 0; i < 6; i++)
    matrix_free(all[i]);
}

static const char *touched(const ce_output *o) {
  const matrix *const all[] = {&o->nll, &o->lse, &o->entropy, &o->stats, &o->dx, &o->dw};
  static const char *const names[] = {"nll", "lse", "entropy", "stats", "dx", "dw"};
  for (int i = 0; i < 6; i++)
    if (!matrix_intact(all[i])) return names[i];
  return NULL;
}

static const char *differs(const ce_output *a, const ce_output *b) {
  if (!matrix_equal(&a->nll, &b->nll)) return "nll";
  if (!matrix_equal(&a->lse, &b->lse)) return "lse";
  if (!matrix_equal(&a->entropy, &b->entropy)) return "entropy";
  if (!matrix_equal(&a->stats, &b->stats)) return "stats";
  if (!matrix_equal(&a->dx, &b->dx)) return "dx";
  if (!matrix_equal(&a->dw, &b->dw)) return "dw";
  return NULL;
}

/* One forward and backward, or one step, into `out`. */
static weft_status call_once(const run *r, int64_t rank, weft_ce_plan *plan, ce_output *out) {
  const ce_case *c = r->c;
  const ce_problem *p = r->p;
  int64_t start, local;
  float temperature = (float)c->temperature;
  ce_range(c, rank, &start, &local);
  if (c->accumulate)
    for (int64_t j = 0; j < local; j++)
      for (int64_t k = 0; k < c->hidden; k++)
        matrix_set(&out->dw, j, k, matrix_get(&p->old_dw, start + j, k));
  weft_ce_args a = WEFT_CE_ARGS_INIT;
  a.tokens = c->tokens;
  a.x = matrix_row(&p->x, 0);
  a.w = local > 0 ? matrix_row(&p->w, start) : NULL;
  a.x_stride = a.w_stride = a.dx_stride = a.dw_stride =
      c->stride_extra > 0 ? c->hidden + c->stride_extra : 0;
  a.target = matrix_row(&p->target, 0);
  a.temperature = c->temperature_by_pointer ? -1.0f : temperature;
  a.temperature_ptr = c->temperature_by_pointer ? &temperature : NULL;
  a.dw_accumulate = c->accumulate;
  a.g_nll = c->upstream & UP_NLL ? matrix_row(&p->up[0], 0) : NULL;
  a.g_entropy = c->upstream & UP_ENTROPY ? matrix_row(&p->up[1], 0) : NULL;
  a.g_lse = c->upstream & UP_LSE ? matrix_row(&p->up[2], 0) : NULL;
  a.stats = matrix_row(&out->stats, 0);
  a.nll = matrix_row(&out->nll, 0);
  a.lse = matrix_row(&out->lse, 0);
  if (c->entropy || (c->upstream & UP_ENTROPY)) a.entropy = matrix_row(&out->entropy, 0);
  a.dx = matrix_row(&out->dx, 0);
  a.dw = matrix_row(&out->dw, 0);
  if (c->step) return weft_ce_step(plan, &a, NULL);
  const weft_status status = weft_ce_forward(plan, &a, NULL);
  if (status != WEFT_OK && status != WEFT_ERR_TARGET) return status;
  if (c->no_dx && c->no_dw) return status;
  return weft_ce_backward(plan, &a, NULL);
}

static weft_status twice(const run *r, int64_t rank, weft_ce_plan *plan) {
  ce_output *const out = &r->outputs[rank];
  out->status = call_once(r, rank, plan, out);
  if (out->status != WEFT_OK && out->status != WEFT_ERR_TARGET)
    return fail(out, "call: %s: %s", weft_status_string(out->status), weft_last_error());
  const char *what = touched(out);
  if (what != NULL) return fail(out, "memory around %s was written", what);
  ce_output again = output_new(r->c, rank);
  const weft_status status = call_once(r, rank, plan, &again);
  if (status != out->status)
    fail(out, "second call: %s: %s", weft_status_string(status), weft_last_error());
  what = differs(out, &again);
  if (what != NULL) fail(out, "a second call gives other bits of %s", what);
  output_free(&again);
  return out->failure[0] != '\0' ? WEFT_ERR_SYSTEM : WEFT_OK;
}

/* Sizes for the case's budget and memory, by the query. */
static weft_status fit(const run *r, int64_t rank, weft_ce_config *config, matrix *workspace) {
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  ce_output *const out = &r->outputs[rank];
  machine.ranks = r->c->ranks;
  if (weft_ce_plan_query(config, &machine, &info) != WEFT_OK)
    return fail(out, "plan_query: %s", weft_last_error());
  if (r->c->budget == BUDGET_LEAST) config->workspace_budget = info.least_bytes;
  if (r->c->budget == BUDGET_LARGE) config->workspace_budget = (int64_t)1 << 32;
  if (!r->c->own_workspace) return WEFT_OK;
  if (weft_ce_plan_query(config, &machine, &info) != WEFT_OK)
    return fail(out, "plan_query: %s", weft_last_error());
  *workspace = matrix_new(WEFT_F32, 1, info.local_bytes / 4, 0, 0);
  config->workspace = workspace->data;
  config->workspace_bytes = info.local_bytes;
  return WEFT_OK;
}

static weft_status run_rank(int64_t rank, weft_comm *comm, void *user) {
  const run *r = (const run *)user;
  ce_output *const out = &r->outputs[rank];
  weft_ce_plan *plan = NULL;
  matrix workspace = {0};
  weft_comm *world = NULL;
  weft_ce_config config = config_of(r->c, rank);
  if (r->external != NULL) {
    if (exchange_world(r->external, rank, 1, &world) != WEFT_OK)
      return fail(out, "comm_create_external: %s", weft_last_error());
    comm = world;
  }
  *out = output_new(r->c, rank);
  weft_status status = fit(r, rank, &config, &workspace);
  if (weft_ce_plan_create(comm, &config, &plan) != WEFT_OK)
    status = fail(out, "plan_create: %s", weft_last_error());
  if (status == WEFT_OK) {
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
    weft_ce_plan_info_get(plan, &info);
    out->info = info;
    if (config.workspace_budget > 0 &&
        info.local_bytes + info.symmetric_bytes > config.workspace_budget)
      status = fail(out, "the plan takes %lld + %lld bytes of a budget of %lld",
                    (long long)info.local_bytes, (long long)info.symmetric_bytes,
                    (long long)config.workspace_budget);
    const weft_status called = twice(r, rank, plan);
    if (status == WEFT_OK) status = called;
  }
  weft_ce_plan_destroy(plan);
  if (workspace.memory != NULL && !matrix_intact(&workspace))
    status = fail(out, "memory around the caller's workspace was written");
  matrix_free(&workspace);
  if (world != NULL) weft_comm_destroy(world);
  return status;
}

bool ce_run_rank(const ce_case *c, const ce_problem *p, int64_t rank, weft_comm *comm,
                 ce_output *out, char *message, int size) {
  ce_output *outputs = calloc((size_t)c->ranks, sizeof *outputs);
  run r = {c, p, outputs, NULL};
  const bool ok = run_rank(rank, comm, &r) == WEFT_OK;
  if (!ok) snprintf(message, (size_t)size, "rank %lld: %s", (long long)rank, outputs[rank].failure);
  *out = outputs[rank];
  free(outputs);
  return ok;
}

const char *ce_output_differs(const ce_output *a, const ce_output *b) {
  return differs(a, b);
}

void ce_output_free(ce_output *output) {
  output_free(output);
}

bool ce_run(const ce_case *c, const ce_problem *p, ce_output *outputs, char *message, int size) {
  run r = {c, p, outputs, NULL};
  ranks_result *results = calloc((size_t)c->ranks, sizeof *results);
  weft_status status = WEFT_OK;
  memset(outputs, 0, (size_t)c->ranks * sizeof *outputs);
  if (c->world == WORLD_INPROC) {
    status = ranks_run_simple(c->ranks, 1, 60000, run_rank, &r, results);
  } else {
    if (c->world == WORLD_EXTERNAL) r.external = exchange_new(c->ranks);
    status = ranks_run_bare(c->ranks, run_rank, &r, results);
    exchange_free(r.external);
  }
  bool ok = status == WEFT_OK;
  if (!ok) snprintf(message, (size_t)size, "world: %s", weft_status_string(status));
  for (int64_t i = 0; i < c->ranks && ok; i++) {
    if (results[i].status == WEFT_OK) continue;
    snprintf(message, (size_t)size, "rank %lld: %s", (long long)i, outputs[i].failure);
    ok = false;
  }
  free(results);
  return ok;
}

void ce_outputs_free(const ce_case *c, ce_output *outputs) {
  for (int64_t i = 0; i < c->ranks; i++)
    output_free(&outputs[i]);
}
