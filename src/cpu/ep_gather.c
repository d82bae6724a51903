/* Slots and rows of ranks that can't load each other's memory: everything travels by all-gather,
 * and each rank keeps what it needs. Right first; every rank receives what all send. */
#include <string.h>

#include "core/error.h"
#include "cpu/ep.h"

weft_status weft__ep_gather_slots(weft_ep_plan *plan, int slot) {
  weft__cpu_ep *s = weft__ep_state(plan);
  const size_t bytes = (size_t)s->block.bytes;
  WEFT__TRY(weft__comm_allgather(plan->comm, s->slots[slot], s->gathered, bytes));
  for (int64_t r = 0; r < plan->ranks; r++)
    s->views[r] = (const weft__ep_slot *)(s->gathered + (size_t)r * bytes);
  return WEFT_OK;
}

/* ---- Rows of a combine ---- */

/* The row of this rank's receive arrays that holds its origin number `i`. Rows are asked for in
 * order, so the expert is found by going on from the last one. */
static int64_t row_of(const weft__ep_route *route, int64_t experts, int64_t ranks, int64_t i,
                      int64_t *expert) {
  while (*expert + 1 < experts && route->first_origin[(*expert + 1) * ranks] <= i)
    ++*expert;
  return route->offsets[*expert] + i - route->first_origin[*expert * ranks];
}

static int64_t row_count(const weft__ep_route *route, int64_t pairs) {
  return route->first_origin[pairs - 1] + route->source_counts[pairs - 1];
}

/* Takes from the chunks what belongs to this rank's slots. `first` is the number of a chunk's first
 * row on its rank. */
static void keep_own(const weft_ep_handle *handle, int64_t first) {
  const weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  const weft__ep_route *route = weft__ep_route_of(handle);
  const int64_t experts = weft__ep_local_experts(plan), ranks = plan->ranks;
  const size_t row_bytes = (size_t)plan->config.hidden * 2;
  const size_t chunk_bytes = WEFT__EP_CHUNK * (row_bytes + sizeof(float));
  for (int64_t i = 0; i < handle->tokens * plan->config.topk; i++) {
    const int64_t expert = route->expert[i];
    if (expert < 0) continue;
    const int64_t rank = expert / experts;
    const int64_t *origins = s->first_origins + rank * experts * ranks;
    const int64_t row = origins[expert % experts * ranks + plan->rank] + route->place[i] - first;
    if (row < 0 || row >= WEFT__EP_CHUNK) continue;
    const unsigned char *chunk = s->chunks + (size_t)rank * chunk_bytes;
    memcpy(s->staged + (size_t)i * row_bytes, chunk + (size_t)row * row_bytes, row_bytes);
    memcpy(&s->staged_values[i], chunk + WEFT__EP_CHUNK * row_bytes + (size_t)row * sizeof(float),
           sizeof(float));
  }
}

weft_status weft__ep_gather_rows(weft_ep_handle *handle, int slot) {
  const weft_ep_plan *plan = handle->plan;
  weft__cpu_ep *s = weft__ep_state(plan);
  const weft__ep_route *route = weft__ep_route_of(handle);
  const weft__ep_slot *own = (const weft__ep_slot *)s->slots[slot];
  const int64_t experts = weft__ep_local_experts(plan), pairs = experts * plan->ranks;
  const size_t row_bytes = (size_t)plan->config.hidden * 2;
  int64_t rows = row_count(route, pairs), most = 0, expert = 0;
  WEFT__TRY(weft__comm_allgather(plan->comm, route->first_origin, s->first_origins,
                                 (size_t)pairs * sizeof(int64_t)));
  /* the cursor has room for a number of each rank, since every rank has an expert */
  WEFT__TRY(weft__comm_allgather(plan->comm, &rows, s->cursor, sizeof rows));
  for (int64_t r = 0; r < plan->ranks; r++)
    if (s->cursor[r] > most) most = s->cursor[r];
  for (int64_t first = 0; first < most; first += WEFT__EP_CHUNK) {
    float *values = (float *)(s->chunk + WEFT__EP_CHUNK * row_bytes);
    for (int64_t i = 0; i < WEFT__EP_CHUNK && first + i < rows; i++) {
      const int64_t row = row_of(route, experts, plan->ranks, first + i, &expert);
      memcpy(s->chunk + (size_t)i * row_bytes,
             (const unsigned char *)own->y + (size_t)row * row_bytes, row_bytes);
      values[i] = own->row_gradient != NULL ? own->row_gradient[row] : 0.0f;
    }
    WEFT__TRY(weft__comm_allgather(plan->comm, s->chunk, s->chunks,
                                   WEFT__EP_CHUNK * (row_bytes + sizeof(float))));
    keep_own(handle, first);
  }
  return WEFT_OK;
}
