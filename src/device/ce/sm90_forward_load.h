/* The forward kernel's producer: fills stages with 64 of H of a tokens' tile and of a vocabulary's,
 * by tensor copies, or by ordinary loads where rows have no alignment. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_LOAD_H
#define WEFT_DEVICE_CE_SM90_FORWARD_LOAD_H

#include "device/ce/sm90_forward_base.h"

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

/* A lap is pace_steps of a tile, or what is left of it. All clusters have the same number of laps
 * in each of their units, those that a shorter unit lacks included, and the n-th lap of a cluster
 * begins when all have begun n - 1. The cluster that is furthest behind never waits here, and a lap
 * holds the stages that its consumers need to end the unit before, so no wait goes in a circle. */
struct pace {
  uint32_t laps; /* begun */
  uint32_t clusters;
};

DEV uint32_t laps_of_tile(const struct forward_args *args) {
  return (args->depth_steps - 1) / args->pace_steps + 1;
}

DEV struct gmem started_word(const struct forward_args *args) {
  return gmem_add(args->control, (4 * FORWARD_GROUP_TILES_MAX + 2) * 4);
}

DEV struct pace begin_laps(const struct forward_args *args, struct pace pace, uint32_t count) {
  struct wait_limit limit;
  limit.error = args->errors;
  limit.timeout_ns = args->timeout_ns;
  pace_u32_ge(gpu, started_word(args), pace.laps * pace.clusters, limit, PACE_CODE);
  red_add_u32(relaxed, gpu, started_word(args), count);
  pace.laps += count;
  return pace;
}

/* One thread. Fills stages as they become free, unit after unit. */
DEV void produce(const struct forward_args *args, struct forward_shared shared, uint32_t rank,
                 uint32_t cluster, uint32_t clusters) {
  const uint32_t count = forward_schedule_count(&args->schedule), steps = args->depth_steps;
  const uint32_t paced = args->pace_steps != 0 && rank == 0;
  struct forward_ring ring = {0, 0};
  struct pace pace = {0, clusters};
  for (uint32_t index = cluster; index < count; index += clusters) {
    const struct forward_unit unit = forward_schedule_unit(&args->schedule, index);
    const uint32_t token = unit.token_tile * FORWARD_TILE_TOKENS + rank * FORWARD_HALF_TOKENS;
    for (uint32_t pair = unit.first_pair; pair < unit.first_pair + unit.pairs; pair++) {
      uint32_t lap = 0;
      for (uint32_t step = 0; step < steps; step++) {
        if (paced && step == lap) {
          pace = begin_laps(args, pace, 1);
          lap += args->pace_steps;
        }
        ring = load_stage(args, shared, rank, ring, pair % 2 ? steps - 1 - step : step, token,
                          tile_row(pair, rank));
      }
    }
    if (paced && unit.pairs < forward_schedule_longest(&args->schedule))
      pace =
          begin_laps(args, pace,
                     (forward_schedule_longest(&args->schedule) - unit.pairs) * laps_of_tile(args));
  }
  /* Others may have one unit more: nobody waits for a cluster that has none. */
  if (paced)
    red_add_u32(relaxed, gpu, started_word(args),
                forward_schedule_longest(&args->schedule) * laps_of_tile(args));
  /* Consumers open a tile before they know whether there is one. */
  for (uint32_t step = 0; step < FORWARD_LEAD; step++)
    ring = load_stage(args, shared, rank, ring, step, 0, 0);
}

/* Two elements of a row as a pair; what lies past the row's end or is no row is 0. */
DEV uint32_t load_pair(struct gmem row, uint32_t k, uint32_t hidden, uint32_t is_row) {
  const uint32_t lo = is_row && k < hidden ? ld_global_u16(gmem_add(row, (uint64_t)k * 2)) : 0;
  const uint32_t hi =
      is_row && k + 1 < hidden ? ld_global_u16(gmem_add(row, (uint64_t)k * 2 + 2)) : 0;
  return lo | hi << 16;
}

/* `count` rows of an operand from `first`, FORWARD_DEPTH_STEP of H from `depth`, laid out as a
 * tensor copy would: lines of 128 bytes whose 16-byte pieces are permuted by the line's number. */
DEV void load_operand_by_hand(struct gmem rows, uint64_t stride_bytes, uint32_t first,
                              uint32_t rows_count, uint32_t count, uint32_t depth, uint32_t hidden,
                              struct smem to, uint32_t thread) {
  for (uint32_t i = thread; i < count * 8; i += 128) {
    const uint32_t line = i / 8, piece = i % 8, k = depth + piece * 8;
    const uint32_t is_row = first + line < rows_count;
    const struct gmem row = gmem_add(rows, (uint64_t)(first + line) * stride_bytes);
    struct u32x4 v;
    v.x = load_pair(row, k, hidden, is_row);
    v.y = load_pair(row, k + 2, hidden, is_row);
    v.z = load_pair(row, k + 4, hidden, is_row);
    v.w = load_pair(row, k + 6, hidden, is_row);
    st_shared_u32x4(smem_add(to, line * 128 + ((piece ^ (line & 7)) << 4)), v);
  }
}

/* As load_stage(), by the whole warpgroup: each CTA loads all of its tiles. */
DEV struct forward_ring load_stage_by_hand(const struct forward_args *args,
                                           struct forward_shared shared, uint32_t thread,
                                           struct forward_ring ring, uint32_t step, uint32_t token,
                                           uint32_t row) {
  const uint32_t depth = step * FORWARD_DEPTH_STEP;
  mbarrier_wait(smem_add(shared.empty, ring.stage * 8), ring.parity ^ 1);
  load_operand_by_hand(args->x_rows, args->x_stride_bytes, token, args->tokens, FORWARD_TILE_TOKENS,
                       depth, args->hidden, smem_add(shared.x, ring.stage * FORWARD_X_BYTES),
                       thread);
  load_operand_by_hand(args->w_rows, args->w_stride_bytes, row, args->rows, FORWARD_TILE_COLS,
                       depth, args->hidden, smem_add(shared.w, ring.stage * FORWARD_W_BYTES),
                       thread);
  /* Orders this thread's stores to the stage before the wgmma that reads it. */
  fence_proxy_async_shared_cta(forward_by_hand);
  bar_sync(PRODUCER_BARRIER, 128);
  if (thread == 0) mbarrier_arrive(smem_add(shared.full, ring.stage * 8));
  return ring_next(ring);
}

/* The warpgroup. Slower than produce() by an order of magnitude, for any address and stride. */
DEV void produce_by_hand(const struct forward_args *args, struct forward_shared shared,
                         uint32_t rank, uint32_t cluster, uint32_t clusters) {
  const uint32_t count = forward_schedule_count(&args->schedule), thread = thread_index();
  struct forward_ring ring = {0, 0};
  for (uint32_t index = cluster; index < count; index += clusters) {
    const struct forward_unit unit = forward_schedule_unit(&args->schedule, index);
    const uint32_t token = unit.token_tile * FORWARD_TILE_TOKENS;
    for (uint32_t pair = unit.first_pair; pair < unit.first_pair + unit.pairs; pair++)
      for (uint32_t step = 0; step < args->depth_steps; step++)
        ring = load_stage_by_hand(args, shared, thread, ring, step, token, tile_row(pair, rank));
  }
  for (uint32_t step = 0; step < FORWARD_LEAD; step++)
    ring = load_stage_by_hand(args, shared, thread, ring, step, 0, 0);
}

#endif
