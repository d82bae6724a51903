/* Plans: made collectively from configs that must agree, or only computed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ce/check.h"
#include "comm/group.h"
#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/structs.h"

/* What every rank brings to plan creation. The first part must be the same on all ranks. */
typedef struct common_config {
  int64_t max_tokens, hidden, vocab, ignore_index;
  int32_t softcap_bits, wants, dtype, target_dtype, dx_dtype, dw_dtype, dx_mode, deterministic;
} common_config;

#define FIELD(name)                                                                                \
  { #name, offsetof(common_config, name), sizeof(((common_config *)0)->name) }
static const weft__field common_fields[] = {
    FIELD(max_tokens),    FIELD(hidden),
    FIELD(vocab),         FIELD(ignore_index),
    FIELD(wants),         FIELD(dtype),
    FIELD(target_dtype),  FIELD(dx_dtype),
    FIELD(dw_dtype),      FIELD(dx_mode),
    FIELD(deterministic), {"softcap (bits)", offsetof(common_config, softcap_bits), 4}};

/* What may differ between ranks, and is checked or merged by all. */
typedef struct rank_config {
  int64_t vocab_start, vocab_local, token_chunk;
} rank_config;

static common_config common_of(const weft_ce_config *c) {
  common_config r = {c->max_tokens, c->hidden,       c->vocab,        c->ignore_index, 0,
                     c->wants,      c->dtype,        c->target_dtype, c->dx_dtype,     c->dw_dtype,
                     c->dx_mode,    c->deterministic};
  memcpy(&r.softcap_bits, &c->softcap, sizeof r.softcap_bits);
  return r;
}

/* Ranges follow each other from 0 in rank order and cover the vocabulary. Every rank checks the
 * same gathered list, so all come to the same verdict. */
static weft_status check_ranges(const rank_config *all, int64_t ranks, int64_t vocab) {
  int64_t next = 0;
  for (int64_t r = 0; r < ranks; r++) {
    if (all[r].vocab_start != next)
      return weft__fail(WEFT_ERR_MISMATCH,
                        "config.vocab_start of rank %" PRId64 " is %" PRId64 ", expected %" PRId64
                        ": the ranks' vocabulary ranges %s",
                        r, all[r].vocab_start, next,
                        all[r].vocab_start < next ? "overlap" : "leave a gap");
    next += all[r].vocab_local;
  }
  if (next < vocab)
    return weft__fail(WEFT_ERR_MISMATCH,
                      "the ranks' vocabulary ranges end at %" PRId64 ", expected vocab = %" PRId64
                      " or more",
                      next, vocab);
  return WEFT_OK;
}

static const weft__ce_backend *backend_of(const char *arch) {
  if (strcmp(arch, "sm90") == 0) return &weft__ce_sm90;
  return strcmp(arch, "cpu") == 0 ? &weft__ce_cpu : NULL;
}

static weft_status check_machine(weft_ce_machine *out, const weft_ce_machine *in) {
  const weft_ce_machine defaults = WEFT_CE_MACHINE_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "machine"));
  if (out->arch == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "machine.arch is NULL");
  if (strcmp(out->arch, "sm100") == 0)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "machine.arch is \"%s\": this version has no backend for it", out->arch);
  if (backend_of(out->arch) == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "machine.arch is \"%s\", expected \"cpu\", \"sm90\" or \"sm100\"", out->arch);
  if (out->ranks < 1 || out->hosts < 1 || out->ranks % out->hosts != 0 || out->units < 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "machine: ranks %" PRId64 ", hosts %" PRId64 ", units %" PRId64
                      ": expected ranks ≥ 1, hosts a divisor of ranks, units ≥ 0",
                      out->ranks, out->hosts, out->units);
  return WEFT_OK;
}

weft_status weft_ce_plan_query(const weft_ce_config *config, const weft_ce_machine *machine,
                               weft_ce_plan_info *info) {
  weft_ce_config checked;
  weft_ce_machine target;
  weft_ce_plan_info result = WEFT_CE_PLAN_INFO_INIT;
  WEFT__TRY(weft__ce_config_check(&checked, config));
  WEFT__TRY(check_machine(&target, machine));
  WEFT__TRY(backend_of(target.arch)->layout(&checked, &target, &result));
  return weft__struct_write(info, &result, sizeof result, sizeof result, "info");
}

/* The local half of creation: everything that this rank can refuse alone. */
static weft_status prepare(weft_ce_plan *plan, const weft_ce_config *config) {
  WEFT__TRY(weft__ce_config_check(&plan->config, config));
  const weft_ce_config *c = &plan->config;
  const int64_t real = c->vocab - c->vocab_start;
  plan->rows = real < 0 ? 0 : real < c->vocab_local ? real : c->vocab_local;
  int32_t device = WEFT_DEVICE_AUTO;
  WEFT__TRY(weft__comm_device(plan->comm, c->device, &device));
  plan->backend = device == WEFT_DEVICE_CUDA ? &weft__ce_sm90 : &weft__ce_cpu;
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  machine.ranks = plan->ranks;
  if (plan->backend == &weft__ce_cpu) {
    machine.units = weft__cores();
    if (plan->comm != NULL) machine.units /= plan->comm->cpu_ranks;
    if (machine.units < 1) machine.units = 1;
  } else {
    machine.arch = plan->backend->name;
    if (plan->comm != NULL) machine.units = weft__gpu_rank_sms(plan->comm->gpu_rank);
    if (plan->comm != NULL) machine.hosts = plan->comm->info.hosts;
  }
  return plan->backend->layout(c, &machine, &plan->info);
}

/* All ranks see all ranges and take the smallest token chunk of step. */
static weft_status agree_ranks(weft_ce_plan *plan) {
  weft_status status = WEFT_OK;
  rank_config *all = NULL;
  const rank_config own = {plan->config.vocab_start, plan->config.vocab_local,
                           plan->info.token_chunk};
  /* A rank without memory for the list must still come to the all-gather: agree first. */
  status = weft__alloc((void **)&all, (size_t)plan->ranks * sizeof own, "plan");
  WEFT__TRY_CLEANUP(weft__comm_agree(plan->comm, status, NULL, 0, NULL, 0, "ce_plan_create"));
  if (plan->comm != NULL)
    WEFT__TRY_CLEANUP(weft__comm_allgather(plan->comm, &own, all, sizeof own));
  else
    all[0] = own;
  WEFT__TRY_CLEANUP(check_ranges(all, plan->ranks, plan->config.vocab));
  for (int64_t r = 0; r < plan->ranks; r++)
    if (all[r].token_chunk < plan->info.token_chunk) plan->info.token_chunk = all[r].token_chunk;
cleanup:
  weft__free(all);
  return status;
}

/* Tells the team what its kernels found since it was last asked. */
static void tell_team(void *plan_of) {
  weft_ce_plan *plan = (weft_ce_plan *)plan_of;
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  plan->backend->async_error(plan, &found);
  if (found.status == WEFT_OK || found.count <= plan->errors_told) return;
  weft__comm_report(plan->comm, (weft_status)found.status, found.peer,
                    found.count - plan->errors_told, found.message);
  plan->errors_told = found.count;
}

static weft_status reset_plan(void *plan_of) {
  weft_ce_plan *plan = (weft_ce_plan *)plan_of;
  return plan->backend->reset(plan);
}

/* A creation that a group keeps. */
typedef struct create_call {
  weft_comm *comm;
  weft_ce_plan **out;
  weft_ce_config config;
  bool readable; /* else it is refused at the end, when the peers are there to be told */
} create_call;

static weft_status create_later(void *arguments) {
  const create_call *const c = (const create_call *)arguments;
  return weft_ce_plan_create(c->comm, c->readable ? &c->config : NULL, c->out);
}

static weft_status keep_create(weft_comm *comm, const weft_ce_config *config, weft_ce_plan **out) {
  create_call c = {comm, out, WEFT_CE_CONFIG_INIT, false};
  c.readable =
      weft__struct_read(&c.config, sizeof c.config, config, sizeof c.config, "config") == WEFT_OK;
  if (out != NULL) *out = NULL;
  return weft__group_keep(comm, create_later, &c, sizeof c);
}

weft_status weft_ce_plan_create(weft_comm *comm, const weft_ce_config *config, weft_ce_plan **out) {
  if (weft__group_open(comm)) return keep_create(comm, config, out);
  weft_ce_plan *plan = NULL;
  weft_status status = WEFT_OK;
  const weft_ce_plan_info fresh = WEFT_CE_PLAN_INFO_INIT;
  if (out != NULL) *out = NULL;
  status = out != NULL ? weft__alloc((void **)&plan, sizeof *plan, "plan")
                       : weft__fail(WEFT_ERR_ARGUMENT, "ce_plan_create: plan is NULL");
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
                                     "ce_plan_create"));
  WEFT__TRY_CLEANUP(agree_ranks(plan));
  status = plan->backend->create(plan);
  WEFT__TRY_CLEANUP(weft__comm_agree(comm, status, NULL, 0, NULL, 0, "ce_plan_create"));
  WEFT__TRY_CLEANUP(plan->backend->connect(plan));
  if (comm != NULL) {
    comm->plans++;
    plan->watch = (weft__watch){.user = plan};
    if (plan->backend->async_error != NULL) plan->watch.ask = tell_team;
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

weft_status weft_ce_plan_info_get(const weft_ce_plan *plan, weft_ce_plan_info *info) {
  if (plan == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "ce_plan_info_get: plan is NULL");
  return weft__struct_write(info, &plan->info, sizeof plan->info, sizeof plan->info, "info");
}

weft_status weft_ce_plan_async_error(weft_ce_plan *plan, weft_async_error *error) {
  if (plan == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "ce_plan_async_error: plan is NULL");
  if (plan->comm != NULL) return weft_comm_async_error(plan->comm, error);
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  if (plan->backend->async_error != NULL) plan->backend->async_error(plan, &found);
  return weft__struct_write(error, &found, sizeof found, sizeof found, "weft_async_error");
}

weft_status weft_ce_plan_destroy(weft_ce_plan *plan) {
  if (plan == NULL) return WEFT_OK;
  if (atomic_load(&plan->busy) != 0)
    return weft__fail(WEFT_ERR_BUSY, "ce_plan_destroy: a call of this plan is running");
  if (plan->comm != NULL) {
    if (plan->backend->async_error != NULL) tell_team(plan);
    weft__comm_unwatch(plan->comm, &plan->watch);
  }
  plan->backend->destroy(plan);
  if (plan->comm != NULL) plan->comm->plans--;
  weft__free(plan);
  return WEFT_OK;
}
