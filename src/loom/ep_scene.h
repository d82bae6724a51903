/* A scene of dispatch and combine for loom's protocols: ranks with tokens, arrays and handles, the
 * kernels of the operations on them, and what must be in the arrays afterwards. Knows the arguments
 * of the device's kernels. */
#ifndef WEFT_LOOM_EP_SCENE_H
#define WEFT_LOOM_EP_SCENE_H

#include "device/ep/ep.h"

#include <stddef.h>
#include <weft/loom.h>

#include "peers.h"

enum {
  EP_RANKS_MAX = 8,
  EP_SCENE_CTAS = 2,
  EP_SCENE_TOKENS_MAX = 6,
  EP_SCENE_TOPK = 3,
  EP_SCENE_LOCAL = 2, /* experts of a rank */
  EP_SCENE_HANDLES = 2,
  EP_SCENE_HIDDEN_MAX = 1160,
};

struct ep_scene_form {
  uint32_t hidden;
  uint32_t fp8, packed, scale_format, columns, topk_i64, no_weights;
  uint32_t masking, fence;
};

/* Arrays of one routing on one rank. Device addresses. */
struct ep_scene_set {
  uint64_t x, topk, weights;
  uint64_t recv_x, recv_scales, recv_weights, counts, offsets, source_counts;
  uint64_t y, row_gradient, out, weight_gradient;
  uint64_t expert, row, kept_counts, kept_offsets, routing; /* the handle */
  uint64_t staged, staged_weights;                          /* of the slot of the same number */
  uint64_t seed, x_seed; /* of the indices; of x and weights, which a second dispatch changes */
};

struct ep_scene_rank {
  uint64_t control; /* epochs, gates, states, statistics */
  uint64_t mask;
  struct ep_scene_set set[EP_SCENE_HANDLES];
};

struct ep_scene {
  struct ep_scene_form form;
  uint32_t ranks, experts, slab_rows, rows_max;
  struct ep_scales scales;
  struct loom_peers peers;
  struct ep_scene_rank rank[EP_RANKS_MAX];
};

/* Returns 0, or -1 where the world is too small. */
int ep_scene_make(struct ep_scene *s, const struct ep_scene_form *form, uint32_t ranks);

/* Tokens of a rank: different on each, none on some. */
uint32_t ep_scene_tokens(uint32_t rank);
/* Slot k of a token: an expert, or -1. */
int32_t ep_scene_topk(const struct ep_scene *s, uint64_t seed, uint32_t rank, uint32_t token,
                      uint32_t k);
uint16_t ep_scene_x(uint64_t seed, uint32_t rank, uint32_t token, uint32_t channel);
float ep_scene_weight(const struct ep_scene *s, uint64_t seed, uint32_t rank, uint32_t token,
                      uint32_t k);

/* Fills x and weights of a set anew, as a caller would between two dispatches: by the host, so only
 * before a run. */
void ep_scene_fill(const struct ep_scene *s, uint32_t rank, uint32_t set, uint64_t x_seed);

/* Launches of one rank, in its stream. */
void ep_scene_dispatch(const struct ep_scene *s, uint32_t rank, uint32_t set, uint32_t halves,
                       uint32_t reuse);
void ep_scene_experts(const struct ep_scene *s, uint32_t rank, uint32_t set);
void ep_scene_combine(const struct ep_scene *s, uint32_t rank, uint32_t set, uint32_t halves,
                      uint32_t weighted);

/* What a host launches that has refused its arguments. */
void ep_scene_refuse(const struct ep_scene *s, uint32_t rank, uint32_t set);

/* A rank that took no part (-1: all did), or that had said how many rows it has before it died, so
 * that these rows are 0. */
struct ep_scene_fault {
  int rank;
  uint32_t counted;
};

/* After a run: compares what rank `rank` has with plain loops over all tokens. `weighted`: rows
 * were combined by weights. Reports the first that differs. */
void ep_scene_check(const struct ep_scene *s, uint32_t rank, uint32_t set,
                    struct ep_scene_fault fault, uint32_t weighted);

#endif
