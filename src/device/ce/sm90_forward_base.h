/* What the parts of the forward kernel share: constants, the layout of shared memory, and the ring
 * of stages. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_BASE_H
#define WEFT_DEVICE_CE_SM90_FORWARD_BASE_H

#include <assert.h>

#include "device/ce/forward.h"
#include "device/ptx/ptx.h"

/* Steps at both ends of a tile that a warpgroup queues for one of its blocks and then for the
 * other, so that it has products running while it reduces a block. Twice as many stages are held.
 */
#ifndef FORWARD_LEAD
#define FORWARD_LEAD 2
#endif

enum {
  ALL_CTAS = (1 << FORWARD_CLUSTER) - 1,
  BLOCKS = 2,                           /* of 64 tokens, a consumer warpgroup's */
  ACCUMULATORS = FORWARD_TILE_COLS / 2, /* a thread and block */
  BLOCK_BYTES = 64 * 128,
  PARTIALS_AT_ONCE = 8, /* partials whose loads are in flight together while merging */
  PACE_CODE = 2,        /* of a wait for other clusters */
  WAIT_CODE = 1,        /* of a wait for the workspace, in the word of errors */
  EXCHANGE_WARPS = 8,   /* of a CTA that take part in a team's exchange: the consumers' */
  /* Named barriers: of each consumer from the first, and of the producer's warpgroup. */
  CONSUMER_BARRIER = 1,
  PRODUCER_BARRIER = 3,
};

/* Registers a thread. A CTA gets what its launch bounds leave each of its 384 threads, and no more:
 * with less than the consumers wait for given away by the producer, they would wait for ever.
 * Literals, which the instruction wants. */
#define LAUNCH_REGISTERS   168
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * LAUNCH_REGISTERS,
              "setmaxnreg would never return");

#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f
/* Exponents below this give 0; no arithmetic is done with infinite ones. */
#define LEAST_EXPONENT (-1000.0f)
#define MINUS_INFINITY bits_f32(0xff800000u)
#define NOT_A_NUMBER   bits_f32(0x7fc00000u)

struct forward_shared {
  struct smem x, w, full, empty; /* arrays over the stages */
  struct smem columns;           /* [tokens of the tile] i32, the target's row of W or none */
  struct smem logits;            /* [tokens of the tile] f32, the target's, once it was found */
  struct smem last;              /* [consumers] u32 */
};

DEV struct forward_shared forward_shared_layout(void) {
  struct forward_shared s;
  s.x = smem_base();
  s.w = smem_add(s.x, FORWARD_STAGES * FORWARD_X_BYTES);
  s.columns = smem_add(s.w, FORWARD_STAGES * FORWARD_W_BYTES);
  s.logits = smem_add(s.columns, FORWARD_TILE_TOKENS * 4);
  s.full = smem_add(s.logits, FORWARD_TILE_TOKENS * 4);
  s.empty = smem_add(s.full, FORWARD_STAGES * 8);
  s.last = smem_add(s.empty, FORWARD_STAGES * 8);
  return s;
}

/* A position in the ring. The parity is that of the phase that is waited for next on `full`. */
struct forward_ring {
  uint32_t stage, parity;
};

DEV struct forward_ring ring_next(struct forward_ring r) {
  r.stage++;
  if (r.stage == FORWARD_STAGES) {
    r.stage = 0;
    r.parity ^= 1;
  }
  return r;
}

/* First row of W of the CTA's tile in a pair. */
DEV uint32_t tile_row(uint32_t pair, uint32_t rank) {
  return (pair * FORWARD_CLUSTER + rank) * FORWARD_TILE_COLS;
}

struct consumer {
  uint32_t index, thread; /* 0 or 1; in the warpgroup */
  uint32_t rank;          /* of the CTA in its cluster */
};

#endif
