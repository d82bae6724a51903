/* From a call's arguments to the kernels'. */
#include <string.h>

#include "cuda/ep.h"

/* Of a slot's control block. */
enum { SLOT_CONTROL_BYTES = 64, SENT = 0, RECEIVED = 8, GATE = 16 };

static struct gmem at(cuda_address address) {
  struct gmem p;
  p.a = address;
  return p;
}

static struct gmem of(const void *pointer) {
  return at((cuda_address)(uintptr_t)pointer);
}

static struct ep_team team_of(const weft_ep_handle *handle, uint32_t kind, uint32_t halves,
                              int slot, int64_t tokens) {
  const weft_ep_plan *plan = handle->plan;
  const weft__sm90_ep *s = weft__sm90_ep_state(plan);
  const weft__sm90_ep_layout *l = &s->layout;
  const weft__sm90_ep_route *route = (const weft__sm90_ep_route *)handle->state;
  const uint32_t ranks = (uint32_t)plan->ranks, local = (uint32_t)plan->info.experts_local;
  const cuda_address control = s->workspace + (cuda_address)slot * SLOT_CONTROL_BYTES;
  struct ep_team t;
  memset(&t, 0, sizeof t);
  t.view = s->view;
  t.words = ep_words_of((uint64_t)slot * ep_words_of(0, ranks, local).end, ranks, local);
  t.notice = ep_notice_of(0, ranks, local);
  t.sent = at(control + SENT);
  t.received = at(control + RECEIVED);
  t.gate = at(control + GATE);
  t.state = at(s->workspace + (cuda_address)l->state);
  t.mask = of(s->words);
  t.wait_ns = at(s->workspace + (cuda_address)l->waits);
  t.operations = at(s->workspace + (cuda_address)l->operations + 8 * kind);
  t.routing = at(route->memory + (cuda_address)l->routing);
  t.kind = kind;
  t.halves = halves;
  t.slot = (uint32_t)slot;
  t.masking = (uint32_t)plan->config.masking;
  t.fence = (uint32_t)plan->config.fence;
  t.experts_local = local;
  t.topk = (uint32_t)plan->config.topk;
  t.tokens = (uint32_t)tokens;
  return t;
}

void weft__sm90_ep_dispatch_args(const weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                 uint32_t halves, int slot, int64_t tokens, int reuse,
                                 struct ep_dispatch_args *a) {
  const weft_ep_config *c = &handle->plan->config;
  const weft__sm90_ep *s = weft__sm90_ep_state(handle->plan);
  const weft__sm90_ep_layout *l = &s->layout;
  const weft__sm90_ep_route *route = (const weft__sm90_ep_route *)handle->state;
  const cuda_address staged = s->workspace + (cuda_address)l->staged[slot];
  const cuda_address staged_weights = s->workspace + (cuda_address)l->staged_weights[slot];
  memset(a, 0, sizeof *a);
  a->team = team_of(handle, EP_DISPATCH, halves, slot, tokens);
  a->row_bytes = (uint32_t)c->hidden * 2;
  if (halves & EP_SEND) {
    a->x = of(args->x);
    a->x_stride = (uint64_t)args->x_stride * 2;
    a->topk = of(args->topk_idx);
    a->weights = of(args->topk_weights);
    a->staged = at(staged);
    a->staged_weights = at(staged_weights);
  } else {
    a->x = at(staged);
    a->x_stride = a->row_bytes;
    a->weights = at(staged_weights);
  }
  if (halves & EP_RECEIVE) {
    a->recv_x = of(args->recv_x);
    a->recv_scales = of(args->recv_scales);
    a->recv_weights = of(args->recv_weights);
    a->counts = of(args->counts);
    a->offsets = of(args->offsets);
    a->source_counts = of(args->source_counts);
  }
  a->expert = at(route->memory + (cuda_address)l->expert);
  a->row = at(route->memory + (cuda_address)l->row);
  a->kept_counts = at(route->memory + (cuda_address)l->kept_counts);
  a->kept_offsets = at(route->memory + (cuda_address)l->kept_offsets);
  a->expert_rows = at(s->workspace + (cuda_address)l->expert_rows);
  a->scales = l->scales;
  a->pieces = l->dispatch_pieces;
  a->stages = l->dispatch_stages;
  a->reuse = (uint32_t)reuse;
  a->topk_i64 = c->topk_dtype == WEFT_I64;
  a->experts = (uint32_t)c->experts;
  a->hidden = (uint32_t)c->hidden;
  a->slab_rows = l->slab_rows;
  a->packed = c->layout == WEFT_EP_PACKED;
  a->alignment = (uint32_t)c->alignment;
  a->rows_max = (uint32_t)handle->plan->info.rows_max;
}

void weft__sm90_ep_combine_args(const weft_ep_handle *handle, const weft_ep_combine_args *args,
                                uint32_t halves, int slot, struct ep_combine_args *a) {
  const weft_ep_config *c = &handle->plan->config;
  const weft__sm90_ep *s = weft__sm90_ep_state(handle->plan);
  const weft__sm90_ep_layout *l = &s->layout;
  const weft__sm90_ep_route *route = (const weft__sm90_ep_route *)handle->state;
  memset(a, 0, sizeof *a);
  a->team = team_of(handle, EP_COMBINE, halves, slot, handle->tokens);
  if (halves & EP_SEND) {
    a->y = of(args->y);
    a->row_gradient = of(args->row_gradient);
  }
  if (halves & EP_RECEIVE) {
    a->weights = of(args->topk_weights);
    a->out = of(args->out);
    a->out_stride = (uint64_t)args->out_stride * 2;
    a->weight_gradient = of(args->weight_gradient);
  }
  a->expert = at(route->memory + (cuda_address)l->expert);
  a->row = at(route->memory + (cuda_address)l->row);
  a->pieces = l->combine_pieces;
  a->stages = l->combine_stages;
  a->row_bytes = (uint32_t)c->hidden * 2;
}
