/* Forward of ce on Hopper: one persistent kernel of clusters of two. One warpgroup's elected thread
 * keeps a ring of stages filled by tensor copies, multicasting its half of the tokens' tile; two
 * warpgroups multiply with wgmma and reduce each tile of logits in registers, so that no logit is
 * ever written. At the end of a unit (forward_schedule.h) a row leaves one partial; whoever writes
 * the last one of half a token tile merges them all, in order, and writes the loss. It knows the
 * wrappers of ptx/ and the contract of ce. An instance defines FORWARD_NAME and FORWARD_WGMMA.
 *
 * Logits are handled in base 2: y = c(x·w) · log2 e / T. */
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
  STEPS_AT_ONCE = 8,    /* partials whose loads are in flight together while merging */
  WAIT_CODE = 1,        /* of a wait for the workspace, in the word of errors */
  CONSUMER_BARRIER = 1, /* the first of the named barriers of the consumers */
};

/* Registers a thread: 168 at launch; the producer gives away what the sums need. Literals, which
 * the instruction wants. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

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

/* ---- The producer ---- */

/* Loads the next stage when it is free: 64 of H of the tokens' tile and of the vocabulary's. */
DEV struct forward_ring load_stage(const struct forward_args *args, struct forward_shared shared,
                                   uint32_t rank, struct forward_ring ring, uint32_t step,
                                   uint32_t token, uint32_t row) {
  const struct smem full = smem_add(shared.full, ring.stage * 8);
  const int32_t depth = (int32_t)(step * FORWARD_DEPTH_STEP);
  /* Both CTAs' warpgroups have read the stage, which the multicast is about to overwrite in both. A
   * fresh barrier counts as one whose odd phase has completed. */
  mbarrier_wait(smem_add(shared.empty, ring.stage * 8), ring.parity ^ 1);
  mbarrier_arrive_expect_tx(full, FORWARD_X_BYTES + FORWARD_W_BYTES);
  tensor_load_2d_multicast(
      smem_add(shared.x, ring.stage * FORWARD_X_BYTES + rank * (FORWARD_X_BYTES / 2)), &args->x,
      full, ALL_CTAS, depth, (int32_t)token);
  tensor_load_2d(smem_add(shared.w, ring.stage * FORWARD_W_BYTES), &args->w, full, depth,
                 (int32_t)row);
  return ring_next(ring);
}

/* One thread. Fills stages as they become free, unit after unit. */
DEV void produce(const struct forward_args *args, struct forward_shared shared, uint32_t rank,
                 uint32_t cluster, uint32_t clusters) {
  const uint32_t count = forward_schedule_count(&args->schedule);
  struct forward_ring ring = {0, 0};
  for (uint32_t index = cluster; index < count; index += clusters) {
    const struct forward_unit unit = forward_schedule_unit(&args->schedule, index);
    const uint32_t token = unit.token_tile * FORWARD_TILE_TOKENS + rank * FORWARD_HALF_TOKENS;
    for (uint32_t pair = unit.first_pair; pair < unit.first_pair + unit.pairs; pair++)
      for (uint32_t step = 0; step < args->depth_steps; step++)
        ring = load_stage(args, shared, rank, ring, step, token, tile_row(pair, rank));
  }
  /* Consumers open a tile before they know whether there is one. */
  for (uint32_t step = 0; step < FORWARD_LEAD; step++)
    ring = load_stage(args, shared, rank, ring, step, 0, 0);
}

/* ---- Consumers: one tile of logits ---- */

struct consumer {
  uint32_t index, thread; /* 0 or 1; in the warpgroup */
  uint32_t rank;          /* of the CTA in its cluster */
};

/* Tells the producers of both CTAs that this warpgroup has read a stage: one arrival of the
 * warpgroup for each. Default semantics (release, CTA scope): what has been done with the stage are
 * reads by wgmma, which its wait has completed; no write of this thread has to be seen over there,
 * and a wider release costs a MEMBAR a stage. */
DEV void release_stage(struct forward_shared shared, uint32_t stage, uint32_t thread) {
  if (thread < FORWARD_CLUSTER)
    mbarrier_arrive_remote(cluster_map(smem_add(shared.empty, stage * 8), thread));
}

/* Queues the products of one stage for one block of 64 tokens; `adds`: to what the sums hold. */
DEV void multiply_stage(struct forward_shared shared, const struct consumer *self, uint32_t stage,
                        uint32_t block, uint32_t adds, float *sums) {
  /* Eight rows are 1024 bytes, 16 of H 32 bytes. Descriptors count in units of 16 bytes. */
  const uint64_t x = wgmma_desc(smem_add(shared.x, (self->index * BLOCKS + block) * BLOCK_BYTES),
                                BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B) +
                     stage * (FORWARD_X_BYTES / 16);
  const uint64_t w =
      wgmma_desc(shared.w, BLOCK_BYTES, 1024, WGMMA_SWIZZLE_128B) + stage * (FORWARD_W_BYTES / 16);
  UNROLL for (uint32_t k = 0; k < FORWARD_DEPTH_STEP / 16; k++)
      FORWARD_WGMMA(sums, x + k * 2, w + k * 2, adds || k != 0, 0, 0);
}

/* Where a consumer stands in the ring. */
struct progress {
  struct forward_ring next; /* stage that is waited for next */
  uint32_t held;            /* oldest stage not yet released */
};

DEV void release_held(struct forward_shared shared, const struct consumer *self,
                      struct progress *at) {
  release_stage(shared, at->held, self->thread);
  at->held = at->held + 1 == FORWARD_STAGES ? 0 : at->held + 1;
}

/* Waits for the next FORWARD_LEAD stages and queues their products for block 0; they open a tile
 * where `opens`. */
DEV void lead_steps(struct forward_shared shared, const struct consumer *self, struct progress *at,
                    uint32_t opens, float *sums) {
  uint32_t stages[FORWARD_LEAD];
  UNROLL for (uint32_t i = 0; i < FORWARD_LEAD; i++) {
    mbarrier_wait(smem_add(shared.full, at->next.stage * 8), at->next.parity);
    stages[i] = at->next.stage;
    at->next = ring_next(at->next);
  }
  wgmma_fence();
  UNROLL for (uint32_t i = 0; i < FORWARD_LEAD; i++)
      multiply_stage(shared, self, stages[i], 0, !opens || i != 0, sums);
  wgmma_commit();
}

/* The same stages again for block 1. */
DEV void follow_steps(struct forward_shared shared, const struct consumer *self,
                      const struct progress *at, uint32_t opens, float *sums) {
  wgmma_fence();
  UNROLL for (uint32_t i = 0; i < FORWARD_LEAD; i++) multiply_stage(
      shared, self, (at->next.stage + FORWARD_STAGES - FORWARD_LEAD + i) % FORWARD_STAGES, 1,
      !opens || i != 0, sums);
  wgmma_commit();
}

/* Multiplies a tile whose first steps are queued for block 0. At its end block 0 is complete, and
 * the last steps of block 1 are the latest group that runs. Stages are released one step late, so
 * that the tensor cores always have the next step queued. */
DEV void multiply(const struct forward_args *args, struct forward_shared shared,
                  const struct consumer *self, struct progress *at,
                  float sums[BLOCKS][ACCUMULATORS]) {
  const uint32_t steps = args->depth_steps - 2 * FORWARD_LEAD;
  follow_steps(shared, self, at, 1, sums[1]);
  uint32_t step = 0;
  do {
    mbarrier_wait(smem_add(shared.full, at->next.stage * 8), at->next.parity);
    wgmma_fence();
    multiply_stage(shared, self, at->next.stage, 0, 1, sums[0]);
    multiply_stage(shared, self, at->next.stage, 1, 1, sums[1]);
    wgmma_commit();
    at->next = ring_next(at->next);
    wgmma_wait(1);
    /* What was complete before this step: the opening steps, or the step before. */
    if (step == 0) {
      UNROLL for (uint32_t i = 1; i < FORWARD_LEAD; i++) release_held(shared, self, at);
    }
    release_held(shared, self, at);
  } while (++step < steps);
  lead_steps(shared, self, at, 0, sums[0]);
  follow_steps(shared, self, at, 0, sums[1]);
  wgmma_wait(1);
  release_held(shared, self, at);
}

/* cap · tanh(a / cap), off by less than 2e-7·cap and 4e-7·|a|: the series near 0, where the
 * quotient of exponentials loses its digits. */
DEV float soft_cap(float a, float cap, float inverse_cap) {
  const float x = a * inverse_cap, size = max_f32(x, -x), x2 = x * x;
  const float e = ex2(-2.0f * LOG2_E * size);
  const float far = (1.0f - e) * rcp(1.0f + e);
  const float near =
      fma_f32(x2,
              fma_f32(x2, fma_f32(x2, fma_f32(x2, 62.0f / 2835.0f, -17.0f / 315.0f), 2.0f / 15.0f),
                      -1.0f / 3.0f),
              1.0f) *
      x;
  return cap * (size < 0.3f ? near : x < 0.0f ? -far : far);
}

/* What a thread has seen of one row: its columns only, until the unit ends. m is the largest
 * c(x·w), before the scale to base 2; s and t are relative to it. */
struct row_state {
  float m, s, t;
};

/* Adds the row's columns of a block; `below` picks the thread's row that is 8 further down. wgmma's
 * results (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): thread t of the warpgroup
 * holds, for each 8 columns j, elements 4j and 4j + 1 of row t / 32 * 16 + t % 32 / 4 in columns
 * 8j + t % 4 * 2 and the next, and 4j + 2, 4j + 3 of the row 8 below. */
DEV void add_columns(const float *d, uint32_t below, float scale, uint32_t wants_entropy,
                     struct row_state *row) {
  float m0 = row->m, m1 = row->m;
  UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
    m0 = max_f32(m0, d[4 * j + 2 * below]);
    m1 = max_f32(m1, d[4 * j + 2 * below + 1]);
  }
  const float m = max_f32(m0, m1);
  /* All columns so far may be past the end: then every exponent below is minus infinity. */
  const float offset = m == MINUS_INFINITY ? 0.0f : -(m * scale);
  const float step = max_f32(fma_f32(row->m, scale, offset), LEAST_EXPONENT);
  const float factor = ex2(step);
  float s0 = 0.0f, s1 = 0.0f;
  if (wants_entropy) {
    float t0 = 0.0f, t1 = 0.0f;
    UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
      const float y0 = fma_f32(d[4 * j + 2 * below], scale, offset);
      const float y1 = fma_f32(d[4 * j + 2 * below + 1], scale, offset);
      const float e0 = ex2(y0), e1 = ex2(y1);
      s0 += e0;
      s1 += e1;
      t0 = fma_f32(e0, max_f32(y0, LEAST_EXPONENT), t0);
      t1 = fma_f32(e1, max_f32(y1, LEAST_EXPONENT), t1);
    }
    row->t = fma_f32(factor, fma_f32(step, row->s, row->t), t0 + t1);
  } else {
    UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
      s0 += ex2(fma_f32(d[4 * j + 2 * below], scale, offset));
      s1 += ex2(fma_f32(d[4 * j + 2 * below + 1], scale, offset));
    }
  }
  row->s = fma_f32(factor, row->s, s0 + s1);
  row->m = m;
}

/* Keeps the logit of a row's target, `column` columns into the tile, where this thread holds it. */
DEV void keep_target(const float *d, uint32_t below, uint32_t column, uint32_t lane, float scale,
                     struct smem to) {
  UNROLL for (uint32_t j = 0; j < FORWARD_TILE_COLS / 8; j++) {
    UNROLL for (uint32_t e = 0; e < 2; e++) {
      if (column == j * 8 + lane % 4 * 2 + e) st_shared_f32(to, d[4 * j + 2 * below + e] * scale);
    }
  }
}

/* Adds a block of a tile of logits, whose first row of W is `first`, to its rows' states. */
DEV void reduce(const struct forward_args *args, struct forward_shared shared,
                const struct consumer *self, uint32_t block, uint32_t first, float scale, float *d,
                struct row_state rows[2]) {
  const uint32_t lane = self->thread % 32;
  wgmma_pin(d, ACCUMULATORS);
  if (args->softcap > 0.0f) {
    const float inverse_cap = 1.0f / args->softcap;
    UNROLL for (uint32_t j = 0; j < ACCUMULATORS; j++) d[j] =
        soft_cap(d[j], args->softcap, inverse_cap);
  }
  if (first + FORWARD_TILE_COLS > args->rows) {
    UNROLL for (uint32_t j = 0; j < ACCUMULATORS; j++) {
      if (first + j / 4 * 8 + lane % 4 * 2 + j % 2 >= args->rows) d[j] = MINUS_INFINITY;
    }
  }
  /* of the token tile */
  const uint32_t row = (self->index * BLOCKS + block) * 64 + self->thread / 32 * 16 + lane / 4;
  const uint32_t column0 = ld_shared_u32(smem_add(shared.columns, row * 4)) - first;
  const uint32_t column1 = ld_shared_u32(smem_add(shared.columns, row * 4 + 32)) - first;
  if (warp_ballot(column0 < FORWARD_TILE_COLS || column1 < FORWARD_TILE_COLS)) {
    keep_target(d, 0, column0, lane, scale, smem_add(shared.logits, row * 4));
    keep_target(d, 1, column1, lane, scale, smem_add(shared.logits, row * 4 + 32));
  }
  add_columns(d, 0, scale, args->wants_entropy, &rows[0]);
  add_columns(d, 1, scale, args->wants_entropy, &rows[1]);
}

/* ---- Consumers: the end of a unit ---- */

/* Adds statistics of other columns of the row, both in base 2. Exact in either order but for the
 * order of one addition. */
DEV struct row_state merge(struct row_state a, struct row_state b) {
  struct row_state r;
  r.m = max_f32(a.m, b.m);
  /* Where m is minus infinity the differences are NaN, which max takes for the other operand. */
  const float da = max_f32(a.m - r.m, LEAST_EXPONENT), db = max_f32(b.m - r.m, LEAST_EXPONENT);
  const float fa = ex2(da), fb = ex2(db);
  r.s = fma_f32(fa, a.s, fb * b.s);
  r.t = fma_f32(fa, fma_f32(da, a.s, a.t), fb * fma_f32(db, b.s, b.t));
  return r;
}

/* What a token's target says. */
struct forward_target {
  uint32_t ignored, bad, column; /* column: the row of this W, or FORWARD_NO_COLUMN */
};

DEV struct forward_target read_target(const struct forward_args *args, uint32_t token) {
  struct forward_target r;
  const int64_t id =
      args->target_is_i32
          ? (int64_t)(int32_t)ld_global_u32(gmem_add(args->target, (uint64_t)token * 4))
          : (int64_t)ld_global_u64(gmem_add(args->target, (uint64_t)token * 8));
  const int64_t local = id - args->vocab_start;
  r.ignored = id == args->ignore_index;
  r.bad = !r.ignored && (id < 0 || id >= args->vocab);
  r.column = !r.ignored && !r.bad && local >= 0 && local < (int64_t)args->rows
                 ? (uint32_t)local
                 : (uint32_t)FORWARD_NO_COLUMN;
  return r;
}

/* Half a token tile in flight, and its places in the workspace. */
struct half_tile {
  uint32_t first_token;
  uint32_t slot;  /* which half in flight */
  uint32_t group; /* whose earlier groups have used the slot before */
  struct gmem partials, logits;
};

DEV struct half_tile half_tile(const struct forward_args *args, uint32_t token_tile,
                               uint32_t consumer) {
  struct half_tile h;
  const uint32_t partials = args->schedule.segments * FORWARD_CLUSTER;
  h.first_token = token_tile * FORWARD_TILE_TOKENS + consumer * FORWARD_HALF_TOKENS;
  h.group = token_tile / args->schedule.group;
  h.slot = token_tile % args->schedule.group * 2 + consumer;
  h.partials = gmem_add(args->partials, (uint64_t)h.slot * partials * FORWARD_PARTIAL_BYTES);
  h.logits = gmem_add(args->target_logits, h.slot * FORWARD_HALF_TOKENS * 4);
  return h;
}

DEV struct gmem control_word(const struct forward_args *args, uint32_t index) {
  return gmem_add(args->control, index * 4);
}

/* u64: half tiles merged, and rows with bad targets in the upper half. One word, so that whoever
 * completes the first half knows the other without any order among the accesses. */
DEV struct gmem done_word(const struct forward_args *args) {
  return control_word(args, 4 * FORWARD_GROUP_TILES_MAX);
}

DEV void write_partial(struct gmem to, uint32_t row, struct row_state r) {
  st_global_f32(gmem_add(to, row * 4), r.m);
  st_global_f32(gmem_add(to, (FORWARD_HALF_TOKENS + row) * 4), r.s);
  st_global_f32(gmem_add(to, (2 * FORWARD_HALF_TOKENS + row) * 4), r.t);
}

/* One token of a half tile whose partials are all there: sums them in order and writes the loss. */
DEV void write_loss(const struct forward_args *args, const struct half_tile *half, uint32_t row) {
  const uint32_t count = args->schedule.segments * FORWARD_CLUSTER;
  const uint32_t token = half->first_token + row;
  struct row_state sum = {MINUS_INFINITY, 0.0f, 0.0f};
  if (token >= args->tokens) return;
  for (uint32_t first = 0; first < count; first += STEPS_AT_ONCE) {
    struct row_state part[STEPS_AT_ONCE];
    UNROLL for (uint32_t i = 0; i < STEPS_AT_ONCE; i++) {
      const uint32_t k = first + i < count ? first + i : count - 1;
      const struct gmem from =
          gmem_add(half->partials, (uint64_t)k * FORWARD_PARTIAL_BYTES + row * 4);
      part[i].m = ld_global_f32(from);
      part[i].s = ld_global_f32(gmem_add(from, FORWARD_HALF_TOKENS * 4));
      part[i].t = ld_global_f32(gmem_add(from, 2 * FORWARD_HALF_TOKENS * 4));
    }
    UNROLL for (uint32_t i = 0; i < STEPS_AT_ONCE; i++) {
      if (first + i < count) sum = merge(sum, part[i]);
    }
  }
  const struct forward_target target = read_target(args, token);
  const uint64_t at = (uint64_t)token * 4;
  const float z = target.column != (uint32_t)FORWARD_NO_COLUMN
                      ? ld_global_f32(gmem_add(half->logits, row * 4))
                      : 0.0f;
  const float log_s = lg2(sum.s);
  if (args->nll.a) {
    const float nll = ((sum.m - z) + log_s) * LN_2;
    st_global_f32(gmem_add(args->nll, at), target.ignored ? 0.0f : target.bad ? NOT_A_NUMBER : nll);
  }
  if (args->lse.a) st_global_f32(gmem_add(args->lse, at), (sum.m + log_s) * LN_2);
  if (args->entropy.a)
    st_global_f32(gmem_add(args->entropy, at),
                  target.ignored ? 0.0f : (log_s - sum.t / sum.s) * LN_2);
  if (args->stats.a) {
    struct f32x4 stats;
    stats.x = sum.m * LN_2;
    stats.y = sum.s;
    stats.z = z * LN_2;
    stats.w = args->wants_entropy ? sum.t * LN_2 : 0.0f;
    const struct gmem to = gmem_add(args->stats, at * 4);
    st_global_f32(to, stats.x);
    st_global_f32(gmem_add(to, 4), stats.y);
    st_global_f32(gmem_add(to, 8), stats.z);
    st_global_f32(gmem_add(to, 12), stats.w);
  }
  if (target.bad) {
    (void)atom_add_u64(relaxed, gpu, done_word(args), (uint64_t)1 << 32);
    st_u32(relaxed, sys, gmem_add(args->host_errors, 8), token);
  }
}

/* The last half tile of the call, which found `bad` targets, tells the host. */
DEV void report_bad_targets(const struct forward_args *args, uint32_t bad) {
  const struct gmem total = gmem_add(args->errors, 4);
  if (bad == 0) return;
  bad += ld_global_u32(total);
  st_global_u32(total, bad);
  st_u32(relaxed, sys, gmem_add(args->host_errors, 4), bad);
}

/* Writes the warpgroup's rows of a unit; merges them where these were the last. */
DEV void finish_unit(const struct forward_args *args, struct forward_shared shared,
                     const struct consumer *self, const struct forward_unit *unit, float scale,
                     struct row_state rows[BLOCKS][2]) {
  const uint32_t barrier = CONSUMER_BARRIER + self->index, lane = self->thread % 32;
  const struct half_tile half = half_tile(args, unit->token_tile, self->index);
  const struct gmem merged = control_word(args, 2 * FORWARD_GROUP_TILES_MAX + half.slot);
  const struct gmem partial =
      gmem_add(half.partials,
               (uint64_t)(unit->segment * FORWARD_CLUSTER + self->rank) * FORWARD_PARTIAL_BYTES);
  if (half.group > 0 && self->thread == 0) {
    struct wait_limit limit;
    limit.error = args->errors;
    limit.timeout_ns = args->timeout_ns;
    /* The slot's rows of the group before have been merged, so they may be overwritten. */
    if (!wait_u32_ge(gpu, merged, half.group, limit, WAIT_CODE))
      st_u32(relaxed, sys, args->host_errors, WAIT_CODE);
  }
  bar_sync(barrier, 128); /* that wait, and the targets' logits in shared memory */
  UNROLL for (uint32_t i = 0; i < BLOCKS; i++) {
    UNROLL for (uint32_t below = 0; below < 2; below++) {
      struct row_state r = rows[i][below];
      r.m = r.m * scale; /* the rounded value that its exponents were relative to */
      UNROLL for (uint32_t mask = 1; mask <= 2; mask *= 2) {
        struct row_state other;
        other.m = shfl_xor_f32(r.m, mask);
        other.s = shfl_xor_f32(r.s, mask);
        other.t = shfl_xor_f32(r.t, mask);
        r = merge(r, other);
      }
      if (lane % 4 == 0)
        write_partial(partial, i * 64 + self->thread / 32 * 16 + below * 8 + lane / 4, r);
    }
  }
  const uint32_t place = (self->index * FORWARD_HALF_TOKENS + self->thread) * 4;
  const uint32_t column = ld_shared_u32(smem_add(shared.columns, place));
  const uint32_t tile = column / FORWARD_TILE_COLS;
  if (tile % FORWARD_CLUSTER == self->rank && column != (uint32_t)FORWARD_NO_COLUMN &&
      tile / FORWARD_CLUSTER - unit->first_pair < unit->pairs)
    st_global_f32(gmem_add(half.logits, self->thread * 4),
                  ld_shared_f32(smem_add(shared.logits, place)));
  bar_sync(barrier, 128);
  if (self->thread == 0) {
    const uint32_t all = args->schedule.segments * FORWARD_CLUSTER * (half.group + 1);
    const uint32_t before = atom_add_u32(acq_rel, gpu, control_word(args, half.slot), 1);
    st_shared_u32(smem_add(shared.last, self->index * 4), before + 1 == all);
  }
  bar_sync(barrier, 128);
  if (!ld_shared_u32(smem_add(shared.last, self->index * 4))) return;
  write_loss(args, &half, self->thread);
  bar_sync(barrier, 128);
  if (self->thread == 0) {
    st_u32(release, gpu, merged, half.group + 1);
    const uint64_t done = atom_add_u64(relaxed, gpu, done_word(args), 1);
    if ((uint32_t)done + 1 == args->schedule.token_tiles * 2)
      report_bad_targets(args, (uint32_t)(done >> 32));
  }
}

/* One of the two warpgroups that multiply: half of the tokens of each tile. */
DEV void consume(const struct forward_args *args, struct forward_shared shared,
                 const struct consumer *self, uint32_t cluster, uint32_t clusters) {
  const uint32_t count = forward_schedule_count(&args->schedule);
  const float inverse =
      args->temperature.a ? 1.0f / ld_global_f32(args->temperature) : args->inverse_temperature;
  const float scale = inverse * LOG2_E;
  struct progress at = {{0, 0}, 0};
  float sums[BLOCKS][ACCUMULATORS];
  lead_steps(shared, self, &at, 1, sums[0]);
  uint32_t index = cluster; /* there are no more clusters than units */
  do {
    const struct forward_unit unit = forward_schedule_unit(&args->schedule, index);
    const uint32_t token =
        unit.token_tile * FORWARD_TILE_TOKENS + self->index * FORWARD_HALF_TOKENS + self->thread;
    struct row_state rows[BLOCKS][2];
    UNROLL for (uint32_t i = 0; i < BLOCKS * 2; i++) {
      rows[i / 2][i % 2].m = MINUS_INFINITY;
      rows[i / 2][i % 2].s = rows[i / 2][i % 2].t = 0.0f;
    }
    st_shared_u32(smem_add(shared.columns, (self->index * FORWARD_HALF_TOKENS + self->thread) * 4),
                  token < args->tokens ? read_target(args, token).column
                                       : (uint32_t)FORWARD_NO_COLUMN);
    bar_sync(CONSUMER_BARRIER + self->index, 128);
    const uint32_t end = unit.first_pair + unit.pairs;
    uint32_t pair = unit.first_pair;
    do {
      const uint32_t row = tile_row(pair, self->rank);
      multiply(args, shared, self, &at, sums);
      /* Block 0 is reduced while the last steps of block 1 run, and block 1 while the first steps
       * of the next tile run for block 0. */
      reduce(args, shared, self, 0, row, scale, sums[0], rows[0]);
      wgmma_pin(sums[0], ACCUMULATORS);
      lead_steps(shared, self, &at, 1, sums[0]);
      wgmma_wait(1);
      UNROLL for (uint32_t i = 0; i < FORWARD_LEAD; i++) release_held(shared, self, &at);
      reduce(args, shared, self, 1, row, scale, sums[1], rows[1]);
    } while (++pair < end);
    finish_unit(args, shared, self, &unit, scale, rows);
    index += clusters;
  } while (index < count);
  wgmma_wait(0);
  wgmma_pin(sums[0], ACCUMULATORS);
}

DEV void forward_kernel(const struct forward_args *args) {
  const struct forward_shared shared = forward_shared_layout();
  const uint32_t warpgroup = warp_index() / 4, rank = cluster_rank();
  const uint32_t cluster = cta_index() / FORWARD_CLUSTER, clusters = cta_count() / FORWARD_CLUSTER;
  if (thread_index() == 0) {
    for (uint32_t s = 0; s < FORWARD_STAGES; s++) {
      mbarrier_init(smem_add(shared.full, s * 8), 1);                    /* the producer */
      mbarrier_init(smem_add(shared.empty, s * 8), 2 * FORWARD_CLUSTER); /* all consumers */
    }
    /* The barriers' initial state, before the arrivals and multicasts of both CTAs: it is all that
     * the relaxed barrier has to hand over. */
    fence_mbarrier_init(forward_barriers);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (warpgroup == 0) {
    setmaxnreg_dec(PRODUCER_REGISTERS);
    if (warp_index() == 0 && elect_one()) produce(args, shared, rank, cluster, clusters);
  } else {
    setmaxnreg_inc(CONSUMER_REGISTERS);
    struct consumer self;
    self.index = warpgroup - 1;
    self.thread = thread_index() % 128;
    self.rank = rank;
    consume(args, shared, &self, cluster, clusters);
  }
  /* Neither CTA leaves while the other may still write its memory or arrive on its barriers. */
  cluster_sync();
}

WEFT_KERNEL_CLUSTER(FORWARD_NAME, FORWARD_THREADS, FORWARD_CLUSTER, struct forward_args, args) {
  forward_kernel(&args);
}
