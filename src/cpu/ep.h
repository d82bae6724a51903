/* The CPU backend of ep, inside: what its files share. A rank stages what it sends in a slot of its
 * own; receivers read the slots of all ranks, straight from the peers' memory (ep_board.c) or from
 * a copy that an all-gather brought (ep_gather.c). It is plain on purpose: it is what other
 * backends are held against. */
#ifndef WEFT_CPU_EP_H
#define WEFT_CPU_EP_H

#include "cpu/rows.h"
#include "ep/backend.h"

/* The head of a slot: what a rank says of an operation. */
typedef struct weft__ep_slot {
  weft__ep_operation operation;
  int32_t status; /* not WEFT_OK: the rank refuses, and `message` says why */
  int32_t reserved;
  int64_t tokens;
  /* combine, for peers that can load them: rows, their values (NULL: none), and where the rows of a
   * source begin, [experts, ranks] */
  const void *y;
  const float *row_gradient;
  const int64_t *first_row;
  char message[168];
} weft__ep_slot;

/* Offsets in a slot, of a dispatch's data behind the head. */
typedef struct weft__ep_block {
  int64_t topk;    /* int32 [tokens_max, K] */
  int64_t weights; /* f32 [tokens_max, K] */
  int64_t rows;    /* [tokens_max] rows as they are received */
  int64_t scales;  /* 32-bit words [tokens_max, words] */
  int64_t bytes;
} weft__ep_block;

/* Where a received row came from. */
typedef struct weft__ep_origin {
  int32_t rank, token, k;
} weft__ep_origin;

/* The state of a handle. An expert's rows are numbered by `first_row` and by the place that a token
 * has among those that its rank sends to the expert. */
typedef struct weft__ep_route {
  int32_t *expert;          /* [tokens_max, K] of this rank's slots; −1: none */
  int32_t *place;           /* [tokens_max, K] */
  int64_t *source_counts;   /* [L, R] */
  int64_t *offsets;         /* [L + 1] */
  int64_t *first_row;       /* [L, R] */
  int64_t *first_origin;    /* [L, R] index of the first row in `origins` */
  weft__ep_origin *origins; /* received rows in order, without gaps */
  int slot;                 /* of the flight */
} weft__ep_route;

typedef struct weft__ep_board weft__ep_board;

typedef enum weft__ep_reach { WEFT__EP_ALONE, WEFT__EP_SHARED, WEFT__EP_GATHERED } weft__ep_reach;

typedef struct weft__cpu_ep {
  weft__ep_block block;
  weft__ep_reach reach;
  const weft__rows *rows;
  void *symmetric, *owned_workspace;
  unsigned char *slots[WEFT__EP_FLIGHTS]; /* in the symmetric part, as `buffer` */
  bool taken[WEFT__EP_FLIGHTS];           /* by an operation in flight */
  void *buffer;
  /* in the workspace */
  float *sum, *row;            /* [H] */
  int64_t *cursor;             /* [E] */
  const weft__ep_slot **views; /* [R] slots of an operation; NULL: masked */
  int64_t *expert_rows;        /* [L] statistics */
  double *wait_ms;             /* [R] */
  int64_t dispatches, combines;
  /* over peers' memory */
  weft__ep_board *board;
  int64_t slot_op[WEFT__EP_FLIGHTS]; /* last operation posted there, 0: none since the reset */
  int64_t resets;
  /* by all-gather, in the workspace */
  unsigned char *gathered; /* [R] slots */
  unsigned char *staged;   /* [tokens_max, K] rows that came back */
  float *staged_values;    /* [tokens_max, K] */
  unsigned char *chunk;    /* [WEFT__EP_CHUNK] rows and values */
  unsigned char *chunks;   /* [R] of those */
  int64_t *first_origins;  /* [R, L, R] of all ranks */
} weft__cpu_ep;

enum { WEFT__EP_CHUNK = 64 }; /* rows that a rank sends at once in a combine by all-gather */

static inline weft__cpu_ep *weft__ep_state(const weft_ep_plan *plan) {
  return (weft__cpu_ep *)plan->state;
}

static inline weft__ep_route *weft__ep_route_of(const weft_ep_handle *handle) {
  return (weft__ep_route *)handle->state;
}

/* ep_cast.c: a row of bf16 as E4M3 and its scale words. `row` is f32 scratch of H. */
void weft__ep_cast_row(const weft_ep_config *config, const weft__rows *rows, const void *x,
                       float *row, uint8_t *codes, uint32_t *scales);

/* ep_dispatch.c: fills a slot; makes routing and rows from the views. */
void weft__ep_stage(weft_ep_plan *plan, unsigned char *slot, const weft_ep_dispatch_args *args);
void weft__ep_receive_rows(weft_ep_handle *handle, const weft_ep_dispatch_args *args);

/* ep_combine.c: sums what the views, or the staged rows, bring back. */
void weft__ep_sum_rows(weft_ep_handle *handle, const weft_ep_combine_args *args);

/* ep_board.c: ranks of one process, which load each other's slots. begin finds a slot for the next
 * operation; post shows it to the peers; collect fills the views; let_go ends their use, and with
 * `wait` comes back when no peer reads this rank's slot any more. */
weft_status weft__ep_board_create(weft_ep_plan *plan);
weft_status weft__ep_board_connect(weft_ep_plan *plan);
void weft__ep_board_destroy(weft_ep_plan *plan);
weft_status weft__ep_board_begin(weft_ep_plan *plan, int *slot, const char *call);
void weft__ep_board_post(weft_ep_plan *plan, int slot);
weft_status weft__ep_board_collect(weft_ep_plan *plan, int slot, const char *call);
weft_status weft__ep_board_let_go(weft_ep_plan *plan, int slot, bool wait, const char *call);
void weft__ep_board_mask(weft_ep_plan *plan, int32_t *mask);

/* ep_gather.c: ranks that exchange copies. */
weft_status weft__ep_gather_slots(weft_ep_plan *plan, int slot);
weft_status weft__ep_gather_rows(weft_ep_handle *handle, int slot);

#endif
