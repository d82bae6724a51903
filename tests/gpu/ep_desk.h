/* Ranks of dispatch and combine on GPU 0, all issued by one thread: plans, handles, arrays on the
 * device, and checks of what is in them by the laws of tests/ep. */
#ifndef WEFT_TESTS_GPU_EP_DESK_H
#define WEFT_TESTS_GPU_EP_DESK_H

#include "ep/ep_case.h"
#include "gpu.h"

enum { DESK_HANDLES = 3 };

/* Device arrays of one routing of one rank, with what the host knows of them. */
struct desk_set {
  ep_inputs in, again; /* `again`: x and weights of a second dispatch on the handle */
  ep_received got;     /* the host's copies */
  cuda_address x, topk, weights, x_again, weights_again;
  cuda_address recv_x, recv_scales, recv_weights, counts, offsets, source_counts;
  cuda_address y, row_gradient, out, weight_gradient;
  weft_ep_handle *handle;
};

struct desk_rank {
  weft_comm *comm;
  weft_ep_plan *plan;
  void *stream;
  struct desk_set set[DESK_HANDLES];
};

struct desk {
  ep_case c[DESK_HANDLES]; /* the sets' cases differ in their seeds */
  int sets;
  weft_ep_plan_info info;
  struct desk_rank rank[EP_RANKS];
};

/* Worlds are made once for each number of ranks and time limit. */
void desk_world(int64_t ranks, int64_t timeout_ms, weft_comm **comms);

/* Makes plans and arrays of `sets` routings on a world. Exits where that fails. */
void desk_open(struct desk *d, const ep_case *c, int sets, weft_comm **comms,
               const weft_ep_config *config);
void desk_close(struct desk *d);

weft_ep_dispatch_args desk_dispatch_args(const struct desk *d, int64_t rank, int set, int again);
weft_ep_combine_args desk_combine_args(const struct desk *d, int64_t rank, int set, int weighted);

/* Waits for the ranks' streams. */
void desk_wait(struct desk *d);
/* All bits set in what the next operation writes. */
void desk_poison(struct desk *d, int64_t rank, int set);

/* 0, or 1 with words. */
int desk_check_received(struct desk *d, int64_t rank, int set, int again, char why[256]);
int desk_check_combined(struct desk *d, int64_t rank, int set, int weighted, int64_t dead,
                        char why[256]);
/* Plays the experts of a rank: fills y and row_gradient from what the rank has received. */
void desk_experts(struct desk *d, int64_t rank, int set);

#endif
