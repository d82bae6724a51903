/* ce: plans and calls. A plan's handle keeps the plan's config, against which the tensors of each
 * call are checked. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "handles.h"
#include "tensors.h"
#include "text.h"

typedef struct plan_facts {
  weft_ce_config config; /* without pointers */
  dl_device device;
  int64_t rank, ranks;
} plan_facts;

/* The config in the order of its fields, but those reserved; `workspace` is a tensor of bytes, or
 * None. */
static weft_ce_config take_config(ffi_call *call, const dl_tensor **workspace) {
  weft_ce_config c = WEFT_CE_CONFIG_INIT;
  c.max_tokens = take_int(call, "max_tokens");
  c.hidden = take_int(call, "hidden");
  c.vocab = take_int(call, "vocab");
  c.vocab_start = take_int(call, "vocab_start");
  c.vocab_local = take_int(call, "vocab_local");
  c.ignore_index = take_int(call, "ignore_index");
  c.workspace_budget = take_int(call, "workspace_budget");
  *workspace = take_tensor(call, "workspace");
  c.softcap = take_float(call, "softcap");
  c.wants = take_int32(call, "wants");
  c.dtype = take_int32(call, "dtype");
  c.target_dtype = take_int32(call, "target_dtype");
  c.dx_dtype = take_int32(call, "dx_dtype");
  c.dw_dtype = take_int32(call, "dw_dtype");
  c.dx_mode = take_int32(call, "dx_mode");
  c.deterministic = take_int32(call, "deterministic");
  c.max_sms = take_int32(call, "max_sms");
  c.threads = take_int32(call, "threads");
  c.device = take_int32(call, "device");
  return c;
}

static void give_plan_info(ffi_call *call, ffi_any *result, const weft_ce_plan_info *i) {
  char words[600], text[1400];
  snprintf(text, sizeof text,
           "{\"local_bytes\":%" PRId64 ",\"symmetric_bytes\":%" PRId64 ",\"least_bytes\":%" PRId64
           ",\"token_chunk\":%" PRId64 ",\"waves\":%" PRId64 ",\"wave_rows\":%" PRId64
           ",\"step_gemms\":%" PRId64 ",\"units\":%" PRId64
           ",\"forward_ms\":%.9g,\"backward_ms\":%.9g,\"step_ms\":%.9g,\"text\":%s}",
           i->local_bytes, i->symmetric_bytes, i->least_bytes, i->token_chunk, i->waves,
           i->wave_rows, i->step_gemms, i->units, i->forward_ms, i->backward_ms, i->step_ms,
           json_string(words, sizeof words, i->text));
  give_text(call, result, text);
}

static weft_status destroy(void *plan) {
  return weft_ce_plan_destroy((weft_ce_plan *)plan);
}

EXPORT(ce_plan_create) { /* team or None, GPU's number (0 on CPUs), config… → plan */
  CALL("ce_plan_create");
  weft_comm *comm = (weft_comm *)take_handle(call, "team", COMM);
  weft_comm_info team = WEFT_COMM_INFO_INIT;
  const dl_tensor *workspace = NULL;
  weft_ce_plan *plan = NULL;
  weft_status status = WEFT_OK;
  const int32_t gpu = take_int32(call, "gpu");
  plan_facts facts = {take_config(call, &workspace), {DL_CPU, 0}, 0, 1};
  if (comm != NULL && !call->failed) status = weft_comm_info_get(comm, &team);
  if (comm != NULL && facts.config.device == WEFT_DEVICE_AUTO) facts.config.device = team.device;
  if (facts.config.device == WEFT_DEVICE_CUDA)
    facts.device = (dl_device){DL_CUDA, comm != NULL ? team.gpu : gpu};
  if (comm != NULL) facts.rank = team.rank, facts.ranks = team.ranks;
  weft_ce_config config = facts.config;
  if (workspace != NULL) {
    const tensor_rule rule = {"workspace", 1, {-1, 0, 0}, WEFT_E4M3, facts.device};
    config.workspace = tensor_address(call, workspace, &rule, NULL);
    config.workspace_bytes = tensor_rows(call, workspace, "workspace", 1);
  }
  plan_facts *kept = taken(call) && status == WEFT_OK ? (plan_facts *)malloc(sizeof *kept) : NULL;
  if (kept == NULL && status == WEFT_OK)
    raise_error(call, "MemoryError", "ce_plan_create: no memory for a plan's config");
  if (kept == NULL) return finish(call, status);
  *kept = facts;
  status = weft_ce_plan_create(comm, &config, &plan);
  const int64_t number = status == WEFT_OK ? handle_keep(call, CE_PLAN, plan, kept, free) : 0;
  if (number == 0) {
    weft_ce_plan_destroy(plan);
    free(kept);
  }
  give_int(result, number);
  return finish(call, status);
}

EXPORT(ce_plan_query) { /* arch, units, ranks, hosts, config… → JSON */
  CALL("ce_plan_query");
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  const dl_tensor *workspace = NULL;
  weft_status status = WEFT_OK;
  char arch[32];
  const ffi_bytes name = take_text(call, "arch");
  snprintf(arch, sizeof arch, "%.*s", (int)(name.size < 31 ? name.size : 31), name.data);
  machine.arch = arch;
  machine.units = take_int(call, "units");
  machine.ranks = take_int(call, "ranks");
  machine.hosts = take_int(call, "hosts");
  const weft_ce_config config = take_config(call, &workspace);
  if (workspace != NULL)
    raise_error(call, "ValueError", "ce_plan_query: workspace is a tensor, expected None");
  if (taken(call)) status = weft_ce_plan_query(&config, &machine, &info);
  if (!call->failed && status == WEFT_OK) give_plan_info(call, result, &info);
  return finish(call, status);
}

EXPORT(ce_plan_info) { /* plan → JSON */
  CALL("ce_plan_info");
  const weft_ce_plan *plan = (const weft_ce_plan *)take_handle(call, "plan", CE_PLAN);
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_ce_plan_info_get(plan, &info);
  if (!call->failed && status == WEFT_OK) give_plan_info(call, result, &info);
  return finish(call, status);
}

EXPORT(ce_plan_async_error) { /* plan → JSON */
  CALL("ce_plan_async_error");
  weft_ce_plan *plan = (weft_ce_plan *)take_handle(call, "plan", CE_PLAN);
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_ce_plan_async_error(plan, &error);
  if (!call->failed && status == WEFT_OK) give_async_error(call, result, &error);
  return finish(call, status);
}

EXPORT(ce_plan_destroy) {
  CALL("ce_plan_destroy");
  take_handle(call, "plan", CE_PLAN);
  return finish(call, taken(call) ? handle_destroy(call, destroy) : WEFT_OK);
}

/* ---- Calls ---- */

static void *matrix(ffi_call *call, const dl_tensor *t, const char *what, int64_t rows,
                    int64_t columns, int32_t dtype, dl_device device, int64_t *stride) {
  const tensor_rule rule = {what, 2, {rows, columns, 0}, dtype, device};
  return tensor_address(call, t, &rule, stride);
}

/* x, w, target, temperature (a number, or a tensor of one f32), stats */
static void take_inputs(ffi_call *call, const plan_facts *f, weft_ce_args *args) {
  const weft_ce_config *c = &f->config;
  const dl_tensor *x = take_tensor(call, "x"), *w = take_tensor(call, "w"),
                  *target = take_tensor(call, "target");
  args->tokens = tensor_rows(call, x, "x", 2);
  args->x = matrix(call, x, "x", args->tokens, c->hidden, c->dtype, f->device, &args->x_stride);
  args->w = matrix(call, w, "w", c->vocab_local, c->hidden, c->dtype, f->device, &args->w_stride);
  const tensor_rule ids = {"target", 1, {args->tokens, 0, 0}, c->target_dtype, f->device};
  args->target = tensor_address(call, target, &ids, NULL);
  const int32_t type = call->next < call->count ? call->args[call->next].type : FFI_NONE;
  if (type == FFI_DL_TENSOR || type == FFI_TENSOR)
    args->temperature_ptr =
        tensor_floats(call, take_tensor(call, "temperature"), "temperature", 1, f->device);
  else
    args->temperature = take_float(call, "temperature");
  const tensor_rule stats = {"stats", 2, {args->tokens, 4, 0}, WEFT_F32, f->device};
  args->stats = (float *)tensor_address(call, take_tensor(call, "stats"), &stats, NULL);
}

/* A vector of a number a token. */
static float *take_vector(ffi_call *call, const plan_facts *f, const weft_ce_args *args,
                          const char *what) {
  return tensor_floats(call, take_tensor(call, what), what, args->tokens, f->device);
}

static void take_upstream(ffi_call *call, const plan_facts *f, weft_ce_args *args) {
  args->g_nll = take_vector(call, f, args, "g_nll");
  args->g_entropy = take_vector(call, f, args, "g_entropy");
  args->g_lse = take_vector(call, f, args, "g_lse");
}

static void take_losses(ffi_call *call, const plan_facts *f, weft_ce_args *args) {
  args->nll = take_vector(call, f, args, "nll");
  args->lse = take_vector(call, f, args, "lse");
  args->entropy = take_vector(call, f, args, "entropy");
}

/* dx, dw, dw_accumulate */
static void take_gradients(ffi_call *call, const plan_facts *f, weft_ce_args *args) {
  const weft_ce_config *c = &f->config;
  const int32_t dx_dtype = c->dx_dtype != WEFT_DTYPE_DEFAULT ? c->dx_dtype : c->dtype;
  const int32_t dw_dtype = c->dw_dtype != WEFT_DTYPE_DEFAULT ? c->dw_dtype : c->dtype;
  int64_t rows = args->tokens;
  if (c->dx_mode == WEFT_DX_REDUCE_SCATTER) {
    const int64_t shard = (rows + f->ranks - 1) / f->ranks, left = rows - f->rank * shard;
    rows = left < 0 ? 0 : left < shard ? left : shard;
  }
  const dl_tensor *dx = take_tensor(call, "dx"), *dw = take_tensor(call, "dw");
  args->dx = matrix(call, dx, "dx", rows, c->hidden, dx_dtype, f->device, &args->dx_stride);
  args->dw =
      matrix(call, dw, "dw", c->vocab_local, c->hidden, dw_dtype, f->device, &args->dw_stride);
  args->dw_accumulate = take_int32(call, "dw_accumulate");
}

enum { FORWARD = 1, BACKWARD = 2 };

static int run(ffi_call *call, int parts,
               weft_status (*act)(weft_ce_plan *, const weft_ce_args *, void *)) {
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  weft_ce_plan *plan = (weft_ce_plan *)take_handle(call, "plan", CE_PLAN);
  const plan_facts *facts = (const plan_facts *)handle_extra(call);
  if (plan == NULL || facts == NULL) {
    raise_error(call, "TypeError", "%s: plan is None, expected a ce plan", call->name);
    return finish(call, WEFT_OK);
  }
  take_inputs(call, facts, &args);
  if (parts & BACKWARD) take_upstream(call, facts, &args);
  if (parts & FORWARD) take_losses(call, facts, &args);
  if (parts & BACKWARD) take_gradients(call, facts, &args);
  if (taken(call)) return finish(call, act(plan, &args, current_stream(facts->device)));
  /* What was refused here is refused there too, so that the team's other ranks do not wait. */
  if (facts->ranks > 1) act(plan, NULL, NULL);
  return finish(call, WEFT_OK);
}

EXPORT(ce_forward) { /* plan, x, w, target, temperature, stats, nll, lse, entropy */
  CALL("ce_forward");
  return run(call, FORWARD, weft_ce_forward);
}

EXPORT(ce_backward) { /* plan, x, w, target, temperature, stats, g_nll, g_entropy, g_lse, dx, dw,
                         dw_accumulate */
  CALL("ce_backward");
  return run(call, BACKWARD, weft_ce_backward);
}

EXPORT(ce_step) { /* plan, x, w, target, temperature, stats, g_…, nll, lse, entropy, dx, dw,
                     dw_accumulate */
  CALL("ce_step");
  return run(call, FORWARD | BACKWARD, weft_ce_step);
}
