/* Plans, made collectively from configs that must agree or only computed, and handles. */
#include <inttypes.h>
#include <string.h>

#include "comm/group.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/structs.h"
#include "ep/check.h"

/* What must be the same on all ranks. */
typedef struct common_config {
  int64_t tokens_max, hidden, experts, topk;
  int32_t dtype, layout, alignment, scale_format, scale_order, topk_dtype, masking, zero_copy;
} common_config;

#define FIELD(name)                                                                                \
  { #name, offsetof(common_config, name), sizeof(((common_config *)0)->name) }
static const weft__field common_fields[] = {
    FIELD(tokens_max),  FIELD(hidden),     FIELD(experts),   FIELD(topk),
    FIELD(dtype),       FIELD(layout),     FIELD(alignment), FIELD(scale_format),
    FIELD(scale_order), FIELD(topk_dtype), FIELD(masking),   FIELD(zero_copy)};

static common_config common_of(const weft_ep_config *c) {
  const common_config r = {c->tokens_max,  c->hidden,     c->experts,   c->topk,
                           c->dtype,       c->layout,     c->alignment, c->scale_format,
                           c->scale_order, c->topk_dtype, c->masking,   c->zero_copy};
  return r;
}

static const weft__ep_backend *backend_of(const char *arch) {
  if (strcmp(arch, "sm90") == 0) return &weft__ep_sm90;
  return strcmp(arch, "cpu") == 0 ? &weft__ep_cpu : NULL;
}

static weft_status check_machine(weft_ep_machine *out, const weft_ep_machine *in) {
  const weft_ep_machine defaults = WEFT_EP_MACHINE_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "machine"));
  if (out->arch == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "machine.arch is NULL");
  if (strcmp(out->arch, "sm100") == 0)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "machine.arch is \"%s\": this version has no ep backend for it", out->arch);
  if (backend_of(out->arch) == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "machine.arch is \"%s\", expected \"cpu\", \"sm90\" or \"sm100\"", out->arch);
  if (out->ranks < 1 || out->ranks > WEFT_EP_EXPERTS_MAX || out->hosts < 1 ||
      out->ranks % out->hosts != 0 || out->peer_memory < 0 || out->peer_memory > 1 ||
      out->reserved != 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "machine: ranks %" PRId64 ", hosts %" PRId64 ", peer_memory %d, reserved %d: "
                      "expected ranks 1 to %d, hosts a divisor of ranks, peer_memory 0 or 1, "
                      "reserved 0",
                      out->ranks, out->hosts, out->peer_memory, out->reserved, WEFT_EP_EXPERTS_MAX);
  return WEFT_OK;
}

weft_status weft_ep_plan_query(const weft_ep_config *config, const weft_ep_machine *machine,
                               weft_ep_plan_info *info) {
  weft_ep_config checked;
  weft_ep_machine target;
  weft_ep_plan_info result = WEFT_EP_PLAN_INFO_INIT;
  WEFT__TRY(check_machine(&target, machine));
  WEFT__TRY(weft__ep_config_check(&checked, config, target.ranks));
  WEFT__TRY(backend_of(target.arch)->layout(&checked, &target, &result));
  return weft__struct_write(info, &result, sizeof result, sizeof result, "info");
}

/* The local half of creation: everything that this rank can refuse alone. */
static weft_status prepare(weft_ep_plan *plan, const weft_ep_config *config) {
  weft_ep_config *const c = &plan->config;
  weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  WEFT__TRY(weft__ep_config_check(c, config, plan->ranks));
  int32_t device = WEFT_DEVICE_AUTO;
  WEFT__TRY(weft__comm_device(plan->comm, c->device, &device));
  plan->backend = device == WEFT_DEVICE_CUDA ? &weft__ep_sm90 : &weft__ep_cpu;
  machine.arch = plan->backend->name;
  machine.ranks = plan->ranks;
  machine.peer_memory = plan->comm == NULL || plan->comm->transport->loads_peers;
  if (c->timeout_ms == 0 && plan->comm != NULL) c->timeout_ms = plan->comm->info.timeout_ms;
  WEFT__TRY(plan->backend->layout(c, &machine, &plan->info));
  if (c->workspace != NULL && c->workspace_bytes < plan->info.local_bytes)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_bytes is %" PRId64 ", expected at least %" PRId64,
                      c->workspace_bytes, plan->info.local_bytes);
  return WEFT_OK;
}

static weft_status reset_plan(void *plan_of) {
  weft_ep_plan *plan = (weft_ep_plan *)plan_of;
  return plan->backend->reset(plan);
}

static void ask_plan(void *plan_of) {
  weft_ep_plan *plan = (weft_ep_plan *)plan_of;
  plan->backend->ask(plan);
}

/* A creation that a group keeps. */
typedef struct create_call {
  weft_comm *comm;
  weft_ep_plan **out;
  weft_ep_config config;
  bool readable; /* else it is refused at the end, when the peers are there to be told */
} create_call;

static weft_status create_later(void *arguments) {
  const create_call *const c = (const create_call *)arguments;
  return weft_ep_plan_create(c->comm, c->readable ? &c->config : NULL, c->out);
}

static weft_status keep_create(weft_comm *comm, const weft_ep_config *config, weft_ep_plan **out) {
  create_call c = {comm, out, WEFT_EP_CONFIG_INIT, false};
  c.readable =
      weft__struct_read(&c.config, sizeof c.config, config, sizeof c.config, "config") == WEFT_OK;
  if (out != NULL) *out = NULL;
  return weft__group_keep(comm, create_later, &c, sizeof c);
}

weft_status weft_ep_plan_create(weft_comm *comm, const weft_ep_config *config, weft_ep_plan **out) {
  if (weft__group_open(comm)) return keep_create(comm, config, out);
  weft_ep_plan *plan = NULL;
  weft_status status = WEFT_OK;
  const weft_ep_plan_info fresh = WEFT_EP_PLAN_INFO_INIT;
  if (out != NULL) *out = NULL;
  status = out != NULL ? weft__alloc((void **)&plan, sizeof *plan, "plan")
                       : weft__fail(WEFT_ERR_ARGUMENT, "ep_plan_create: plan is NULL");
  if (status == WEFT_OK) {
    plan->comm = comm;
    plan->rank = comm != NULL ? comm->info.rank : 0;
    plan->ranks = comm != NULL ? comm->info.ranks : 1;
    plan->info = fresh;
    status = prepare(plan, config);
  }
  /* From here to the end every rank takes part in every step, whatever became of its own. */
  const common_config common = status == WEFT_OK ? common_of(&plan->config) : (common_config){0};
  WEFT__TRY_CLEANUP(weft__comm_agree(comm, status, &common, sizeof common, common_fields,
                                     sizeof common_fields / sizeof common_fields[0],
                                     "ep_plan_create"));
  status = plan->backend->create(plan);
  WEFT__TRY_CLEANUP(weft__comm_agree(comm, status, NULL, 0, NULL, 0, "ep_plan_create"));
  WEFT__TRY_CLEANUP(plan->backend->connect(plan));
  if (comm != NULL) {
    comm->plans++;
    plan->watch = (weft__watch){.user = plan};
    if (plan->backend->ask != NULL) plan->watch.ask = ask_plan;
    if (plan->backend->reset != NULL) plan->watch.reset = reset_plan;
    weft__comm_watch(comm, &plan->watch);
  }
  *out = plan;
  return WEFT_OK;
cleanup:
  if (plan != NULL && plan->state != NULL) plan->backend->destroy(plan);
  weft__free(plan);
  return status;
}

weft_status weft_ep_plan_info_get(const weft_ep_plan *plan, weft_ep_plan_info *info) {
  if (plan == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "ep_plan_info_get: plan is NULL");
  return weft__struct_write(info, &plan->info, sizeof plan->info, sizeof plan->info, "info");
}

weft_status weft_ep_plan_destroy(weft_ep_plan *plan) {
  if (plan == NULL) return WEFT_OK;
  if (atomic_load(&plan->busy) != 0)
    return weft__fail(WEFT_ERR_BUSY, "ep_plan_destroy: a call of this plan is running");
  if (plan->handles > 0)
    return weft__fail(WEFT_ERR_BUSY,
                      "ep_plan_destroy: %" PRId64 " handles of this plan are alive, expected 0",
                      plan->handles);
  if (plan->comm != NULL) weft__comm_unwatch(plan->comm, &plan->watch);
  plan->backend->destroy(plan);
  if (plan->comm != NULL) plan->comm->plans--;
  weft__free(plan);
  return WEFT_OK;
}

weft_status weft_ep_combine_buffer(weft_ep_plan *plan, void **buffer) {
  if (buffer != NULL) *buffer = NULL;
  if (plan == NULL || buffer == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "ep_combine_buffer: %s is NULL",
                      plan == NULL ? "plan" : "buffer");
  if (!plan->config.zero_copy)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "ep_combine_buffer: the plan has none, since its config.zero_copy is 0");
  *buffer = plan->backend->buffer(plan);
  return WEFT_OK;
}

weft_status weft_ep_mask_get(weft_ep_plan *plan, int32_t *mask, int64_t ranks) {
  if (plan == NULL || mask == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "ep_mask_get: %s is NULL", plan == NULL ? "plan" : "mask");
  if (ranks != plan->ranks)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "ep_mask_get: ranks is %" PRId64 ", expected the team's %" PRId64, ranks,
                      plan->ranks);
  plan->backend->mask(plan, mask);
  return WEFT_OK;
}

weft_status weft_ep_stats_get(weft_ep_plan *plan, weft_ep_stats *stats, int32_t reset) {
  weft_ep_stats found = WEFT_EP_STATS_INIT;
  if (plan == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "ep_stats_get: plan is NULL");
  WEFT__TRY(weft__struct_read(&found, sizeof found, stats, sizeof found, "stats"));
  if (atomic_exchange(&plan->busy, 1) != 0)
    return weft__fail(WEFT_ERR_BUSY, "ep_stats_get: a call of this plan is running");
  plan->backend->stats(plan, &found, reset != 0);
  atomic_store(&plan->busy, 0);
  return weft__struct_write(stats, &found, sizeof found, sizeof found, "stats");
}

/* ---- Handles ---- */

weft_status weft_ep_handle_create(weft_ep_plan *plan, weft_ep_handle **out) {
  weft_ep_handle *handle = NULL;
  if (out != NULL) *out = NULL;
  if (plan == NULL || out == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "ep_handle_create: %s is NULL",
                      plan == NULL ? "plan" : "handle");
  WEFT__TRY(weft__alloc((void **)&handle, sizeof *handle, "handle"));
  handle->plan = plan;
  const weft_status status = plan->backend->handle_create(handle);
  if (status != WEFT_OK) {
    weft__free(handle);
    return status;
  }
  plan->handles++;
  *out = handle;
  return WEFT_OK;
}

weft_status weft_ep_handle_destroy(weft_ep_handle *handle) {
  if (handle == NULL) return WEFT_OK;
  weft_ep_plan *const plan = handle->plan;
  const bool lost = plan->comm != NULL && plan->comm->transport->resets != NULL &&
                    plan->comm->transport->resets(plan->comm) != handle->resets;
  if (handle->flight.kind != WEFT__EP_NONE && !lost)
    return weft__fail(WEFT_ERR_BUSY,
                      "ep_handle_destroy: an operation of this handle is in flight, expected its "
                      "receive half or weft_comm_reset() before");
  plan->backend->handle_destroy(handle);
  plan->handles--;
  weft__free(handle);
  return WEFT_OK;
}
