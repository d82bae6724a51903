/* The GPU backend's vtable: a plan's context, workspace and error words, and the way into each
 * phase. Every function leaves the thread's current context as it found it. */
#include "cuda/ce.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/device.h"
#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"

enum { DEFAULT_TIMEOUT_MS = 600000, HOST_ALLOC_PORTABLE_MAPPED = 1 | 2 };

static weft_status layout(const weft_ce_config *config, const weft_ce_machine *machine,
                          weft_ce_plan_info *info) {
  if (machine->hosts > 1)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "%" PRId64 " hosts of GPU ranks: this version has one host there",
                      machine->hosts);
  weft__sm90_layout l;
  WEFT__TRY(weft__sm90_layout_make(config, weft__sm90_units(machine), machine->ranks, &l,
                                   &info->least_bytes));
  if (config->workspace != NULL && config->workspace_bytes < l.local_bytes)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_bytes is %" PRId64 ", expected at least %" PRId64,
                      config->workspace_bytes, l.local_bytes);
  weft__sm90_describe(config, &l, info);
  return WEFT_OK;
}

/* ---- Life of a plan ---- */

static void release(weft__sm90_ce *s) {
  const struct cuda_driver *driver = weft__cuda_driver();
  weft__cuda_team_destroy(&s->team);
  if (s->owns_workspace) driver->cuMemFree(s->workspace);
  if (s->host_errors != NULL) driver->cuMemFreeHost(s->host_errors);
}

static void destroy(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  cuda_context before = NULL;
  if (s == NULL) return;
  if (weft__cuda_enter(s->device, &before) == WEFT_OK) release(s);
  weft__cuda_leave(s->device, before);
  weft__free(s);
  plan->state = NULL;
}

static weft_status make_workspace(weft_ce_plan *plan) {
  const struct cuda_driver *driver = weft__cuda_driver();
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  /* not the default stream, which other ranks' work on this GPU may hold up */
  const cuda_stream stream =
      plan->comm != NULL ? (cuda_stream)weft__gpu_rank_stream(plan->comm->gpu_rank) : NULL;
  s->workspace = (cuda_address)(uintptr_t)plan->config.workspace;
  if (s->workspace == 0) {
    if (driver->cuMemAlloc(&s->workspace, (size_t)s->layout.local_bytes) != 0)
      return weft__fail(WEFT_ERR_MEMORY, "no %" PRId64 " bytes of GPU memory for the workspace",
                        s->layout.local_bytes);
    s->owns_workspace = 1;
  }
  s->errors = s->workspace;
  s->stats = s->errors + (cuda_address)s->layout.errors_bytes;
  s->scratch = s->stats + (cuda_address)s->layout.stats_bytes;
  void *pinned = NULL;
  if (driver->cuMemHostAlloc(&pinned, sizeof *s->host_errors, HOST_ALLOC_PORTABLE_MAPPED) != 0)
    return weft__fail(WEFT_ERR_MEMORY, "no pinned host memory for the words of errors");
  s->host_errors = (struct forward_errors *)pinned;
  memset(pinned, 0, sizeof *s->host_errors);
  WEFT__TRY(weft__cuda_check(
      driver->cuMemsetD8Async(s->errors, 0, (size_t)s->layout.errors_bytes, stream), "cuMemsetD8"));
  return weft__cuda_check(driver->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

static weft_status create_here(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  WEFT__TRY(weft__sm90_forward_load(plan));
  if (plan->config.wants & (WEFT_CE_DX | WEFT_CE_DW)) WEFT__TRY(weft__sm90_backward_load(plan));
  s->timeout_ns =
      1000000 * (uint64_t)(plan->comm != NULL
                               ? plan->comm->info.timeout_ms
                               : weft__env_int("WEFT_TIMEOUT_MS", INT64_MAX, DEFAULT_TIMEOUT_MS));
  if (weft__cuda_team_has_peers(plan->comm)) {
    WEFT__TRY(weft__sm90_team_load(plan));
    WEFT__TRY(weft__cuda_team_create(&s->team, plan->comm, s->layout.symmetric_bytes,
                                     s->layout.signal_bytes));
  }
  return make_workspace(plan);
}

static weft_status create(weft_ce_plan *plan) {
  int device = 0;
  int64_t least = 0;
  struct cuda_device_info info;
  cuda_context before = NULL;
  weft__sm90_ce *s = NULL;
  WEFT__TRY(weft__cuda_choose_device(plan->comm != NULL ? plan->comm->info.gpu : -1, &device));
  WEFT__TRY(weft__gpu_check(device));
  WEFT__TRY(weft__cuda_device_query(device, &info));
  WEFT__TRY(weft__alloc((void **)&s, sizeof *s, "plan"));
  plan->state = s;
  const int64_t share = plan->comm != NULL ? weft__gpu_rank_sms(plan->comm->gpu_rank) : 0;
  WEFT__TRY(weft__sm90_layout_make(&plan->config, share > 0 ? share : info.sm_count, plan->ranks,
                                   &s->layout, &least));
  if (plan->config.workspace != NULL && plan->config.workspace_bytes < s->layout.local_bytes)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_bytes is %" PRId64 ", expected at least %" PRId64,
                      plan->config.workspace_bytes, s->layout.local_bytes);
  weft__sm90_describe(&plan->config, &s->layout, &plan->info);
  plan->info.least_bytes = least;
  s->device = device;
  weft_status status = weft__cuda_enter(device, &before);
  if (status == WEFT_OK) status = create_here(plan);
  weft__cuda_leave(device, before);
  return status;
}

static weft_status connect(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  return s->team.comm != NULL ? weft__cuda_team_connect(&s->team) : WEFT_OK;
}

static weft_status reset(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  return s->team.comm != NULL ? weft__cuda_team_reset(&s->team) : WEFT_OK;
}

/* ---- Calls ---- */

static weft_status check(const weft_ce_plan *plan, weft_ce_args *args, const void *stream) {
  (void)stream;
  const weft_ce_config *c = &plan->config;
  (void)args;
  if (c->softcap > 0.0f && !(c->softcap >= 1e-30f))
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.softcap is %g, expected at least 1e-30 on a GPU", (double)c->softcap);
  return WEFT_OK;
}

static weft_status launch(weft_ce_plan *plan, weft__ce_phase phase, const weft_ce_args *args,
                          cuda_stream stream) {
  weft__gpu_rank *const rank = plan->comm != NULL ? plan->comm->gpu_rank : NULL;
  WEFT__TRY(weft__cuda_chain_begin(rank, &stream));
  const weft_status status = phase == WEFT__FORWARD    ? weft__sm90_forward(plan, args, stream)
                             : phase == WEFT__BACKWARD ? weft__sm90_backward(plan, args, stream)
                                                       : weft__sm90_step(plan, args, stream);
  const weft_status chained = weft__cuda_chain_end(rank, stream);
  return status != WEFT_OK ? status : chained;
}

static weft_status run(weft_ce_plan *plan, weft__ce_phase phase, const weft_ce_args *args,
                       void *stream) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  cuda_context before = NULL;
  weft_status status = weft__cuda_enter(s->device, &before);
  if (status == WEFT_OK) status = launch(plan, phase, args, (cuda_stream)stream);
  weft__cuda_leave(s->device, before);
  return status;
}

static void async_error(weft_ce_plan *plan, weft_async_error *error) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  const volatile struct forward_errors *found = s->host_errors;
  const uint32_t timeout = found->timeout, bad = found->bad_targets, token = found->bad_token;
  error->rank = plan->rank;
  error->peer = -1;
  if (timeout != 0) {
    error->status = WEFT_ERR_TIMEOUT;
    error->count = 1;
    snprintf(error->message, sizeof error->message,
             "a kernel gave up waiting for its own grid (code %u)", timeout);
  } else if (bad != 0) {
    error->status = WEFT_ERR_TARGET;
    error->count = bad;
    snprintf(error->message, sizeof error->message,
             "%u targets are outside 0 ... %" PRId64 " and are not ignore_index %" PRId64
             ", one of the latest call at token %u",
             bad, plan->config.vocab - 1, plan->config.ignore_index, token);
  }
}

const weft__ce_backend weft__ce_sm90 = {.name = "sm90",
                                        .layout = layout,
                                        .create = create,
                                        .connect = connect,
                                        .destroy = destroy,
                                        .check = check,
                                        .run = run,
                                        .async_error = async_error,
                                        .reset = reset,
                                        .enqueues = true};
