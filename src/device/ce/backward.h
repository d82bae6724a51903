/* What the host and the device agree on for the backward kernel: tile shapes, shared memory,
 * arguments. Knows no instructions.
 *
 * One kernel of clusters of two CTAs computes three products (backward_schedule.h). Shapes as in
 * device/gemm/gemm.h; a stage holds 64 of depth:
 *
 *          CTA's tile              depth        stages     shared by the CTAs
 *   dZ     128 tokens x 192 vocab  H            4 x 40 KB  W, vocab
 *   dX     128 tokens x 256 hidden the wave     4 x 48 KB  W, hidden
 *   dW     256 hidden x 192 vocab  tokens       3 x 56 KB  X, hidden; written transposed
 *
 * The two warpgroups that multiply share a tile of dX and dW. Of dZ, whose results take long to
 * make from the sums, each has a tile of its own, and they take turns. */
#ifndef WEFT_DEVICE_CE_BACKWARD_H
#define WEFT_DEVICE_CE_BACKWARD_H

#include "device/ce/backward_schedule.h"
#include "device/ce/backward_team.h"
#include "device/ce/dx_reduce.h"
#include "device/ptx/address.h"

enum {
  BACKWARD_CLUSTER = 2,
  BACKWARD_THREADS = 384,
  BACKWARD_BEGIN_ROWS = 8, /* of a warp of the kernel before */
  BACKWARD_BEGIN_THREADS = 64 / BACKWARD_BEGIN_ROWS * 32,
  BACKWARD_BEGIN_SHARED_BYTES = 16,
  BACKWARD_DEPTH_STEP = 64,
  BACKWARD_BLOCK_BYTES = 8192, /* 64 lines of 128 bytes */
  BACKWARD_STAGES_DZ = 4,
  BACKWARD_STAGES_MAX = 6,                         /* of the other two */
  BACKWARD_RING_BYTES = 24 * BACKWARD_BLOCK_BYTES, /* the larger: 4 stages of 6 blocks */
  BACKWARD_STAGING_BLOCKS = 4,                     /* two a consumer */
  BACKWARD_BARRIERS = 2 * (BACKWARD_STAGES_DZ + 2 * BACKWARD_STAGES_MAX) + 9,
  BACKWARD_SHARED_BYTES = BACKWARD_RING_BYTES + BACKWARD_STAGING_BLOCKS * BACKWARD_BLOCK_BYTES +
                          (BACKWARD_BARRIERS + 1) * 8 + 16,
  STEP_SCRATCH_BYTES = 128 * 4, /* a consumer's */
  STEP_SHARED_BYTES = BACKWARD_SHARED_BYTES + 2 * STEP_SCRATCH_BYTES,
};

/* Statistics of a row over the 192 columns of one warpgroup's tile: largest product, and in base 2
 * and after temperature s and t as in forward.h. They lie as [half tile][m, s, t][rows] f32, with
 * all rows of all row tiles. */
enum { STEP_SUMS = 3 };

/* Codes in the error word, of waits that ran out. */
enum {
  BACKWARD_LOAD_TIMEOUT = 0x101,
  BACKWARD_STORE_TIMEOUT = 0x102,
  STEP_CONVERT_TIMEOUT = 0x103
};

/* One for each tile and cluster, where args.trace is set; times are the low words of the global
 * timer, in ns: results begin to arrive, are all there, are stored. */
struct backward_stamp {
  uint32_t index, first, last, stored;
};

struct backward_args {
  /* Operands: X and W K-major for dZ, MN-major for dW and dX; dZ K-major for dX, MN-major for dW.
   * MN-major X and W are 3-D where h_wide (hidden % 64 == 0). */
  struct tensor_map x, w, x_mn, w_mn, dz, dz_mn;
  struct tensor_map dz_out, dx_sum, dx_out, dw_out;
  struct backward_schedule schedule;
  uint32_t tokens, hidden, rows; /* rows of W that count */
  uint32_t h_wide;
  uint32_t first, end; /* indices of this launch; the whole pass is [0, count) */
  /* X and W by address. by_hand: their rows are not 16-byte aligned, and have no maps. */
  struct gmem x_rows, w_rows;
  uint64_t x_stride_bytes, w_stride_bytes;
  uint32_t by_hand;
  struct gmem counters;      /* u32 [backward_words] */
  struct gmem constants;     /* f32 [row_tiles * 256, 4]: see sm90_gradient.h */
  struct gmem target_weight; /* f32 [row_tiles * 256] */
  struct gmem residual; /* f32 [row_tiles * 256]: the target's dZ, less what it was rounded to */
  struct gmem unscale;  /* f32 [row_tiles]: 1 over the scale of dZ */
  struct gmem sums;     /* f32 [tokens, sums_stride]: dX so far */
  uint32_t sums_stride;
  /* The call's arguments, as in weft_ce_args. */
  struct gmem target, stats, g_nll, g_entropy, g_lse, temperature; /* 0: absent */
  float temperature_value, softcap;
  int64_t ignore_index, vocab, vocab_start;
  uint32_t target_i64;
  uint32_t dx_f32, dw_f32, dw_accumulate;
  uint32_t dx_mapped, dw_mapped; /* the output can be written by tensor stores, else by element */
  struct gmem dx, dw;
  int64_t dx_stride, dw_stride; /* elements */
  struct gmem errors;           /* u32: code of a wait that ran out, count of bad targets so far */
  struct gmem host_errors;      /* the same in memory that the host reads, and a bad token; or 0 */
  uint32_t count_targets;       /* targets outside the vocabulary are counted */
  uint64_t timeout_ns;
  /* Of a step. The exponentials are f16, in the place of dZ. */
  struct gmem kept;              /* [row_tiles * 256, kept_stride] of 2 bytes */
  struct gmem sums_of_tiles;     /* f32 [2 * col_tiles][STEP_SUMS][row_tiles * 256] */
  struct gmem target_logits;     /* f32 [row_tiles * 256] */
  struct gmem nll, lse, entropy; /* f32 [tokens], 0: not wanted */
  uint64_t kept_stride;
  uint32_t wants_entropy;
  struct backward_team team;
  struct dx_reduce_args exchange; /* where the team has tiles: dx is the part in its arena */
  struct gmem trace;              /* struct backward_stamp [clusters, trace_tiles], 0: none */
  uint32_t trace_tiles;
};

#endif
