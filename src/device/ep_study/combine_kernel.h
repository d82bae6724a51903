/* The receive protocol of an expert-parallel combine, as a study of its fences (docs/fences.md):
 * peers store rows into this rank's memory and announce them by a flag; one thread acquires the
 * flag and bulk-loads the rows into a ring in shared memory; readers read the stages with ordinary
 * loads and hand them back. An instance defines COMBINE_NAME and where its fences stand:
 *
 *   COMBINE_FENCE_ACQUIRED  .global, after each acquire                        (hazard A)
 *   COMBINE_FENCE_LOAD      unqualified, before each bulk load                 (A and B)
 *   COMBINE_FENCE_READ      .shared::cta, by each reader before it arrives     (hazard B) */
#include "device/ep_study/combine.h"
#include "device/ptx/ptx.h"

DEV struct smem combine_stage(uint32_t stage) {
  return smem_add(smem_base(), stage * COMBINE_ROW_BYTES);
}
DEV struct smem combine_full(uint32_t stage) {
  return smem_add(smem_base(), COMBINE_STAGES * COMBINE_ROW_BYTES + stage * 8);
}
DEV struct smem combine_empty(uint32_t stage) {
  return smem_add(combine_full(stage), COMBINE_STAGES * 8);
}

/* Stores this rank's rows into every inbox, with ordinary stores, and announces each inbox. */
DEV void combine_send(const struct combine_args *args) {
  const uint64_t block = (uint64_t)args->tokens * COMBINE_ROW_BYTES;
  for (uint32_t to = 0; to < args->ranks; to++) {
    const struct gmem from = gmem_add(args->source, to * block);
    const struct gmem dest = gmem_add(args->inbox[to], args->rank * block);
    for (uint64_t at = 16 * thread_index(); at < block; at += 16 * thread_count())
      st_global_u32x4(gmem_add(dest, at), ld_global_u32x4(gmem_add(from, at)));
    bar_sync(0, COMBINE_THREADS);
    if (thread_index() == 0) st_u32(release, sys, gmem_add(args->flags[to], 4 * args->rank), 1);
  }
}

/* One thread. Fills the ring with the rows of token 0 from every sender, then of token 1, ... */
DEV void combine_load(const struct combine_args *args) {
  struct wait_limit limit;
  limit.error = args->error;
  limit.timeout_ns = args->timeout_ns;
  uint32_t stage = 0, parity = 0;
  for (uint32_t token = 0; token < args->tokens; token++) {
    for (uint32_t from = 0; from < args->ranks; from++) {
      if (token == 0) {
        wait_u32_ge(sys, gmem_add(args->flags[args->rank], 4 * from), 1, limit, 1 + from);
#if COMBINE_FENCE_ACQUIRED
        fence_proxy_async_global(combine_acquired); /* the sender's stores -> our bulk loads */
#endif
      }
      /* a fresh barrier counts as one whose odd phase has completed */
      mbarrier_wait(combine_empty(stage), parity ^ 1);
#if COMBINE_FENCE_LOAD
      /* the sender's stores, and the readers' loads of the stage -> this bulk load */
      fence_proxy_async(combine_load_fence);
#endif
      mbarrier_arrive_expect_tx(combine_full(stage), COMBINE_ROW_BYTES);
      bulk_load(combine_stage(stage),
                gmem_add(args->inbox[args->rank],
                         ((uint64_t)from * args->tokens + token) * COMBINE_ROW_BYTES),
                COMBINE_ROW_BYTES, combine_full(stage));
      if (++stage == COMBINE_STAGES) stage = 0, parity ^= 1;
    }
  }
}

/* One of COMBINE_READERS threads: 16 bytes of each row. Sums in order of the senders. */
DEV void combine_read(const struct combine_args *args, uint32_t reader) {
  uint32_t stage = 0, parity = 0;
  for (uint32_t token = 0; token < args->tokens; token++) {
    struct f32x4 sum;
    sum.x = sum.y = sum.z = sum.w = 0.0f;
    for (uint32_t from = 0; from < args->ranks; from++) {
      mbarrier_wait(combine_full(stage), parity);
      const struct f32x4 v = ld_shared_f32x4(smem_add(combine_stage(stage), 16 * reader));
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
#if COMBINE_FENCE_READ
      fence_proxy_async_shared_cta(combine_stage_read); /* own load -> the next bulk load */
#endif
      mbarrier_arrive(combine_empty(stage));
      if (++stage == COMBINE_STAGES) stage = 0, parity ^= 1;
    }
    st_global_f32x4(gmem_add(args->out, (uint64_t)token * COMBINE_ROW_BYTES + 16 * reader), sum);
  }
}

WEFT_KERNEL(COMBINE_NAME, COMBINE_THREADS, struct combine_args, args) {
  if (cta_index() == 0) {
    combine_send(&args);
    return;
  }
  if (thread_index() == 0) {
    for (uint32_t s = 0; s < COMBINE_STAGES; s++) {
      mbarrier_init(combine_full(s), 1);
      mbarrier_init(combine_empty(s), COMBINE_READERS);
    }
  }
  bar_sync(0, COMBINE_THREADS);
  if (thread_index() >= COMBINE_THREADS - COMBINE_READERS)
    combine_read(&args, thread_index() - (COMBINE_THREADS - COMBINE_READERS));
  else if (thread_index() == 0)
    combine_load(&args);
}
