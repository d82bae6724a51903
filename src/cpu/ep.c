/* The CPU backend of ep: sizes, memory, the two halves, statistics. One thread a rank does the
 * work. Knows how slots are reached only by name. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "cpu/ep.h"

/* ---- Sizes ---- */

static int64_t aligned(int64_t bytes) {
  return (int64_t)weft__align((size_t)bytes);
}

/* Takes the next `bytes` of a block at `base`; with base NULL only the offset moves. */
static void *carve(unsigned char *base, int64_t *offset, int64_t bytes) {
  void *part = base != NULL ? base + *offset : NULL;
  *offset += aligned(bytes);
  return part;
}

static weft__ep_block block_of(const weft_ep_config *c) {
  weft__ep_block b = {0};
  const int64_t slots = c->tokens_max * c->topk;
  b.topk = aligned((int64_t)sizeof(weft__ep_slot));
  b.weights = b.topk + aligned(slots * 4);
  b.rows = b.weights + aligned(slots * 4);
  b.scales = b.rows + aligned(c->tokens_max * weft__ep_row_bytes(c));
  b.bytes = b.scales + aligned(c->tokens_max * weft__ep_scale_words(c) * 4);
  return b;
}

/* A row of a chunk with its value. */
static int64_t chunk_bytes(const weft_ep_config *c) {
  return WEFT__EP_CHUNK * (c->hidden * 2 + 4);
}

/* Lays out the workspace; returns its size. */
static int64_t lay_out_local(weft__cpu_ep *s, unsigned char *base, const weft_ep_config *c,
                             int64_t ranks, bool gathered) {
  const int64_t experts = c->experts / ranks, slots = c->tokens_max * c->topk;
  int64_t at = 0;
  s->sum = (float *)carve(base, &at, c->hidden * 4);
  s->row = (float *)carve(base, &at, c->hidden * 4);
  s->cursor = (int64_t *)carve(base, &at, c->experts * 8);
  s->views = (const weft__ep_slot **)carve(base, &at, ranks * (int64_t)sizeof(void *));
  s->expert_rows = (int64_t *)carve(base, &at, experts * 8);
  s->wait_ms = (double *)carve(base, &at, ranks * 8);
  if (!gathered) return at;
  s->gathered = (unsigned char *)carve(base, &at, ranks * block_of(c).bytes);
  s->staged = (unsigned char *)carve(base, &at, slots * c->hidden * 2);
  s->staged_values = (float *)carve(base, &at, slots * 4);
  s->chunk = (unsigned char *)carve(base, &at, chunk_bytes(c));
  s->chunks = (unsigned char *)carve(base, &at, ranks * chunk_bytes(c));
  s->first_origins = (int64_t *)carve(base, &at, ranks * c->experts * 8);
  return at;
}

static int64_t lay_out_symmetric(weft__cpu_ep *s, unsigned char *base, const weft_ep_config *c,
                                 int64_t buffer_bytes) {
  int64_t at = 0;
  for (int i = 0; i < WEFT__EP_FLIGHTS; i++)
    s->slots[i] = (unsigned char *)carve(base, &at, block_of(c).bytes);
  s->buffer = buffer_bytes > 0 ? carve(base, &at, buffer_bytes) : NULL;
  return at;
}

static int64_t lay_out_route(weft__ep_route *route, unsigned char *base, const weft_ep_config *c,
                             int64_t ranks) {
  const int64_t experts = c->experts / ranks, slots = c->tokens_max * c->topk;
  const int64_t pairs = experts * ranks;
  const int64_t rows = ranks * c->tokens_max * (c->topk < experts ? c->topk : experts);
  weft__ep_route unused;
  int64_t at = 0;
  if (route == NULL) route = &unused;
  carve(base, &at, (int64_t)sizeof *route); /* the struct itself stands first */
  route->expert = (int32_t *)carve(base, &at, slots * 4);
  route->place = (int32_t *)carve(base, &at, slots * 4);
  route->source_counts = (int64_t *)carve(base, &at, pairs * 8);
  route->offsets = (int64_t *)carve(base, &at, (experts + 1) * 8);
  route->first_row = (int64_t *)carve(base, &at, pairs * 8);
  route->first_origin = (int64_t *)carve(base, &at, pairs * 8);
  route->origins = (weft__ep_origin *)carve(base, &at, rows * (int64_t)sizeof(weft__ep_origin));
  return at;
}

static weft_status layout(const weft_ep_config *c, const weft_ep_machine *machine,
                          weft_ep_plan_info *info) {
  weft__cpu_ep unused;
  const bool gathered = machine->ranks > 1 && !machine->peer_memory;
  if (gathered && c->masking)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.masking is 1, but the ranks meet in the caller's exchange, whose "
                      "waits weft can't end: masking needs ranks of one process");
  weft__ep_receive_sizes(c, machine->ranks, info);
  info->local_bytes = lay_out_local(&unused, NULL, c, machine->ranks, gathered);
  info->symmetric_bytes = lay_out_symmetric(&unused, NULL, c, info->buffer_bytes);
  info->handle_bytes = lay_out_route(NULL, NULL, c, machine->ranks);
  snprintf(info->text, sizeof info->text,
           "cpu, %" PRId64 " experts a rank, %s rows of %s, %" PRId64 " at most, peers %s",
           info->experts_local, c->layout == WEFT_EP_SLAB ? "slab" : "packed",
           c->dtype == WEFT_E4M3 ? "E4M3" : "bf16", info->rows_max,
           gathered ? "by all-gather" : "by their memory");
  return WEFT_OK;
}

/* ---- Plans and handles ---- */

static void destroy(weft_ep_plan *plan) {
  weft__cpu_ep *s = weft__ep_state(plan);
  if (s->board != NULL) weft__ep_board_destroy(plan);
  if (s->symmetric != NULL && plan->comm != NULL)
    weft__comm_arena_take(plan->comm, -plan->info.symmetric_bytes);
  weft__free(s->symmetric);
  weft__free(s->owned_workspace);
  weft__free(s);
  plan->state = NULL;
}

static weft_status create(weft_ep_plan *plan) {
  const weft_ep_config *c = &plan->config;
  weft__cpu_ep *s = NULL;
  WEFT__TRY(weft__alloc((void **)&s, sizeof *s, "ep plan"));
  plan->state = s; /* from here on the plan's destroy frees what there is */
  s->rows = weft__rows_best();
  s->block = block_of(c);
  s->reach = plan->ranks == 1                     ? WEFT__EP_ALONE
             : plan->comm->transport->loads_peers ? WEFT__EP_SHARED
                                                  : WEFT__EP_GATHERED;
  if (plan->comm != NULL) WEFT__TRY(weft__comm_arena_take(plan->comm, plan->info.symmetric_bytes));
  const weft_status status =
      weft__alloc(&s->symmetric, (size_t)plan->info.symmetric_bytes, "symmetric workspace");
  if (status != WEFT_OK) {
    if (plan->comm != NULL) weft__comm_arena_take(plan->comm, -plan->info.symmetric_bytes);
    return status;
  }
  lay_out_symmetric(s, (unsigned char *)s->symmetric, c, plan->info.buffer_bytes);
  unsigned char *workspace = (unsigned char *)c->workspace;
  if (workspace == NULL) {
    WEFT__TRY(weft__alloc(&s->owned_workspace, (size_t)plan->info.local_bytes, "workspace"));
    workspace = (unsigned char *)s->owned_workspace;
  }
  lay_out_local(s, workspace, c, plan->ranks, s->reach == WEFT__EP_GATHERED);
  memset(s->expert_rows, 0, (size_t)plan->info.experts_local * sizeof *s->expert_rows);
  memset(s->wait_ms, 0, (size_t)plan->ranks * sizeof *s->wait_ms);
  return s->reach == WEFT__EP_SHARED ? weft__ep_board_create(plan) : WEFT_OK;
}

static weft_status connect(weft_ep_plan *plan) {
  return weft__ep_state(plan)->reach == WEFT__EP_SHARED ? weft__ep_board_connect(plan) : WEFT_OK;
}

static weft_status handle_create(weft_ep_handle *handle) {
  const weft_ep_plan *plan = handle->plan;
  WEFT__TRY(weft__alloc(&handle->state, (size_t)plan->info.handle_bytes, "handle"));
  lay_out_route(weft__ep_route_of(handle), (unsigned char *)handle->state, &plan->config,
                plan->ranks);
  return WEFT_OK;
}

static void handle_destroy(weft_ep_handle *handle) {
  weft__free(handle->state);
}

/* ---- The halves ---- */

static weft_status check(const weft_ep_plan *plan, const void *stream) {
  (void)plan;
  if (stream != NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "stream is %p, expected NULL on a CPU", stream);
  return WEFT_OK;
}

static const weft__field operation_fields[] = {
    {"operation (1 dispatch, 2 combine)", offsetof(weft__ep_operation, kind), 4},
    {"number of the operation", offsetof(weft__ep_operation, number), 8},
    {"number of the dispatch whose routing is used", offsetof(weft__ep_operation, routing), 8}};

/* Over the caller's exchange the ranks meet; nothing is posted. */
static weft_status agree(weft_ep_plan *plan, const weft__ep_operation *operation, weft_status own,
                         const char *call) {
  weft__ep_operation common = *operation;
  common.weights = 0;
  return weft__comm_agree(plan->comm, own, &common, sizeof common, operation_fields,
                          sizeof operation_fields / sizeof operation_fields[0], call);
}

/* A slot for the next operation. Slots that a reset has cut off are free again. */
static weft_status begin(weft_ep_plan *plan, const weft__ep_operation *operation, weft_status own,
                         int *slot, const char *call) {
  weft__cpu_ep *s = weft__ep_state(plan);
  if (plan->flights == 0) memset(s->taken, 0, sizeof s->taken);
  *slot = s->taken[0] ? 1 : 0;
  if (s->reach == WEFT__EP_SHARED) return weft__ep_board_begin(plan, slot, call);
  if (s->reach == WEFT__EP_GATHERED) return agree(plan, operation, own, call);
  return own;
}

static weft_status send(weft_ep_handle *handle, const weft__ep_operation *operation,
                        const weft__ep_args *args, weft_status own, const char *call) {
  weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  weft__ep_route *route = weft__ep_route_of(handle);
  char reason[512] = "";
  int slot = 0;
  if (own != WEFT_OK) snprintf(reason, sizeof reason, "%s", weft_last_error());
  WEFT__TRY(begin(plan, operation, own, &slot, call));
  weft__ep_slot *const head = (weft__ep_slot *)s->slots[slot];
  *head = (weft__ep_slot){.operation = *operation, .status = (int32_t)own};
  snprintf(head->message, sizeof head->message, "%s", reason);
  if (own == WEFT_OK && operation->kind == WEFT__EP_DISPATCH) {
    head->tokens = args->dispatch.tokens;
    weft__ep_stage(plan, s->slots[slot], &args->dispatch);
  } else if (own == WEFT_OK) {
    head->tokens = handle->tokens;
    head->y = args->combine.y;
    head->row_gradient = args->combine.row_gradient;
    head->first_row = route->first_row;
  }
  if (s->reach == WEFT__EP_SHARED) weft__ep_board_post(plan, slot);
  if (own != WEFT_OK) return weft__fail(own, "%s", reason);
  s->taken[slot] = true;
  route->slot = slot;
  return WEFT_OK;
}

/* Every rank that is not masked must have sent the same operation. */
static weft_status compare(const weft_ep_plan *plan, const weft__ep_operation *own,
                           const char *call) {
  const weft__cpu_ep *s = weft__ep_state(plan);
  for (int64_t r = 0; r < plan->ranks; r++) {
    const weft__ep_slot *slot = s->views[r];
    if (slot != NULL && slot->status != WEFT_OK)
      return weft__fail(WEFT_ERR_PEER, "%s: rank %" PRId64 " refused the call (%s): %s", call, r,
                        weft_status_string((weft_status)slot->status), slot->message);
  }
  for (int64_t r = 0; r < plan->ranks; r++) {
    const weft__ep_slot *slot = s->views[r];
    if (slot == NULL) continue;
    if (slot->operation.kind != own->kind)
      return weft__fail(WEFT_ERR_MISMATCH,
                        "%s: rank %" PRId64 " calls %s, rank %" PRId64 " calls %s", call,
                        plan->rank, own->kind == WEFT__EP_DISPATCH ? "dispatch" : "combine", r,
                        slot->operation.kind == WEFT__EP_DISPATCH ? "dispatch" : "combine");
    if (slot->operation.routing != own->routing)
      return weft__fail(
          WEFT_ERR_MISMATCH,
          "%s: rank %" PRId64 " uses the routing of dispatch %" PRId64 ", rank %" PRId64
          " that of %" PRId64 " (0: a new one): expected the handles in one order on all ranks",
          call, plan->rank, own->routing & UINT32_MAX, r, slot->operation.routing & UINT32_MAX);
  }
  return WEFT_OK;
}

static weft_status collect(weft_ep_handle *handle, int slot, const char *call) {
  weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  s->views[plan->rank] = (const weft__ep_slot *)s->slots[slot];
  if (s->reach == WEFT__EP_ALONE) return WEFT_OK;
  if (s->reach == WEFT__EP_SHARED) {
    WEFT__TRY(weft__ep_board_collect(plan, slot, call));
    return compare(plan, &handle->flight, call);
  }
  WEFT__TRY(agree(plan, &handle->flight, WEFT_OK, call));
  return handle->flight.kind == WEFT__EP_DISPATCH ? weft__ep_gather_slots(plan, slot)
                                                  : weft__ep_gather_rows(handle, slot);
}

static weft_status receive(weft_ep_handle *handle, const weft__ep_args *args, const char *call) {
  weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  const int slot = weft__ep_route_of(handle)->slot;
  const bool combine = handle->flight.kind == WEFT__EP_COMBINE;
  weft_status status = collect(handle, slot, call);
  if (status == WEFT_OK && combine) weft__ep_sum_rows(handle, &args->combine);
  if (status == WEFT_OK && !combine) weft__ep_receive_rows(handle, &args->dispatch);
  s->taken[slot] = false;
  if (s->reach != WEFT__EP_SHARED) return status;
  /* y is the caller's again once nobody reads it, whatever became of this call */
  char reason[512] = "";
  if (status != WEFT_OK) snprintf(reason, sizeof reason, "%s", weft_last_error());
  const weft_status ended = weft__ep_board_let_go(plan, slot, combine, call);
  return status != WEFT_OK ? weft__fail(status, "%s", reason) : ended;
}

/* ---- Questions ---- */

static void *buffer(weft_ep_plan *plan) {
  return weft__ep_state(plan)->buffer;
}

static void mask(weft_ep_plan *plan, int32_t *out) {
  memset(out, 0, (size_t)plan->ranks * sizeof *out);
  if (weft__ep_state(plan)->reach == WEFT__EP_SHARED) weft__ep_board_mask(plan, out);
}

static void stats(weft_ep_plan *plan, weft_ep_stats *out, bool reset) {
  weft__cpu_ep *s = weft__ep_state(plan);
  const size_t rows = (size_t)plan->info.experts_local * sizeof *s->expert_rows;
  const size_t waits = (size_t)plan->ranks * sizeof *s->wait_ms;
  out->dispatches = s->dispatches;
  out->combines = s->combines;
  if (out->expert_rows != NULL) memcpy(out->expert_rows, s->expert_rows, rows);
  if (out->wait_ms != NULL) memcpy(out->wait_ms, s->wait_ms, waits);
  if (!reset) return;
  s->dispatches = s->combines = 0;
  memset(s->expert_rows, 0, rows);
  memset(s->wait_ms, 0, waits);
}

const weft__ep_backend weft__ep_cpu = {
    .name = "cpu",
    .layout = layout,
    .create = create,
    .connect = connect,
    .destroy = destroy,
    .handle_create = handle_create,
    .handle_destroy = handle_destroy,
    .check = check,
    .send = send,
    .receive = receive,
    .buffer = buffer,
    .mask = mask,
    .stats = stats,
};
