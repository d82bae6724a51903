/* What a backend of ep offers: a struct of functions, the plan and the handles that they work on,
 * and the order of rows. Backends include this header; it knows teams, but no backend. */
#ifndef WEFT_EP_BACKEND_H
#define WEFT_EP_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <weft/weft.h>

#include "comm/comm.h"

typedef struct weft__ep_backend weft__ep_backend;

enum {
  WEFT__EP_FLIGHTS = 2, /* operations that may be sent and not yet received */
  WEFT__EP_BLOCK = 128  /* channels that share a scale */
};

struct weft_ep_plan {
  const weft__ep_backend *backend;
  weft_comm *comm;       /* NULL: one rank without a team */
  weft_ep_config config; /* checked, defaults resolved */
  weft_ep_plan_info info;
  int64_t rank, ranks;
  atomic_int busy;
  int64_t handles;  /* alive */
  int64_t flights;  /* operations sent and not yet received */
  int64_t resets;   /* of the team, when the plan last looked: flights of before are lost */
  int64_t sequence; /* operations since then, refused ones too: the same on all ranks */
  weft__watch watch;
  void *state; /* the backend's own */
};

typedef enum weft__ep_kind { WEFT__EP_NONE, WEFT__EP_DISPATCH, WEFT__EP_COMBINE } weft__ep_kind;

/* The arguments of a call of either kind. */
typedef struct weft__ep_args {
  weft_ep_dispatch_args dispatch;
  weft_ep_combine_args combine;
  void *stream;
} weft__ep_args;

/* What an operation is, as the ranks compare it. Its number holds the resets of the team above 32
 * bits of sequence, so that numbers only grow. */
typedef struct weft__ep_operation {
  int64_t number;
  int64_t routing; /* number of the dispatch that made the routing in use; 0: it is made here */
  int32_t kind;    /* weft__ep_kind */
  int32_t weights; /* dispatch: weights go along; combine: values of rows. May differ by rank */
} weft__ep_operation;

struct weft_ep_handle {
  weft_ep_plan *plan;
  int64_t tokens;            /* of the routing */
  int64_t routing;           /* number of the dispatch that made it, 0: none */
  weft__ep_operation flight; /* kind NONE: none */
  int64_t flight_tokens;
  int64_t resets; /* of the team, when the flight began */
  void *state;    /* the backend's own */
};

struct weft__ep_backend {
  const char *name;
  int64_t row_alignment; /* of rows in the caller's arrays, in bytes; 0: arrays are of the host, and
                            elements' own alignment will do */
  /* Sizes of a checked config on a machine, which need not be this one. */
  weft_status (*layout)(const weft_ep_config *config, const weft_ep_machine *machine,
                        weft_ep_plan_info *info);
  /* Makes plan->state. Not collective. */
  weft_status (*create)(weft_ep_plan *plan);
  /* Exchanges what peers need of each other. Collective; called when every rank's create succeeded.
   */
  weft_status (*connect)(weft_ep_plan *plan);
  void (*destroy)(weft_ep_plan *plan);
  /* The plan's part of weft_comm_reset(), and of weft_comm_async_error(); may be NULL. */
  weft_status (*reset)(weft_ep_plan *plan);
  void (*ask)(weft_ep_plan *plan);
  weft_status (*handle_create)(weft_ep_handle *handle);
  void (*handle_destroy)(weft_ep_handle *handle);
  /* What only the backend can refuse. Not collective. */
  weft_status (*check)(const weft_ep_plan *plan, const void *stream);
  /* The halves of one operation. `own` is the status of this rank's checks: where it is bad, send
   * tells the peers and returns it with its message. Collective. */
  weft_status (*send)(weft_ep_handle *handle, const weft__ep_operation *operation,
                      const weft__ep_args *args, weft_status own, const char *call);
  weft_status (*receive)(weft_ep_handle *handle, const weft__ep_args *args, const char *call);
  /* Both halves at once; NULL where that is send, then receive. */
  weft_status (*both)(weft_ep_handle *handle, const weft__ep_operation *operation,
                      const weft__ep_args *args, weft_status own, const char *call);
  void *(*buffer)(weft_ep_plan *plan);
  void (*mask)(weft_ep_plan *plan, int32_t *mask);
  void (*stats)(weft_ep_plan *plan, weft_ep_stats *stats, bool reset);
};

extern const weft__ep_backend weft__ep_cpu, weft__ep_sm90;

static inline int64_t weft__ep_local_experts(const weft_ep_plan *plan) {
  return plan->config.experts / plan->ranks;
}

/* The scale words of a row: one a block of channels, or one for four of them. */
int64_t weft__ep_scale_words(const weft_ep_config *config);

/* Bytes of a received row. */
int64_t weft__ep_row_bytes(const weft_ep_config *config);

/* Sizes of a rank's receive arrays: experts_local, rows_max, scale_stride, recv_bytes, scale_bytes,
 * buffer_bytes. */
void weft__ep_receive_sizes(const weft_ep_config *config, int64_t ranks, weft_ep_plan_info *info);

/* Where rows go: from source_counts [experts, ranks] of a rank's own experts, the first row of each
 * expert (offsets [experts + 1]) and of each source rank within it (first_row [experts, ranks]).
 * `slab_rows` is R·tokens_max. */
void weft__ep_place_rows(const weft_ep_config *config, int64_t experts, int64_t ranks,
                         const int64_t *source_counts, int64_t *offsets, int64_t *first_row);

/* The index of scale word `word` of row `row` in recv_scales. */
int64_t weft__ep_scale_index(const weft_ep_config *config, const weft_ep_plan_info *info,
                             int64_t row, int64_t word);

#endif
