/* Forward of ce on Hopper: one persistent kernel of clusters of two. One warpgroup's elected thread
 * keeps a ring of stages filled by tensor copies, multicasting its half of the tokens' tile; two
 * warpgroups multiply with wgmma and reduce each tile of logits in registers, so that no logit is
 * ever written. At the end of a unit (forward_schedule.h) a row leaves one partial; whoever writes
 * the last one of half a token tile merges them all, in order, and writes the loss. It knows the
 * wrappers of ptx/ and the contract of ce. An instance defines FORWARD_NAME and FORWARD_WGMMA.
 *
 * Logits are handled in base 2: y = c(x·w) · log2 e / T. */
#include "device/ce/sm90_forward_load.h"
#include "device/ce/sm90_forward_merge.h"

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
    /* No wgmma_fence: only wgmma has touched the sums since the last one. */
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
  if (has_peers(args)) merge_ranks(args);
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
    if (args->by_hand)
      produce_by_hand(args, shared, rank, cluster, clusters);
    else if (warp_index() == 0 && elect_one())
      produce(args, shared, rank, cluster, clusters);
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
