/* The CPU backend of ce from the inside: sizes, workspace, and the phases of a call.
 *
 * A call walks over token chunks; within a chunk, backward walks over vocabulary waves. The unit of
 * the vocabulary is a tile of rows of W; the unit of tokens is a block of rows. Data of a wave:
 *
 *   x [chunk, Hp] f32      the chunk's hidden states, converted, zero-padded rows
 *   z [tile][chunk, ld]    products x·wᵀ, then in place the gradients of their logits
 *   tile_stats [tile][chunk]
 *
 *   logits phase   (block, tile)   z = x·w_tileᵀ, then statistics or gradient of each row
 *   weights phase  (tile, columns) dw_tile (+)= zᵀ·x, after step's gradient of the tile's rows
 *   inputs phase   (block, columns) dx (+)= z·w
 *
 * Every item writes what no other item writes, so results do not depend on the threads' order. */
#ifndef WEFT_CPU_CE_H
#define WEFT_CPU_CE_H

#include "ce/backend.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

typedef struct weft__cpu_layout {
  int threads;
  int64_t padded_hidden; /* Hp: H rounded up to 16 floats, so that rows stay aligned */
  int64_t tile_rows;     /* vocabulary rows of a tile; depends on H alone */
  int64_t tile_ld;       /* floats between rows of a z tile; no power of two, which would alias */
  int64_t tiles;         /* tiles that hold this rank's real rows */
  int64_t
      least_rows; /* rows of the smallest GEMM, a multiple of ROW_GROUP: see weft__cpu_padded() */
  int64_t kept_chunk;     /* tokens of a chunk of step that keeps its logits; 0: it recomputes */
  int64_t loss_chunk;     /* tokens of a chunk of forward */
  int64_t gradient_chunk; /* tokens of a chunk of backward */
  int64_t wave_tiles;     /* tiles of a wave of backward */
  int64_t waves;
  bool dx_buffer; /* dX is summed in a buffer of our own, not in the caller's dx */
  /* bytes of each array, multiples of 64 */
  int64_t x_bytes, z_bytes, tile_stats_bytes, stats_bytes, gathered_bytes, target_bytes, dx_bytes;
  int64_t scratch_bytes; /* one thread's: a converted tile of W, then a block's z of forward
                            or a row of dW, then a panel */
  int64_t local_bytes, symmetric_bytes;
} weft__cpu_layout;

enum {
  WEFT__ROW_GROUP = 96,         /* a GEMM's rows are a multiple of this: 32, and 12 for Haswell's */
  WEFT__BLOCK_ROWS = 480,       /* tokens of one item of the logits and inputs phases */
  WEFT__EXCHANGE_TOKENS = 4096, /* tokens of one exchange of statistics; the same on all ranks */
  WEFT__MAX_THREADS = 1024,     /* of a rank */
  WEFT__NO_CAP = -1
};

/* Fills *out for at most `kept_cap` tokens a chunk of step (WEFT__NO_CAP: none, 0: recompute),
 * within the budget of the config. *least gets the smallest budget that works. Errors: WORKSPACE.
 */
weft_status weft__cpu_layout_make(const weft_ce_config *config, int64_t ranks, int64_t units,
                                  int64_t kept_cap, weft__cpu_layout *out, int64_t *least);

/* Rows that a buffer for `tokens` rows holds. The forward's bits must not depend on how many rows a
 * GEMM has, but a BLAS may take another kernel, with another order of summation, for a small or odd
 * product, or for its last rows. So every logits GEMM has a multiple of ROW_GROUP rows, a full tile
 * of columns, an inner size of at least 16 and more than 10⁶ multiply-adds, the rest being zeros
 * that are never looked at. Where even that leaves a difference, weft__cpu_invariant_blas() finds
 * it. */
static inline int64_t weft__cpu_padded(const weft__cpu_layout *layout, int64_t tokens) {
  const int64_t whole = tokens / WEFT__BLOCK_ROWS * WEFT__BLOCK_ROWS, rest = tokens - whole;
  if (rest == 0) return whole;
  const int64_t rounded = (rest + WEFT__ROW_GROUP - 1) / WEFT__ROW_GROUP * WEFT__ROW_GROUP;
  return whole + (rounded > layout->least_rows ? rounded : layout->least_rows);
}

typedef struct weft__cpu_ce {
  weft__cpu_layout layout;
  const weft__rows *rows;
  bool blas_logits; /* the logits may come from BLAS */
  int blas_threads; /* announced to blas.h */
  weft__pool *pool;
  void *owned_workspace; /* NULL where the caller gave it */
  void *symmetric;
  void **peers; /* [ranks] the ranks' symmetric parts, where they can be loaded */
  /* in the workspace */
  float *x, *z;
  weft__stats *tile_stats, *stats, *gathered;
  int64_t *target;
  unsigned char *scratch;
  float *dx_sum; /* [max_tokens, H]: this rank's part of dX; in symmetric memory in a team */
} weft__cpu_ce;

/* Values of target[] for rows that do not count. */
enum { WEFT__IGNORED = -1, WEFT__BAD_TARGET = -2 };

/* One call as its phases see it. */
typedef struct weft__cpu_call {
  weft_ce_plan *plan;
  weft__cpu_ce *state;
  const weft_ce_args *args;
  weft__logit_scale scale;
  int64_t first_token, tokens; /* the chunk */
  int64_t first_tile, tiles;   /* the wave */
  int64_t block_rows, blocks;
  int64_t columns, column_blocks; /* of the weights or inputs phase */
  bool keep_logits;               /* the logits phase leaves the products in their tile */
  bool first_wave;                /* dX is written, not added to */
  bool add_to_dw;
  bool pending_gradient; /* the wave's tiles still hold products */
  /* [tokens] of the chunk, final over the team; NULL while they are being found. With them, the
   * logits phase turns z into its gradient at once. */
  const weft__stats *row_stats;
  int64_t bad_targets, first_bad; /* how many, and the first of them */
} weft__cpu_call;

/* ce_invariant.c: whether the open BLAS gives a row the same bits wherever it stands in such a
 * GEMM. Found once by trying, with the BLAS open; where not, the logits come from
 * weft__rows.product. Thread-safe. Errors: MEMORY (the next call tries again). */
weft_status weft__cpu_invariant_blas(bool *yes);

/* ce_logits.c */
void weft__cpu_load_chunk(weft__cpu_call *call);
void weft__cpu_load_targets(weft__cpu_call *call);
void weft__cpu_drop_rows(weft__cpu_call *call);
void weft__cpu_logits_phase(weft__cpu_call *call);
void weft__cpu_merge_tiles(weft__cpu_call *call);

/* ce_gradient.c */
void weft__cpu_gradient_rows(const weft__cpu_call *call, int64_t tile, int64_t first_row,
                             int64_t rows, float *z);
void weft__cpu_weights_phase(weft__cpu_call *call);
void weft__cpu_inputs_phase(weft__cpu_call *call);
void weft__cpu_zero_padding(weft__cpu_call *call);

/* ce_reduce.c */
weft_status weft__cpu_exchange_stats(weft__cpu_call *call);
void weft__cpu_write_loss(const weft__cpu_call *call);
weft_status weft__cpu_reduce_dx(weft__cpu_call *call);

/* Real rows of a tile. */
static inline int64_t weft__cpu_tile_rows(const weft__cpu_call *call, int64_t tile) {
  const int64_t rows = call->plan->rows - tile * call->state->layout.tile_rows;
  return rows < call->state->layout.tile_rows ? rows : call->state->layout.tile_rows;
}

/* z of a tile of the wave. */
static inline float *weft__cpu_tile(const weft__cpu_call *call, int64_t tile_in_wave) {
  const weft__cpu_layout *l = &call->state->layout;
  return call->state->z + tile_in_wave * weft__cpu_padded(l, call->tokens) * l->tile_ld;
}

static inline float *weft__cpu_scratch(const weft__cpu_call *call, int thread) {
  return (float *)(call->state->scratch + thread * call->state->layout.scratch_bytes);
}

#endif
