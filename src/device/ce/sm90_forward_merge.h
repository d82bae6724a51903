/* The end of a unit of the forward kernel: a row's partial, and the loss where that was the last
 * one of half a token tile. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_MERGE_H
#define WEFT_DEVICE_CE_SM90_FORWARD_MERGE_H

#include "device/ce/sm90_forward_team.h"

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

/* One token of a half tile whose partials are all there, summed in order. */
DEV struct row_state sum_partials(const struct forward_args *args, const struct half_tile *half,
                                  uint32_t row) {
  const uint32_t count = args->schedule.segments * FORWARD_CLUSTER;
  struct row_state sum = {MINUS_INFINITY, 0.0f, 0.0f};
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
  return sum;
}

/* A row whose partials are all there: writes the loss, or shows the peers what this rank has. */
DEV void finish_row(const struct forward_args *args, const struct half_tile *half, uint32_t row) {
  const uint32_t token = half->first_token + row;
  if (token >= args->tokens) return;
  const struct row_state sum = sum_partials(args, half, row);
  const struct forward_target target = read_target(args, token);
  const float z = target.column != (uint32_t)FORWARD_NO_COLUMN
                      ? ld_global_f32(gmem_add(half->logits, row * 4))
                      : 0.0f;
  if (has_peers(args))
    share_row(args, token, sum, z);
  else
    write_loss(args, token, target, sum, z);
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
    /* The slot's rows of the group before have been merged, so they may be overwritten. */
    if (!wait_u32_ge(gpu, merged, half.group, forward_limit(args), forward_wait_code(args)) &&
        !has_peers(args))
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
  finish_row(args, &half, self->thread);
  bar_sync(barrier, 128);
  if (self->thread == 0) {
    st_u32(release, gpu, merged, half.group + 1);
    const uint64_t done = atom_add_u64(relaxed, gpu, done_word(args), 1);
    if ((uint32_t)done + 1 == args->schedule.token_tiles * 2)
      report_bad_targets(args, (uint32_t)(done >> 32));
  }
}

/* A warp tells the peers of every cta_count()-th half of the token tiles, when this rank's partials
 * of it are merged. */
DEV void announce(const struct forward_args *args) {
  const uint32_t halves = halves_of(args);
  for (uint32_t half = cta_index(); half < halves; half += cta_count()) {
    const struct half_tile h = half_tile(args, half / 2, half % 2);
    wait_u32_ge(gpu, control_word(args, 2 * FORWARD_GROUP_TILES_MAX + h.slot), h.group + 1,
                forward_limit(args), forward_wait_code(args));
    announce_rows(args, half);
  }
}

/* The warps that multiplied merge what the ranks have, after one of each CTA has announced. They
 * have no more tiles then: a warp that waited beside the tiles, looking at memory all the time,
 * made forward ten times as slow. */
DEV void merge_ranks(const struct forward_args *args) {
  const uint32_t halves = halves_of(args);
  /* Read anew: nothing of this is to be kept in registers while there are tiles. */
  const uint32_t warp = cta_index() * 8 + thread_index_anew() / 32 - 4;
  if (warp % 8 == 0) announce(args);
  for (uint32_t half = warp; half < halves; half += cta_count() * 8)
    merge_half(args, half);
  leave_exchange(args, cta_count() * EXCHANGE_WARPS);
}

#endif
