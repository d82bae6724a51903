/* What a backend of ce offers: a struct of functions, and the plan they work on. Backends include
 * this header; it knows teams, but no backend. */
#ifndef WEFT_CE_BACKEND_H
#define WEFT_CE_BACKEND_H

#include <float.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <weft/weft.h>

#include "comm/comm.h"

typedef struct weft__ce_backend weft__ce_backend;

struct weft_ce_plan {
  const weft__ce_backend *backend;
  weft_comm *comm;       /* NULL: one rank without a team */
  weft_ce_config config; /* checked, defaults resolved */
  weft_ce_plan_info info;
  int64_t rank, ranks;
  int64_t rows; /* rows of this rank's W that count: without padding */
  atomic_int busy;
  int64_t errors_told; /* of async_error's count, to the team */
  weft__watch watch;
  void *state; /* the backend's own */
};

typedef enum weft__ce_phase { WEFT__FORWARD, WEFT__BACKWARD, WEFT__STEP } weft__ce_phase;

struct weft__ce_backend {
  const char *name;
  /* Sizes and times of a checked config on a machine, which need not be this one. `token_chunk` in
   * *info caps what step may choose (0: no cap), so that the ranks of a team can agree. */
  weft_status (*layout)(const weft_ce_config *config, const weft_ce_machine *machine,
                        weft_ce_plan_info *info);
  /* Makes plan->state; plan->info holds the agreed layout. Not collective. */
  weft_status (*create)(weft_ce_plan *plan);
  /* Exchanges what peers need of each other. Collective; called when every rank's create succeeded.
   */
  weft_status (*connect)(weft_ce_plan *plan);
  void (*destroy)(weft_ce_plan *plan);
  /* What only the backend can refuse of this rank's call; it may resolve *args further. Not
   * collective: it comes before the ranks agree, after which none may refuse alone. */
  weft_status (*check)(const weft_ce_plan *plan, weft_ce_args *args, const void *stream);
  /* One call. Arguments are checked and agreed. Collective. */
  weft_status (*run)(weft_ce_plan *plan, weft__ce_phase phase, const weft_ce_args *args,
                     void *stream);
  /* What kernels of the plan have found since it was made, without waiting for them; status WEFT_OK
   * where there is nothing. NULL where calls return all their errors. */
  void (*async_error)(weft_ce_plan *plan, weft_async_error *error);
  /* Brings back to how it began what the plan shares with its peers: part of weft_comm_reset().
   * NULL where there is nothing. */
  weft_status (*reset)(weft_ce_plan *plan);
  /* Calls only enqueue work: the ranks don't meet on the host, and what they would compare there
   * travels with the data. */
  bool enqueues;
};

extern const weft__ce_backend weft__ce_cpu, weft__ce_sm90;

/* Bytes of an element; 0 for what is no dtype. */
int64_t weft__dtype_bytes(int dtype);

/* Whether logits may be divided by `value` (a temperature, a cap): the reciprocal of a smaller one
 * is infinite, and every logit with it. */
static inline bool weft__divides(float value) {
  return value > 0.0f && value <= FLT_MAX && 1.0f / value <= FLT_MAX;
}

/* A call's row starts where stride is 0 mean contiguous. */
static inline int64_t weft__stride(int64_t stride, int64_t hidden) {
  return stride != 0 ? stride : hidden;
}

/* Rows of a reduce-scattered dX that rank r owns: [first, last). */
static inline void weft__scatter_rows(int64_t tokens, int64_t ranks, int64_t rank, int64_t *first,
                                      int64_t *last) {
  const int64_t shard = (tokens + ranks - 1) / ranks;
  *first = rank * shard < tokens ? rank * shard : tokens;
  *last = *first + shard < tokens ? *first + shard : tokens;
}

#endif
