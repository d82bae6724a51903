/* The GPU backend of ep for compute capability 9.0 from the inside: a plan's state and memory, and
 * the way from a call's arguments to the kernels' (device/ep). A call only enqueues work: it never
 * waits for the device, allocates nothing and can be captured into a CUDA graph. */
#ifndef WEFT_CUDA_EP_H
#define WEFT_CUDA_EP_H

#include "cuda/cuda.h"
#include "cuda/team.h"
#include "device/ep/ep.h"
#include "ep/backend.h"

/* Offsets and sizes, from the config and the number of ranks alone. */
typedef struct weft__sm90_ep_layout {
  /* symmetric: words of both slots, then the buffer */
  int64_t words_bytes, buffer;
  /* local: what the kernels keep between launches, then what send halves keep, for each slot */
  int64_t state, waits, expert_rows, operations, control_bytes;
  int64_t staged[EP_SLOTS], staged_weights[EP_SLOTS];
  /* a handle */
  int64_t expert, row, kept_counts, kept_offsets, routing;
  /* kernels */
  struct ep_pieces dispatch_pieces, combine_pieces;
  uint32_t dispatch_stages, combine_stages;
  uint32_t dispatch_shared, combine_shared;
  struct ep_scales scales;
  uint32_t slab_rows;
} weft__sm90_ep_layout;

/* A handle's memory. A plan keeps those of handles that are gone, since to free memory of a GPU is
 * to wait for it. */
typedef struct weft__sm90_ep_route {
  cuda_address memory;
  int slot; /* of the flight */
  struct weft__sm90_ep_route *next_spare;
} weft__sm90_ep_route;

typedef struct weft__sm90_ep {
  weft__sm90_ep_layout layout;
  int device; /* its ordinal */
  struct cuda_kernel dispatch, combine;
  uint32_t ctas; /* of each launch, the same on all ranks */
  cuda_address workspace;
  int owns_workspace;
  struct cuda_team team; /* comm NULL: a rank alone */
  struct peer_view view;
  cuda_address block;    /* own symmetric part */
  cuda_address bases;    /* of a rank alone: the table of its view */
  weft__gpu_rank *alone; /* and its chain */
  uint32_t *words; /* of the host, seen by the GPU: [ranks] masks, and the error of a rank alone */
  bool taken[EP_SLOTS];
  weft__sm90_ep_route *spares;
} weft__sm90_ep;

static inline weft__sm90_ep *weft__sm90_ep_state(const weft_ep_plan *plan) {
  return (weft__sm90_ep *)plan->state;
}

/* ep_layout.c. Errors: UNSUPPORTED. */
weft_status weft__sm90_ep_layout_make(const weft_ep_config *config, int64_t ranks,
                                      weft__sm90_ep_layout *layout, weft_ep_plan_info *info);

/* ep_args.c: the kernels' arguments of halves of an operation in a slot. Needs no device. */
void weft__sm90_ep_dispatch_args(const weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                 uint32_t halves, int slot, int64_t tokens, int reuse,
                                 struct ep_dispatch_args *out);
void weft__sm90_ep_combine_args(const weft_ep_handle *handle, const weft_ep_combine_args *args,
                                uint32_t halves, int slot, struct ep_combine_args *out);

#endif
