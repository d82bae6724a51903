/* Combine: each of this rank's tokens sums the rows that its experts made of it, in top-k order. */
#include "cpu/ep.h"

/* A row that comes back to a slot, NULL where the slot is skipped, and the value with it. */
typedef struct returned {
  const void *row;
  float value;
} returned;

static returned returned_to(const weft_ep_handle *handle, int64_t slot) {
  const weft_ep_plan *plan = handle->plan;
  const weft__cpu_ep *s = weft__ep_state(plan);
  const weft__ep_route *route = weft__ep_route_of(handle);
  const int64_t h = plan->config.hidden, experts = weft__ep_local_experts(plan);
  const int64_t expert = route->expert[slot];
  returned found = {NULL, 0.0f};
  if (expert < 0) return found;
  if (s->reach == WEFT__EP_GATHERED) {
    found.row = s->staged + slot * h * 2;
    found.value = s->staged_values[slot];
    return found;
  }
  const weft__ep_slot *view = s->views[expert / experts];
  if (view == NULL) return found;
  /* A rank that had masked this one then has none of its rows. */
  const int64_t first = view->first_row[expert % experts * plan->ranks + plan->rank];
  if (first < 0) return found;
  const int64_t row = first + route->place[slot];
  found.row = (const uint16_t *)view->y + row * h;
  if (view->row_gradient != NULL) found.value = view->row_gradient[row];
  return found;
}

void weft__ep_sum_rows(weft_ep_handle *handle, const weft_ep_combine_args *a) {
  const weft_ep_plan *plan = handle->plan;
  const int64_t h = plan->config.hidden, k = plan->config.topk;
  weft__cpu_ep *s = weft__ep_state(plan);
  for (int64_t t = 0; t < handle->tokens; t++) {
    for (int64_t i = 0; i < h; i++)
      s->sum[i] = 0.0f;
    for (int64_t slot = t * k; slot < (t + 1) * k; slot++) {
      const returned r = returned_to(handle, slot);
      if (a->weight_gradient != NULL) a->weight_gradient[slot] = r.value;
      if (r.row == NULL) continue;
      s->rows->to_f32(s->row, r.row, h, WEFT_BF16);
      s->rows->add_scaled(s->sum, s->row, a->topk_weights != NULL ? a->topk_weights[slot] : 1.0f,
                          h);
    }
    s->rows->from_f32((uint16_t *)a->out + t * a->out_stride, s->sum, h, WEFT_BF16);
  }
  s->combines++;
}
