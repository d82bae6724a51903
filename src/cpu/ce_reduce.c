/* What a team does: statistics exchanged and merged in rank order, dX summed in rank order. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "cpu/ce.h"

/* Turns this rank's statistics of the chunk into the team's, on all ranks alike. */
weft_status weft__cpu_exchange_stats(weft__cpu_call *call) {
  weft_comm *comm = call->plan->comm;
  const int64_t ranks = call->plan->ranks;
  if (ranks == 1) return WEFT_OK;
  for (int64_t first = 0; first < call->tokens; first += WEFT__EXCHANGE_TOKENS) {
    weft__stats *own = call->state->stats + call->first_token + first;
    const weft__stats *all = call->state->gathered;
    int64_t tokens = call->tokens - first;
    if (tokens > WEFT__EXCHANGE_TOKENS) tokens = WEFT__EXCHANGE_TOKENS;
    WEFT__TRY(weft__comm_allgather(comm, own, call->state->gathered,
                                   (size_t)tokens * sizeof(weft__stats)));
    for (int64_t i = 0; i < tokens; i++) {
      weft__stats sum = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int64_t r = 0; r < ranks; r++)
        sum = weft__stats_merge(sum, all[r * tokens + i]);
      own[i] = sum;
    }
  }
  return WEFT_OK;
}

void weft__cpu_write_loss(const weft__cpu_call *call) {
  const weft_ce_args *a = call->args;
  for (int64_t i = 0; i < call->tokens; i++) {
    const int64_t token = call->first_token + i, target = call->state->target[i];
    const weft__stats s = call->state->stats[token];
    const float log_s = logf(s.s);
    float nll = (s.m - s.z_target) + log_s;
    if (target == WEFT__IGNORED) nll = 0.0f;
    if (target == WEFT__BAD_TARGET) nll = NAN;
    if (a->nll != NULL) a->nll[token] = nll;
    if (a->lse != NULL) a->lse[token] = s.m + log_s;
    if (a->entropy != NULL) a->entropy[token] = target == WEFT__IGNORED ? 0.0f : log_s - s.t / s.s;
    if (a->stats != NULL) memcpy(a->stats + token * 4, &s, sizeof s);
  }
}

/* ---- dX ---- */

typedef struct reduction {
  weft__cpu_call *call;
  int64_t first, last;   /* rows of this pass */
  int64_t output_offset; /* row of dX that the caller's dx starts with */
  float **parts;         /* [ranks] */
} reduction;

static void write_row(const weft__cpu_call *call, int64_t output_row, const float *row) {
  const weft_ce_config *c = &call->plan->config;
  const int64_t stride = weft__stride(call->args->dx_stride, c->hidden);
  call->state->rows->from_f32((unsigned char *)call->args->dx +
                                  output_row * stride * weft__dtype_bytes(c->dx_dtype),
                              row, c->hidden, c->dx_dtype);
}

/* Adds all ranks' rows in rank order into this rank's own; nobody else touches those rows. */
static void sum_row(void *job, int64_t item, int thread) {
  const reduction *r = (const reduction *)job;
  const int64_t h = r->call->plan->config.hidden, row = r->first + item;
  float *sum = weft__cpu_scratch(r->call, thread);
  memcpy(sum, r->parts[0] + row * h, (size_t)h * sizeof(float));
  for (int64_t rank = 1; rank < r->call->plan->ranks; rank++)
    r->call->state->rows->add(sum, r->parts[rank] + row * h, h);
  memcpy(r->parts[r->call->plan->rank] + row * h, sum, (size_t)h * sizeof(float));
}

static void write_own_row(void *job, int64_t item, int thread) {
  (void)thread;
  const reduction *r = (const reduction *)job;
  const int64_t row = r->first + item;
  write_row(r->call, row - r->output_offset,
            r->call->state->dx_sum + row * r->call->plan->config.hidden);
}

static void write_gathered_row(void *job, int64_t item, int thread) {
  (void)thread;
  const reduction *r = (const reduction *)job;
  const int64_t ranks = r->call->plan->ranks, shard = (r->call->args->tokens + ranks - 1) / ranks;
  write_row(r->call, item, r->parts[item / shard] + item * r->call->plan->config.hidden);
}

/* Peers' parts are loaded directly: each rank sums its shard of rows, then all read all shards. */
static weft_status reduce_by_loads(weft__cpu_call *call) {
  weft_comm *comm = call->plan->comm;
  const weft_ce_config *c = &call->plan->config;
  weft__pool *pool = call->state->pool;
  reduction r = {call, 0, 0, 0, (float **)call->state->peers};
  weft__scatter_rows(call->args->tokens, call->plan->ranks, call->plan->rank, &r.first, &r.last);
  WEFT__TRY(comm->transport->barrier(comm));
  weft__pool_run(pool, sum_row, &r, r.last - r.first);
  if (c->dx_mode == WEFT_DX_REDUCE_SCATTER) {
    r.output_offset = r.first;
    weft__pool_run(pool, write_own_row, &r, r.last - r.first);
  } else {
    WEFT__TRY(comm->transport->barrier(comm));
    weft__pool_run(pool, write_gathered_row, &r, call->args->tokens);
  }
  /* Nobody overwrites its part before all have read it. */
  return comm->transport->barrier(comm);
}

/* Without loads: rows travel by all-gather, as many at once as the gather buffer holds. */
static weft_status reduce_by_gathers(weft__cpu_call *call) {
  const weft_ce_config *c = &call->plan->config;
  const int64_t h = c->hidden, ranks = call->plan->ranks, tokens = call->args->tokens;
  float *all = (float *)call->state->gathered;
  int64_t first = 0, last = tokens;
  const int64_t rows_at_once = call->state->layout.gathered_bytes / (ranks * h * 4);
  if (c->dx_mode == WEFT_DX_REDUCE_SCATTER)
    weft__scatter_rows(tokens, ranks, call->plan->rank, &first, &last);
  for (int64_t row = 0; row < tokens; row += rows_at_once) {
    const int64_t rows = tokens - row < rows_at_once ? tokens - row : rows_at_once;
    WEFT__TRY(weft__comm_allgather(call->plan->comm, call->state->dx_sum + row * h, all,
                                   (size_t)(rows * h) * sizeof(float)));
    for (int64_t i = 0; i < rows; i++) {
      if (row + i < first || row + i >= last) continue;
      float *sum = all + i * h;
      for (int64_t r = 1; r < ranks; r++)
        call->state->rows->add(sum, all + (r * rows + i) * h, h);
      write_row(call, row + i - first, sum);
    }
  }
  return WEFT_OK;
}

weft_status weft__cpu_reduce_dx(weft__cpu_call *call) {
  if (!call->state->layout.dx_buffer) return WEFT_OK;
  if (call->plan->ranks == 1 || call->plan->config.dx_mode == WEFT_DX_NONE) {
    reduction r = {call, 0, call->args->tokens, 0, NULL};
    weft__pool_run(call->state->pool, write_own_row, &r, call->args->tokens);
    return WEFT_OK;
  }
  return call->plan->comm->transport->loads_peers ? reduce_by_loads(call) : reduce_by_gathers(call);
}
