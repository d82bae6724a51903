/* The end of a unit of the forward kernel: a row's partial, and the loss where that was the last
 * one of half a token tile. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_MERGE_H
#define WEFT_DEVICE_CE_SM90_FORWARD_MERGE_H

#include "device/ce/sm90_forward_reduce.h"

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
  for (uint32_t first = 0; first < count; first += PARTIALS_AT_ONCE) {
    struct row_state part[PARTIALS_AT_ONCE];
    UNROLL for (uint32_t i = 0; i < PARTIALS_AT_ONCE; i++) {
      const uint32_t k = first + i < count ? first + i : count - 1;
      const struct gmem from =
          gmem_add(half->partials, (uint64_t)k * FORWARD_PARTIAL_BYTES + row * 4);
      part[i].m = ld_global_f32(from);
      part[i].s = ld_global_f32(gmem_add(from, FORWARD_HALF_TOKENS * 4));
      part[i].t = ld_global_f32(gmem_add(from, 2 * FORWARD_HALF_TOKENS * 4));
    }
    UNROLL for (uint32_t i = 0; i < PARTIALS_AT_ONCE; i++) {
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

#endif
