/* ep: plans, handles, dispatch and combine, whole or in halves. A handle keeps what its plan
 * expects of arrays, and how many tokens its last dispatch had. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "handles.h"
#include "tensors.h"
#include "text.h"

typedef struct ep_facts {
  weft_ep_config config; /* without pointers */
  weft_ep_plan_info info;
  dl_device device;
  int64_t ranks;
  int64_t tokens; /* of a handle: those of its routing */
} ep_facts;

enum { WHOLE = 0, SEND = 1, RECEIVE = 2 };

/* The config in the order of its fields; `workspace` is a tensor of bytes, or None. */
static weft_ep_config take_config(ffi_call *call, const dl_tensor **workspace) {
  weft_ep_config c = WEFT_EP_CONFIG_INIT;
  c.tokens_max = take_int(call, "tokens_max");
  c.hidden = take_int(call, "hidden");
  c.experts = take_int(call, "experts");
  c.topk = take_int(call, "topk");
  c.timeout_ms = take_int(call, "timeout_ms");
  *workspace = take_tensor(call, "workspace");
  c.dtype = take_int32(call, "dtype");
  c.layout = take_int32(call, "layout");
  c.alignment = take_int32(call, "alignment");
  c.scale_format = take_int32(call, "scale_format");
  c.scale_order = take_int32(call, "scale_order");
  c.topk_dtype = take_int32(call, "topk_dtype");
  c.masking = take_int32(call, "masking");
  c.zero_copy = take_int32(call, "zero_copy");
  c.max_sms = take_int32(call, "max_sms");
  c.device = take_int32(call, "device");
  return c;
}

static void give_plan_info(ffi_call *call, ffi_any *result, const weft_ep_plan_info *i) {
  char words[600], text[1200];
  snprintf(text, sizeof text,
           "{\"local_bytes\":%" PRId64 ",\"symmetric_bytes\":%" PRId64 ",\"handle_bytes\":%" PRId64
           ",\"experts_local\":%" PRId64 ",\"rows_max\":%" PRId64 ",\"scale_stride\":%" PRId64
           ",\"recv_bytes\":%" PRId64 ",\"scale_bytes\":%" PRId64 ",\"buffer_bytes\":%" PRId64
           ",\"text\":%s}",
           i->local_bytes, i->symmetric_bytes, i->handle_bytes, i->experts_local, i->rows_max,
           i->scale_stride, i->recv_bytes, i->scale_bytes, i->buffer_bytes,
           json_string(words, sizeof words, i->text));
  give_text(call, result, text);
}

/* ---- Plans ---- */

static weft_status destroy_plan(void *plan) {
  return weft_ep_plan_destroy((weft_ep_plan *)plan);
}

EXPORT(ep_plan_create) { /* team or None, GPU's number (0 on CPUs), config… → plan */
  CALL("ep_plan_create");
  const weft_ep_plan_info empty = WEFT_EP_PLAN_INFO_INIT;
  weft_comm *comm = (weft_comm *)take_handle(call, "team", COMM);
  weft_comm_info team = WEFT_COMM_INFO_INIT;
  const dl_tensor *workspace = NULL;
  weft_ep_plan *plan = NULL;
  weft_status status = WEFT_OK;
  const int32_t gpu = take_int32(call, "gpu");
  ep_facts facts = {take_config(call, &workspace), empty, {DL_CPU, 0}, 1, 0};
  if (comm != NULL && !call->failed) status = weft_comm_info_get(comm, &team);
  if (comm != NULL && facts.config.device == WEFT_DEVICE_AUTO) facts.config.device = team.device;
  if (facts.config.device == WEFT_DEVICE_CUDA)
    facts.device = (dl_device){DL_CUDA, comm != NULL ? team.gpu : gpu};
  if (comm != NULL) facts.ranks = team.ranks;
  weft_ep_config config = facts.config;
  if (workspace != NULL) {
    const tensor_rule rule = {"workspace", 1, {-1, 0, 0}, WEFT_E4M3, facts.device};
    config.workspace = tensor_address(call, workspace, &rule, NULL);
    config.workspace_bytes = tensor_rows(call, workspace, "workspace", 1);
  }
  ep_facts *kept = taken(call) && status == WEFT_OK ? (ep_facts *)malloc(sizeof *kept) : NULL;
  if (kept == NULL && status == WEFT_OK)
    raise_error(call, "MemoryError", "ep_plan_create: no memory for a plan's config");
  if (kept == NULL) return finish(call, status);
  status = weft_ep_plan_create(comm, &config, &plan);
  if (status == WEFT_OK) status = weft_ep_plan_info_get(plan, &facts.info);
  *kept = facts;
  const int64_t number = status == WEFT_OK ? handle_keep(call, EP_PLAN, plan, kept, free) : 0;
  if (number == 0) {
    weft_ep_plan_destroy(plan);
    free(kept);
  }
  give_int(result, number);
  return finish(call, status);
}

EXPORT(ep_plan_query) { /* arch, ranks, hosts, peer_memory, config… → JSON */
  CALL("ep_plan_query");
  weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  const dl_tensor *workspace = NULL;
  weft_status status = WEFT_OK;
  char arch[32];
  const ffi_bytes name = take_text(call, "arch");
  snprintf(arch, sizeof arch, "%.*s", (int)(name.size < 31 ? name.size : 31), name.data);
  machine.arch = arch;
  machine.ranks = take_int(call, "ranks");
  machine.hosts = take_int(call, "hosts");
  machine.peer_memory = take_int32(call, "peer_memory");
  const weft_ep_config config = take_config(call, &workspace);
  if (workspace != NULL)
    raise_error(call, "ValueError", "ep_plan_query: workspace is a tensor, expected None");
  if (taken(call)) status = weft_ep_plan_query(&config, &machine, &info);
  if (!call->failed && status == WEFT_OK) give_plan_info(call, result, &info);
  return finish(call, status);
}

EXPORT(ep_plan_info) { /* plan → JSON */
  CALL("ep_plan_info");
  const weft_ep_plan *plan = (const weft_ep_plan *)take_handle(call, "plan", EP_PLAN);
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_ep_plan_info_get(plan, &info);
  if (!call->failed && status == WEFT_OK) give_plan_info(call, result, &info);
  return finish(call, status);
}

EXPORT(ep_plan_destroy) {
  CALL("ep_plan_destroy");
  take_handle(call, "plan", EP_PLAN);
  return finish(call, taken(call) ? handle_destroy(call, destroy_plan) : WEFT_OK);
}

EXPORT(ep_combine_buffer) { /* plan → address of rows_max rows of bf16, alive as long as the plan */
  CALL("ep_combine_buffer");
  weft_ep_plan *plan = (weft_ep_plan *)take_handle(call, "plan", EP_PLAN);
  void *buffer = NULL;
  const weft_status status = taken(call) ? weft_ep_combine_buffer(plan, &buffer) : WEFT_OK;
  give_int(result, (int64_t)(intptr_t)buffer);
  return finish(call, status);
}

EXPORT(ep_mask) { /* plan, an int32 array of the team's ranks that gets 1 for those left out */
  CALL("ep_mask");
  weft_ep_plan *plan = (weft_ep_plan *)take_handle(call, "plan", EP_PLAN);
  const ep_facts *f = (const ep_facts *)handle_extra(call);
  const dl_tensor *out = take_tensor(call, "mask");
  const tensor_rule rule = {"mask", 1, {f != NULL ? f->ranks : 0, 0, 0}, WEFT_I32, {DL_CPU, 0}};
  int32_t *mask = (int32_t *)tensor_address(call, out, &rule, NULL);
  return finish(call, taken(call) ? weft_ep_mask_get(plan, mask, rule.shape[0]) : WEFT_OK);
}

EXPORT(ep_stats) { /* plan, reset, expert_rows: an int64 array of the local experts or None →
                      [dispatches, combines] */
  CALL("ep_stats");
  weft_ep_plan *plan = (weft_ep_plan *)take_handle(call, "plan", EP_PLAN);
  const ep_facts *f = (const ep_facts *)handle_extra(call);
  const int32_t reset = take_int32(call, "reset");
  const tensor_rule rule = {
      "expert_rows", 1, {f != NULL ? f->info.experts_local : 0, 0, 0}, WEFT_I64, {DL_CPU, 0}};
  weft_ep_stats stats = WEFT_EP_STATS_INIT;
  weft_status status = WEFT_OK;
  char text[80];
  stats.expert_rows =
      (int64_t *)tensor_address(call, take_tensor(call, "expert_rows"), &rule, NULL);
  if (taken(call)) status = weft_ep_stats_get(plan, &stats, reset);
  snprintf(text, sizeof text, "[%" PRId64 ",%" PRId64 "]", stats.dispatches, stats.combines);
  if (!call->failed && status == WEFT_OK) give_text(call, result, text);
  return finish(call, status);
}

/* ---- Handles ---- */

static weft_status destroy_handle(void *handle) {
  return weft_ep_handle_destroy((weft_ep_handle *)handle);
}

EXPORT(ep_handle_create) { /* plan → handle */
  CALL("ep_handle_create");
  weft_ep_plan *plan = (weft_ep_plan *)take_handle(call, "plan", EP_PLAN);
  const ep_facts *of_plan = (const ep_facts *)handle_extra(call);
  weft_ep_handle *handle = NULL;
  ep_facts *kept = taken(call) && of_plan != NULL ? (ep_facts *)malloc(sizeof *kept) : NULL;
  if (kept == NULL) {
    raise_error(call, "MemoryError", "ep_handle_create: plan is None, or there is no memory");
    return finish(call, WEFT_OK);
  }
  *kept = *of_plan;
  const weft_status status = weft_ep_handle_create(plan, &handle);
  const int64_t number = status == WEFT_OK ? handle_keep(call, EP_HANDLE, handle, kept, free) : 0;
  if (number == 0) {
    weft_ep_handle_destroy(handle);
    free(kept);
  }
  give_int(result, number);
  return finish(call, status);
}

EXPORT(ep_handle_destroy) {
  CALL("ep_handle_destroy");
  take_handle(call, "handle", EP_HANDLE);
  return finish(call, taken(call) ? handle_destroy(call, destroy_handle) : WEFT_OK);
}

/* ---- Dispatch and combine ---- */

/* An array that must be contiguous. */
static void *array(ffi_call *call, const char *what, int32_t ndim, int64_t a, int64_t b,
                   int32_t dtype, dl_device device) {
  const tensor_rule rule = {what, ndim, {a, b, 0}, dtype, device};
  return tensor_address(call, take_tensor(call, what), &rule, NULL);
}

static int32_t take_part(ffi_call *call) {
  const int32_t part = take_int32(call, "part");
  if (part < WHOLE || part > RECEIVE)
    raise_error(call, "ValueError", "%s: part is %d, expected 0 (whole), 1 (send) or 2 (receive)",
                call->name, part);
  return part;
}

static weft_ep_handle *take_ep_handle(ffi_call *call, ep_facts **facts) {
  weft_ep_handle *handle = (weft_ep_handle *)take_handle(call, "handle", EP_HANDLE);
  *facts = (ep_facts *)handle_extra(call);
  if (handle == NULL || *facts == NULL)
    raise_error(call, "TypeError", "%s: handle is None, expected an ep handle", call->name);
  return handle;
}

/* handle, part, x, topk_idx, topk_weights, reuse, recv_x, recv_scales (flat words), recv_weights,
 * counts, offsets, source_counts */
EXPORT(ep_dispatch) {
  CALL("ep_dispatch");
  weft_ep_dispatch_args args = WEFT_EP_DISPATCH_ARGS_INIT;
  ep_facts *f = NULL;
  weft_ep_handle *handle = take_ep_handle(call, &f);
  if (f == NULL) return finish(call, WEFT_OK);
  const int32_t part = take_part(call);
  const int64_t k = f->config.topk, l = f->info.experts_local;
  const dl_tensor *x = take_tensor(call, "x");
  if (part != RECEIVE) args.tokens = tensor_rows(call, x, "x", 2);
  const tensor_rule rows = {"x", 2, {args.tokens, f->config.hidden, 0}, WEFT_BF16, f->device};
  if (part != RECEIVE) args.x = tensor_address(call, x, &rows, &args.x_stride);
  args.topk_idx = array(call, "topk_idx", 2, args.tokens, k, f->config.topk_dtype, f->device);
  args.topk_weights = (float *)array(call, "topk_weights", 2, args.tokens, k, WEFT_F32, f->device);
  args.reuse = take_int32(call, "reuse");
  args.recv_x =
      array(call, "recv_x", 2, f->info.rows_max, f->config.hidden, f->config.dtype, f->device);
  args.recv_scales = array(call, "recv_scales", 1, f->info.scale_bytes / 4, 0, 0, f->device);
  args.recv_weights =
      (float *)array(call, "recv_weights", 1, f->info.rows_max, 0, WEFT_F32, f->device);
  args.counts = (int64_t *)array(call, "counts", 1, l, 0, WEFT_I64, f->device);
  args.offsets = (int64_t *)array(call, "offsets", 1, l + 1, 0, WEFT_I64, f->device);
  args.source_counts = (int64_t *)array(call, "source_counts", 2, l, f->ranks, WEFT_I64, f->device);
  const bool good = taken(call);
  /* What was refused here is refused there too, so that the team's other ranks do not wait. */
  const weft_ep_dispatch_args *shown = good ? &args : NULL;
  void *stream = current_stream(f->device);
  const weft_status status = part == SEND      ? weft_ep_dispatch_send(handle, shown, stream)
                             : part == RECEIVE ? weft_ep_dispatch_receive(handle, shown, stream)
                                               : weft_ep_dispatch(handle, shown, stream);
  if (status == WEFT_OK && part != RECEIVE) f->tokens = args.tokens;
  return finish(call, status);
}

/* handle, part, y, row_gradient, topk_weights, out, weight_gradient */
EXPORT(ep_combine) {
  CALL("ep_combine");
  weft_ep_combine_args args = WEFT_EP_COMBINE_ARGS_INIT;
  ep_facts *f = NULL;
  weft_ep_handle *handle = take_ep_handle(call, &f);
  if (f == NULL) return finish(call, WEFT_OK);
  const int32_t part = take_part(call);
  const int64_t k = f->config.topk;
  args.y = array(call, "y", 2, f->info.rows_max, f->config.hidden, WEFT_BF16, f->device);
  args.row_gradient =
      (float *)array(call, "row_gradient", 1, f->info.rows_max, 0, WEFT_F32, f->device);
  args.topk_weights = (float *)array(call, "topk_weights", 2, f->tokens, k, WEFT_F32, f->device);
  const tensor_rule rows = {"out", 2, {f->tokens, f->config.hidden, 0}, WEFT_BF16, f->device};
  args.out = tensor_address(call, take_tensor(call, "out"), &rows, &args.out_stride);
  args.weight_gradient =
      (float *)array(call, "weight_gradient", 2, f->tokens, k, WEFT_F32, f->device);
  const weft_ep_combine_args *shown = taken(call) ? &args : NULL;
  void *stream = current_stream(f->device);
  const weft_status status = part == SEND      ? weft_ep_combine_send(handle, shown, stream)
                             : part == RECEIVE ? weft_ep_combine_receive(handle, shown, stream)
                                               : weft_ep_combine(handle, shown, stream);
  return finish(call, status);
}
