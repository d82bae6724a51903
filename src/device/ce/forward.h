/* What the host and the device agree on for the forward kernel of ce: sizes, the layout of its
 * workspace, and its arguments. Knows no instructions. */
#ifndef WEFT_DEVICE_CE_FORWARD_H
#define WEFT_DEVICE_CE_FORWARD_H

#include "device/ce/forward_schedule.h"
#include "device/comm/peers.h"
#include "device/ptx/address.h"

enum {
  FORWARD_CLUSTER = 2,
  FORWARD_THREADS = 384, /* a producer warpgroup and two that multiply */
  FORWARD_STAGES = 4,
  FORWARD_DEPTH_STEP = 64,       /* one stage: 64 elements are the 128 bytes of the swizzle */
  FORWARD_DEPTH_STEPS_LEAST = 5, /* past H there are zeros */
  FORWARD_X_BYTES = FORWARD_TILE_TOKENS * 128, /* of a stage */
  FORWARD_W_BYTES = FORWARD_TILE_COLS * 128,
  /* stages, two words for each token of a tile, two barriers a stage, a word for each consumer */
  FORWARD_SHARED_BYTES = FORWARD_STAGES * (FORWARD_X_BYTES + FORWARD_W_BYTES) +
                         FORWARD_TILE_TOKENS * 8 + FORWARD_STAGES * 16 + 16,
  /* A consumer warpgroup works alone on its half of a token tile. */
  FORWARD_HALF_TOKENS = FORWARD_TILE_TOKENS / 2,
  FORWARD_ABSENT_THREADS = 128, /* of the kernel of ranks without work */
};

/* Statistics of a row over some columns, in base 2 and after temperature: m = max z·log2 e (as
 * rounded when it was used), s = Σ 2^(y - m), t = Σ 2^(y - m)·(y - m). Partials of half a token
 * tile lie as [segment · 2 + CTA][m, s, t][FORWARD_HALF_TOKENS] f32. */
enum { FORWARD_PARTIAL_BYTES = 3 * FORWARD_HALF_TOKENS * 4 };

/* Control words of a call, all zero before it, one of each a half tile in flight. */
struct forward_control {
  uint32_t arrived[2 * FORWARD_GROUP_TILES_MAX]; /* partials written, over all groups */
  uint32_t merged[2 * FORWARD_GROUP_TILES_MAX];  /* groups whose half tile has been merged */
  uint64_t done;    /* half tiles merged, and above 2^32 rows with bad targets */
  uint32_t started; /* laps begun, by clusters that keep pace */
  uint32_t reserved;
};

/* What went wrong, in device memory for the life of a plan; and the same in memory that the host
 * reads at any time, written when a kernel ends. */
struct forward_errors {
  uint32_t timeout;     /* code of a wait that ran out, 0: none */
  uint32_t bad_targets; /* rows so far */
  uint32_t bad_token;   /* one of them, in the latest call that had any; the host's alone */
  uint32_t reserved;
};

/* A team's exchange: each rank leaves the statistics of its own vocabulary in its arena, announces
 * them half a token tile at a time, and loads and merges those of all ranks in rank order. Two sets
 * take turns by the launch's epoch: when a launch writes a set, all ranks have ended the launch
 * before last, which read it, since the last one could not end without their words of it. */
struct forward_team {
  struct peer_view view; /* ranks ≤ 1: there is no team */
  uint64_t arrived; /* offset of u64 [2][halves][ranks]: epoch + 1 above 2^32, the call's tokens */
  uint64_t statistics; /* offset of f32 [2][halves · FORWARD_HALF_TOKENS][4]: m, s, t as in
                          partials, and the target's logit where the rank has its row, else 0 */
  uint32_t halves;     /* half token tiles that there is room for */
  struct gmem epoch;   /* two u32, see device/comm/team.h */
};

/* What a target's row is, besides a column of the vocabulary. */
enum { FORWARD_NO_COLUMN = -1 };

struct forward_args {
  struct tensor_map x, w; /* K-major: boxes of 64 of H by 128 tokens (half a tile), by 192 rows */
  struct forward_schedule schedule;
  uint32_t pace_steps; /* steps of a lap, see keep_pace(); 0: clusters do not wait for each other */
  uint32_t depth_steps; /* of FORWARD_DEPTH_STEP, at least FORWARD_DEPTH_STEPS_LEAST */
  /* Where rows are not 16-byte aligned: both operands are loaded by ordinary loads, and the maps
   * are not used. */
  uint32_t by_hand;
  uint32_t hidden;
  struct gmem x_rows, w_rows;
  uint64_t x_stride_bytes, w_stride_bytes;
  uint32_t tokens;
  uint32_t rows;              /* of W that count */
  uint32_t target_is_i32;     /* else i64 */
  int64_t vocab_start, vocab; /* targets are global */
  int64_t ignore_index;
  struct gmem target;
  struct gmem temperature; /* f32, or 0: inverse_temperature counts */
  float inverse_temperature;
  float softcap;          /* 0: none */
  uint32_t wants_entropy; /* sums t as well */
  /* outputs, each 0 where it is not wanted */
  struct gmem nll, lse, entropy; /* [tokens] f32 */
  struct gmem stats;             /* [tokens][4] f32 */
  /* workspace */
  struct gmem partials;      /* [2 · group][segments · 2][FORWARD_PARTIAL_BYTES] */
  struct gmem target_logits; /* [2 · group][FORWARD_HALF_TOKENS] f32, base 2 */
  struct gmem control;       /* struct forward_control */
  struct gmem errors;        /* struct forward_errors */
  struct gmem host_errors;   /* its mirror */
  uint64_t timeout_ns;
  struct forward_team team;
};

#endif
