/* Dispatch: a rank's tokens into its slot, and from all ranks' slots the routing and the rows.
 * Knows slots, not how they were reached. */
#include <string.h>

#include "cpu/ep.h"

static const int32_t *topk_of(const weft__cpu_ep *s, const weft__ep_slot *slot) {
  return (const int32_t *)((const unsigned char *)slot + s->block.topk);
}

/* ---- Sending ---- */

void weft__ep_stage(weft_ep_plan *plan, unsigned char *slot, const weft_ep_dispatch_args *a) {
  const weft_ep_config *c = &plan->config;
  const weft__cpu_ep *s = weft__ep_state(plan);
  const int64_t row_bytes = weft__ep_row_bytes(c), words = weft__ep_scale_words(c);
  int32_t *topk = (int32_t *)(slot + s->block.topk);
  for (int64_t i = 0; !a->reuse && i < a->tokens * c->topk; i++)
    topk[i] = c->topk_dtype == WEFT_I32 ? ((const int32_t *)a->topk_idx)[i]
                                        : (int32_t)((const int64_t *)a->topk_idx)[i];
  if (a->topk_weights != NULL)
    memcpy(slot + s->block.weights, a->topk_weights, (size_t)(a->tokens * c->topk) * sizeof(float));
  for (int64_t t = 0; t < a->tokens; t++) {
    const void *x = (const uint16_t *)a->x + t * a->x_stride;
    unsigned char *row = slot + s->block.rows + t * row_bytes;
    if (c->dtype == WEFT_E4M3)
      weft__ep_cast_row(c, s->rows, x, s->row, row,
                        (uint32_t *)(slot + s->block.scales) + t * words);
    else
      memcpy(row, x, (size_t)row_bytes);
  }
}

/* ---- Routing ---- */

/* How many rows each of this rank's experts gets from each rank, then where they begin. */
static void count_rows(const weft_ep_plan *plan, weft__ep_route *route) {
  const weft__cpu_ep *s = weft__ep_state(plan);
  const int64_t experts = weft__ep_local_experts(plan), ranks = plan->ranks;
  const int64_t first = plan->rank * experts;
  memset(route->source_counts, 0, (size_t)(experts * ranks) * sizeof(int64_t));
  for (int64_t r = 0; r < ranks; r++) {
    if (s->views[r] == NULL) continue;
    const int32_t *topk = topk_of(s, s->views[r]);
    for (int64_t i = 0; i < s->views[r]->tokens * plan->config.topk; i++)
      if (topk[i] >= first && topk[i] < first + experts)
        route->source_counts[(topk[i] - first) * ranks + r]++;
  }
  weft__ep_place_rows(&plan->config, experts, ranks, route->source_counts, route->offsets,
                      route->first_row);
  int64_t origin = 0;
  for (int64_t i = 0; i < experts * ranks; i++) {
    if (s->views[i % ranks] == NULL) route->first_row[i] = -1;
    route->first_origin[i] = origin;
    origin += route->source_counts[i];
  }
}

/* The origins of one source's rows: its tokens in order, each behind the last of its expert. */
static void list_origins(const weft_ep_plan *plan, int64_t r, weft__ep_route *route) {
  const weft__cpu_ep *s = weft__ep_state(plan);
  const int64_t experts = weft__ep_local_experts(plan), first = plan->rank * experts;
  const int64_t k = plan->config.topk;
  const int32_t *topk = topk_of(s, s->views[r]);
  for (int64_t e = 0; e < experts; e++)
    s->cursor[e] = route->first_origin[e * plan->ranks + r];
  for (int64_t i = 0; i < s->views[r]->tokens * k; i++)
    if (topk[i] >= first && topk[i] < first + experts)
      route->origins[s->cursor[topk[i] - first]++] =
          (weft__ep_origin){(int32_t)r, (int32_t)(i / k), (int32_t)(i % k)};
}

/* Where this rank's own slots went: the expert, and the place among this rank's tokens there. */
static void note_own_slots(const weft_ep_plan *plan, weft__ep_route *route) {
  const weft__cpu_ep *s = weft__ep_state(plan);
  const weft__ep_slot *own = s->views[plan->rank];
  const int32_t *topk = topk_of(s, own);
  memset(s->cursor, 0, (size_t)plan->config.experts * sizeof *s->cursor);
  for (int64_t i = 0; i < own->tokens * plan->config.topk; i++) {
    route->expert[i] = topk[i];
    route->place[i] = topk[i] < 0 ? 0 : (int32_t)s->cursor[topk[i]]++;
  }
}

/* ---- Receiving ---- */

/* Row `row` from its source's slot; zeros where the source is masked by now. */
static void copy_row(const weft_ep_plan *plan, const weft_ep_dispatch_args *a,
                     const weft__ep_origin *origin, int64_t row) {
  const weft_ep_config *c = &plan->config;
  const weft__cpu_ep *s = weft__ep_state(plan);
  const int64_t row_bytes = weft__ep_row_bytes(c), words = weft__ep_scale_words(c);
  const unsigned char *slot = (const unsigned char *)s->views[origin->rank];
  unsigned char *to = (unsigned char *)a->recv_x + row * row_bytes;
  if (slot != NULL)
    memcpy(to, slot + s->block.rows + origin->token * row_bytes, (size_t)row_bytes);
  else
    memset(to, 0, (size_t)row_bytes);
  for (int64_t w = 0; w < words; w++)
    ((uint32_t *)a->recv_scales)[weft__ep_scale_index(c, &plan->info, row, w)] =
        slot != NULL ? ((const uint32_t *)(slot + s->block.scales))[origin->token * words + w] : 0;
  if (a->recv_weights == NULL) return;
  float weight = slot != NULL ? 1.0f : 0.0f;
  if (slot != NULL && s->views[origin->rank]->operation.weights)
    weight = ((const float *)(slot + s->block.weights))[origin->token * c->topk + origin->k];
  a->recv_weights[row] = weight;
}

void weft__ep_receive_rows(weft_ep_handle *handle, const weft_ep_dispatch_args *a) {
  const weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  weft__ep_route *route = weft__ep_route_of(handle);
  const int64_t experts = weft__ep_local_experts(plan), ranks = plan->ranks;
  if (handle->flight.routing == 0) {
    count_rows(plan, route);
    for (int64_t r = 0; r < ranks; r++)
      if (s->views[r] != NULL) list_origins(plan, r, route);
    note_own_slots(plan, route);
  }
  for (int64_t e = 0; e < experts; e++) {
    int64_t count = 0;
    for (int64_t r = 0; r < ranks; r++)
      count += route->source_counts[e * ranks + r];
    const weft__ep_origin *origins = route->origins + route->first_origin[e * ranks];
    for (int64_t i = 0; i < count; i++)
      copy_row(plan, a, &origins[i], route->offsets[e] + i);
    if (a->counts != NULL) a->counts[e] = count;
    s->expert_rows[e] += count;
  }
  if (a->offsets != NULL)
    memcpy(a->offsets, route->offsets, (size_t)(experts + 1) * sizeof(int64_t));
  if (a->source_counts != NULL)
    memcpy(a->source_counts, route->source_counts, (size_t)(experts * ranks) * sizeof(int64_t));
  s->dispatches++;
}
