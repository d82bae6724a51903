/* The GPU backend of ep: a plan's life, its calls, and what it is asked. Every function leaves the
 * thread's current context as it found it. */
#include "cuda/ep.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/device.h"
#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"

enum {
  DEFAULT_TIMEOUT_MS = 600000,
  ROW_ALIGNMENT = 16,
  LEGACY_STREAM = 1,    /* CU_STREAM_LEGACY */
  CAPTURE_ERRORS = 900, /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and nine behind it */
};

static weft_status layout(const weft_ep_config *config, const weft_ep_machine *machine,
                          weft_ep_plan_info *info) {
  weft__sm90_ep_layout unused;
  if (machine->ranks > 1 && !machine->peer_memory)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "machine.peer_memory is 0: on GPUs, ep needs ranks that reach each other's "
                      "memory: those of one process");
  return weft__sm90_ep_layout_make(config, machine->ranks, &unused, info);
}

static cuda_stream own_stream(const weft_ep_plan *plan) {
  return plan->comm != NULL ? (cuda_stream)weft__gpu_rank_stream(plan->comm->gpu_rank) : NULL;
}

/* Whose chain the plan's kernels are in: they follow each other, whatever their streams. */
static weft__gpu_rank *own_rank(const weft_ep_plan *plan) {
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  return s->alone != NULL || plan->comm == NULL ? s->alone : plan->comm->gpu_rank;
}

/* ---- Memory ---- */

static weft_status allocate(int64_t bytes, const char *what, cuda_address *out) {
  const int result = weft__cuda_driver()->cuMemAlloc(out, (size_t)(bytes > 0 ? bytes : 1));
  if (result == 0) return WEFT_OK;
  *out = 0;
  if (result >= CAPTURE_ERRORS && result < CAPTURE_ERRORS + 10)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "a stream is being captured into a graph: expected plans and handles to be "
                      "made before");
  return weft__fail(WEFT_ERR_MEMORY, "no %" PRId64 " bytes of GPU memory for %s", bytes, what);
}

static weft_status clear(const weft_ep_plan *plan, cuda_address memory, int64_t bytes) {
  const struct cuda_driver *driver = weft__cuda_driver();
  WEFT__TRY(weft__cuda_check(driver->cuMemsetD8Async(memory, 0, (size_t)bytes, own_stream(plan)),
                             "cuMemsetD8Async"));
  return weft__cuda_check(driver->cuStreamSynchronize(own_stream(plan)), "cuStreamSynchronize");
}

static void release(weft__sm90_ep *s) {
  const struct cuda_driver *driver = weft__cuda_driver();
  while (s->spares != NULL) {
    weft__sm90_ep_route *const route = s->spares;
    s->spares = route->next_spare;
    if (route->memory != 0) driver->cuMemFree(route->memory);
    weft__free(route);
  }
  if (s->team.comm != NULL)
    weft__cuda_team_destroy(&s->team);
  else if (s->block != 0)
    driver->cuMemFree(s->block);
  if (s->bases != 0) driver->cuMemFree(s->bases);
  weft__gpu_rank_drop(s->alone);
  if (s->owns_workspace) driver->cuMemFree(s->workspace);
  weft__gpu_words_free(s->device, s->words);
}

static void destroy(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  cuda_context before = NULL;
  if (s == NULL) return;
  if (weft__cuda_enter(s->device, &before) == WEFT_OK) release(s);
  weft__cuda_leave(s->device, before);
  weft__free(s);
  plan->state = NULL;
}

/* The view of a rank without peers. */
static weft_status make_alone(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const int32_t gpu = s->device;
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.gpus = &gpu;
  WEFT__TRY(allocate(plan->info.symmetric_bytes, "the symmetric workspace", &s->block));
  WEFT__TRY(allocate(sizeof s->block, "the symmetric workspace", &s->bases));
  WEFT__TRY(clear(plan, s->block, s->layout.words_bytes));
  WEFT__TRY(weft__gpu_world_create(&world, &s->alone));
  s->view = (struct peer_view){.ranks = 1,
                               .hosts = 1,
                               .local_ranks = 1,
                               .bases = {s->bases},
                               .error = {(uint64_t)(uintptr_t)(s->words + 1)}};
  return weft__cuda_check(weft__cuda_driver()->cuMemcpyHtoD(s->bases, &s->block, sizeof s->block),
                          "cuMemcpyHtoD");
}

/* ---- Kernels ---- */

/* Loads a kernel and launches it once with arguments of no ranks, for which it returns at once: the
 * driver loads code at its first launch, which waits for the device, where a peer's kernel may
 * already wait for this one. */
static weft_status load(const weft_ep_plan *plan, const char *name, unsigned threads,
                        uint32_t shared_bytes, void *no_ranks, struct cuda_kernel *out) {
  const struct cuda_launch launch = {.ctas = 1,
                                     .threads = threads,
                                     .cluster = 1,
                                     .shared_bytes = shared_bytes,
                                     .stream = own_stream(plan)};
  /* the limit is the kernel's, whatever the plan: no plan may lower another's */
  WEFT__TRY(weft__cuda_kernel_load(&weft__device_images, name, name,
                                   weft__sm90_ep_state(plan)->device, EP_SHARED_BYTES, out));
  WEFT__TRY(weft__cuda_launch(out, &launch, no_ranks));
  return weft__cuda_check(weft__cuda_driver()->cuStreamSynchronize(own_stream(plan)), name);
}

static weft_status load_kernels(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  struct ep_dispatch_args dispatch;
  struct ep_combine_args combine;
  memset(&dispatch, 0, sizeof dispatch);
  memset(&combine, 0, sizeof combine);
  WEFT__TRY(load(plan,
                 plan->config.dtype == WEFT_E4M3 ? "sm90_ep_dispatch_fp8" : "sm90_ep_dispatch_bf16",
                 EP_THREADS, s->layout.dispatch_shared, &dispatch, &s->dispatch));
  return load(plan, "sm90_ep_combine", EP_COMBINE_THREADS, s->layout.combine_shared, &combine,
              &s->combine);
}

static weft_status create_here(weft_ep_plan *plan, int64_t sms) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const weft_ep_config *c = &plan->config;
  s->workspace = (cuda_address)(uintptr_t)c->workspace;
  if (s->workspace == 0) {
    WEFT__TRY(allocate(plan->info.local_bytes, "the workspace", &s->workspace));
    s->owns_workspace = 1;
  }
  WEFT__TRY(clear(plan, s->workspace, s->layout.control_bytes));
  WEFT__TRY(weft__gpu_words_alloc(s->device, ((size_t)plan->ranks + 1) * 4, &s->words));
  s->ctas = (uint32_t)(c->max_sms > 0 && c->max_sms < sms ? c->max_sms : sms);
  WEFT__TRY(load_kernels(plan));
  if (!weft__cuda_team_has_peers(plan->comm)) {
    WEFT__TRY(make_alone(plan));
  } else {
    WEFT__TRY(weft__cuda_team_create(&s->team, plan->comm, plan->info.symmetric_bytes,
                                     s->layout.words_bytes));
    s->block = s->team.block;
    s->view = s->team.view;
  }
  const int64_t ms = c->timeout_ms > 0
                         ? c->timeout_ms
                         : weft__env_int("WEFT_TIMEOUT_MS", INT64_MAX, DEFAULT_TIMEOUT_MS);
  s->view.timeout_ns = 1000000 * (uint64_t)ms;
  return WEFT_OK;
}

static weft_status create(weft_ep_plan *plan) {
  int device = 0;
  struct cuda_device_info info;
  cuda_context before = NULL;
  weft__sm90_ep *s = NULL;
  WEFT__TRY(weft__cuda_choose_device(plan->comm != NULL ? plan->comm->info.gpu : -1, &device));
  WEFT__TRY(weft__gpu_check(device));
  WEFT__TRY(weft__cuda_device_query(device, &info));
  WEFT__TRY(weft__alloc((void **)&s, sizeof *s, "ep plan"));
  plan->state = s;
  s->device = device;
  WEFT__TRY(weft__sm90_ep_layout_make(&plan->config, plan->ranks, &s->layout, &plan->info));
  const int64_t share = weft__gpu_rank_sms(plan->comm != NULL ? plan->comm->gpu_rank : NULL);
  weft_status status = weft__cuda_enter(device, &before);
  if (status == WEFT_OK) status = create_here(plan, share > 0 ? share : info.sm_count);
  weft__cuda_leave(device, before);
  return status;
}

/* Every rank takes as many CTAs as the rank that has fewest. */
static weft_status connect(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  uint32_t *all = NULL;
  if (s->team.comm == NULL) return WEFT_OK;
  WEFT__TRY(weft__cuda_team_connect(&s->team));
  weft_status status = weft__alloc((void **)&all, (size_t)plan->ranks * sizeof *all, "ep plan");
  status = weft__comm_agree(plan->comm, status, NULL, 0, NULL, 0, "ep_plan_create");
  if (status == WEFT_OK) status = weft__comm_allgather(plan->comm, &s->ctas, all, sizeof *all);
  for (int64_t r = 0; status == WEFT_OK && r < plan->ranks; r++)
    if (all[r] < s->ctas) s->ctas = all[r];
  weft__free(all);
  return status;
}

static weft_status reset(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  cuda_context before = NULL;
  memset(s->taken, 0, sizeof s->taken);
  memset(s->words, 0, ((size_t)plan->ranks + 1) * sizeof *s->words);
  weft_status status = weft__cuda_enter(s->device, &before);
  if (status == WEFT_OK) status = clear(plan, s->workspace, EP_SLOTS * 64);
  weft__cuda_leave(s->device, before);
  if (status == WEFT_OK && s->team.comm != NULL) status = weft__cuda_team_reset(&s->team);
  return status;
}

/* ---- Handles ---- */

static weft_status handle_create(weft_ep_handle *handle) {
  weft_ep_plan *plan = handle->plan;
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  cuda_context before = NULL;
  weft__sm90_ep_route *route = s->spares;
  if (route != NULL) {
    s->spares = route->next_spare;
    handle->state = route;
    return WEFT_OK;
  }
  WEFT__TRY(weft__alloc((void **)&route, sizeof *route, "handle"));
  weft_status status = weft__cuda_enter(s->device, &before);
  if (status == WEFT_OK) status = allocate(plan->info.handle_bytes, "a handle", &route->memory);
  if (status == WEFT_OK) status = clear(plan, route->memory, plan->info.handle_bytes);
  weft__cuda_leave(s->device, before);
  handle->state = route;
  if (status == WEFT_OK) return WEFT_OK;
  route->next_spare = s->spares; /* the plan frees what there is */
  s->spares = route->memory != 0 ? route : s->spares;
  if (route->memory == 0) weft__free(route);
  return status;
}

static void handle_destroy(weft_ep_handle *handle) {
  weft__sm90_ep *s = weft__sm90_ep_state(handle->plan);
  weft__sm90_ep_route *route = (weft__sm90_ep_route *)handle->state;
  route->next_spare = s->spares;
  s->spares = route;
}

/* ---- Calls ---- */

/* What a kernel of a rank alone has found. */
static weft_status look_for_error(const weft_ep_plan *plan, const char *call) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  if (s->team.comm != NULL) return plan->comm->transport->check(plan->comm, call);
  const uint32_t word = __atomic_exchange_n(s->words + 1, 0, __ATOMIC_RELAXED);
  if (word == 0) return WEFT_OK;
  return weft__fail(peer_error_kind(word) == PEER_ERROR_DATA ? WEFT_ERR_ARGUMENT : WEFT_ERR_TIMEOUT,
                    "%s: an operation before had args.topk_idx out of range, or an expert twice in "
                    "a token (code %#x)",
                    call, word);
}

static weft_status check(const weft_ep_plan *plan, const void *stream) {
  (void)stream;
  return look_for_error(plan, "ep");
}

static weft_status run(weft_ep_plan *plan, const struct cuda_kernel *kernel, unsigned threads,
                       uint32_t shared_bytes, uint32_t ctas, void *args, cuda_stream stream) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  cuda_context before = NULL;
  /* a rank alone has no stream of its own: NULL is the default one */
  if (stream == NULL && s->alone != NULL) stream = (cuda_stream)(uintptr_t)LEGACY_STREAM;
  weft_status status = weft__cuda_enter(s->device, &before);
  if (status == WEFT_OK) status = weft__cuda_chain_begin(own_rank(plan), &stream);
  if (status == WEFT_OK) {
    const struct cuda_launch launch = {.ctas = ctas,
                                       .threads = threads,
                                       .cluster = 1,
                                       .shared_bytes = shared_bytes,

                                       .stream = stream};
    status = weft__cuda_launch(kernel, &launch, args);
    const weft_status ended = weft__cuda_chain_end(own_rank(plan), stream);
    if (status == WEFT_OK) status = ended;
  }
  weft__cuda_leave(s->device, before);
  return status;
}

static weft_status run_combine(weft_ep_plan *plan, struct ep_combine_args *args,
                               cuda_stream stream) {
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  return run(plan, &s->combine, EP_COMBINE_THREADS, s->layout.combine_shared, s->ctas, args,
             stream);
}

/* Tells the peers that this rank refuses the operation: their kernels find it. */
static weft_status refuse(weft_ep_handle *handle, int slot, weft_status own, cuda_stream stream) {
  const weft_ep_combine_args none = WEFT_EP_COMBINE_ARGS_INIT;
  struct ep_combine_args args;
  char reason[512];
  snprintf(reason, sizeof reason, "%s", weft_last_error());
  weft__sm90_ep_combine_args(handle, &none, EP_SEND, slot, &args);
  args.team.kind = EP_REFUSED;
  args.team.tokens = 0;
  if (handle->plan->ranks > 1 && look_for_error(handle->plan, "ep") == WEFT_OK)
    run_combine(handle->plan, &args, stream);
  return weft__fail(own, "%s", reason);
}

static weft_status enqueue(weft_ep_handle *handle, const weft__ep_operation *operation,
                           const weft__ep_args *args, uint32_t halves, int slot) {
  weft_ep_plan *plan = handle->plan;
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const cuda_stream stream = (cuda_stream)args->stream;
  if (operation->kind == WEFT__EP_COMBINE) {
    struct ep_combine_args combine;
    weft__sm90_ep_combine_args(handle, &args->combine, halves, slot, &combine);
    return run_combine(plan, &combine, stream);
  }
  struct ep_dispatch_args dispatch;
  const int64_t tokens = halves & EP_SEND ? args->dispatch.tokens : handle->flight_tokens;
  weft__sm90_ep_dispatch_args(handle, &args->dispatch, halves, slot, tokens,
                              operation->routing != 0, &dispatch);
  return run(plan, &s->dispatch, EP_THREADS, s->layout.dispatch_shared, s->ctas, &dispatch, stream);
}

/* The slot of the next operation, the same on all ranks. */
static int next_slot(const weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  if (plan->flights == 0) memset(s->taken, 0, sizeof s->taken);
  return s->taken[0] ? 1 : 0;
}

static weft_status send(weft_ep_handle *handle, const weft__ep_operation *operation,
                        const weft__ep_args *args, weft_status own, const char *call) {
  weft__sm90_ep *s = weft__sm90_ep_state(handle->plan);
  weft__sm90_ep_route *route = (weft__sm90_ep_route *)handle->state;
  const int slot = next_slot(handle->plan);
  (void)call;
  if (own != WEFT_OK) return refuse(handle, slot, own, (cuda_stream)args->stream);
  WEFT__TRY(enqueue(handle, operation, args, EP_SEND, slot));
  s->taken[slot] = true;
  route->slot = slot;
  return WEFT_OK;
}

static weft_status receive(weft_ep_handle *handle, const weft__ep_args *args, const char *call) {
  weft__sm90_ep *s = weft__sm90_ep_state(handle->plan);
  const int slot = ((const weft__sm90_ep_route *)handle->state)->slot;
  (void)call;
  const weft_status status = enqueue(handle, &handle->flight, args, EP_RECEIVE, slot);
  s->taken[slot] = false;
  return status;
}

static weft_status both(weft_ep_handle *handle, const weft__ep_operation *operation,
                        const weft__ep_args *args, weft_status own, const char *call) {
  const int slot = next_slot(handle->plan);
  (void)call;
  if (own != WEFT_OK) return refuse(handle, slot, own, (cuda_stream)args->stream);
  return enqueue(handle, operation, args, EP_SEND | EP_RECEIVE, slot);
}

/* ---- Questions ---- */

static void *buffer(weft_ep_plan *plan) {
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  return (void *)(uintptr_t)(s->block + (cuda_address)s->layout.buffer);
}

static void mask(weft_ep_plan *plan, int32_t *out) {
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  for (int64_t r = 0; r < plan->ranks; r++)
    out[r] = plan->config.masking && __atomic_load_n(s->words + r, __ATOMIC_RELAXED) != 0;
}

/* Copies of the device's sums, as they are now. */
static weft_status read_sums(const weft_ep_plan *plan, int64_t offset, void *to, int64_t count) {
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const struct cuda_driver *driver = weft__cuda_driver();
  WEFT__TRY(weft__cuda_check(driver->cuMemcpyAsync((cuda_address)(uintptr_t)to,
                                                   s->workspace + (cuda_address)offset,
                                                   (size_t)count * 8, own_stream(plan)),
                             "cuMemcpyAsync"));
  return weft__cuda_check(driver->cuStreamSynchronize(own_stream(plan)), "cuStreamSynchronize");
}

static void read_stats(weft_ep_plan *plan, weft_ep_stats *out, bool reset_them) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const weft__sm90_ep_layout *l = &s->layout;
  uint64_t operations[3] = {0};
  if (read_sums(plan, l->operations, operations, 3) != WEFT_OK) return;
  out->dispatches = (int64_t)operations[EP_DISPATCH];
  out->combines = (int64_t)operations[EP_COMBINE];
  if (out->expert_rows != NULL)
    read_sums(plan, l->expert_rows, out->expert_rows, plan->info.experts_local);
  if (out->wait_ms != NULL && read_sums(plan, l->waits, out->wait_ms, plan->ranks) == WEFT_OK)
    for (int64_t r = 0; r < plan->ranks; r++) {
      uint64_t ns;
      memcpy(&ns, &out->wait_ms[r], sizeof ns);
      out->wait_ms[r] = 1e-6 * (double)ns;
    }
  if (reset_them) clear(plan, s->workspace + (cuda_address)l->waits, l->control_bytes - l->waits);
}

static void stats(weft_ep_plan *plan, weft_ep_stats *out, bool reset_them) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  cuda_context before = NULL;
  if (weft__cuda_enter(s->device, &before) == WEFT_OK) read_stats(plan, out, reset_them);
  weft__cuda_leave(s->device, before);
}

/* Masks that are new, for weft_comm_async_error(). */
static void ask(weft_ep_plan *plan) {
  weft__sm90_ep *s = weft__sm90_ep_state(plan);
  for (int64_t r = 0; plan->config.masking && r < plan->ranks; r++) {
    const uint32_t word = __atomic_load_n(s->words + r, __ATOMIC_RELAXED);
    char message[160];
    if (word == 0 || word == 1) continue;
    snprintf(message, sizeof message, "ep: rank %" PRId64 " did not come within %" PRIu64 " ms", r,
             s->view.timeout_ns / 1000000);
    weft__comm_report(plan->comm, WEFT_ERR_TIMEOUT, r, 1, message);
    __atomic_store_n(s->words + r, 1, __ATOMIC_RELAXED); /* still masked, and told of */
  }
}

const weft__ep_backend weft__ep_sm90 = {
    .name = "sm90",
    .row_alignment = ROW_ALIGNMENT,
    .layout = layout,
    .create = create,
    .connect = connect,
    .destroy = destroy,
    .reset = reset,
    .ask = ask,
    .handle_create = handle_create,
    .handle_destroy = handle_destroy,
    .check = check,
    .send = send,
    .receive = receive,
    .both = both,
    .buffer = buffer,
    .mask = mask,
    .stats = stats,
};
