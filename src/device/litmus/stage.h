/* Rules about shared memory inside a CTA: stages that bulk copies fill and empty, and barriers.
 * Warp 0 produces, warp 1 consumes. */
#include "body.h"

/* A stage read by ordinary loads is filled again. */
WEFT_KERNEL(LITMUS(hazard_b), 64, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_init(empty_barrier(), 32);
  }
  bar_sync(0, 64);
  if (thread_index() == 0) {
    for (uint32_t i = 0; i < 3; i++) {
      mbarrier_wait(empty_barrier(), (i & 1) ^ 1);
      mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
      bulk_load(stage_base(), gmem_add(args.data, STAGE_BYTES * i), STAGE_BYTES, full_barrier());
    }
  } else if (thread_index() >= 32) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 3; i++) {
      mbarrier_wait(full_barrier(), i & 1);
      sum += ld_shared_u32x4(smem_add(stage_base(), 16 * lane_index())).x;
#if LITMUS_MENDED
      fence_proxy_async_shared_cta(hazard_b_read); /* stage loads -> the next bulk load */
#endif
      mbarrier_arrive(empty_barrier());
    }
    st_global_u32(gmem_add(args.out, 4 * lane_index()), sum);
  }
}

/* Lanes read, one of them arrives for all. */
WEFT_KERNEL(LITMUS(elected_arrive), 64, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_init(empty_barrier(), 1);
  }
  bar_sync(0, 64);
  if (thread_index() == 0) {
    for (uint32_t i = 0; i < 3; i++) {
      mbarrier_wait(empty_barrier(), (i & 1) ^ 1);
      mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
      bulk_load(stage_base(), gmem_add(args.data, STAGE_BYTES * i), STAGE_BYTES, full_barrier());
    }
  } else if (thread_index() >= 32) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 3; i++) {
      mbarrier_wait(full_barrier(), i & 1);
      sum += ld_shared_u32x4(smem_add(stage_base(), 16 * lane_index())).x;
      fence_proxy_async_shared_cta(elected_read); /* stage loads -> the next bulk load */
#if LITMUS_MENDED
      warp_sync();
#endif
      if (elect_one()) mbarrier_arrive(empty_barrier());
    }
    st_global_u32(gmem_add(args.out, 4 * lane_index()), sum);
  }
}

/* A stage written by ordinary stores is read by a bulk store. */
WEFT_KERNEL(LITMUS(store_bulk_store), 64, struct litmus_args, args) {
  st_shared_u32x4(smem_add(stage_base(), 16 * thread_index()), splat(thread_index()));
#if LITMUS_MENDED
  fence_proxy_async_shared_cta(stage_filled); /* stage stores -> bulk store */
#endif
  bar_sync(0, 64);
  if (thread_index() == 0) {
    bulk_store(args.out, stage_base(), 1024);
    bulk_commit();
    bulk_wait_group(0);
  }
}

/* Bulk groups belong to a thread: another one's wait says nothing. */
WEFT_KERNEL(LITMUS(wrong_lane_wait), 64, struct litmus_args, args) {
  const struct smem mine = smem_add(stage_base(), 16 * thread_index());
  st_shared_u32x4(mine, splat(1));
  fence_proxy_async_shared_cta(wrong_lane_filled); /* stage stores -> bulk store */
  bar_sync(0, 64);
  if (thread_index() == 0) {
    bulk_store(args.out, stage_base(), 1024);
    bulk_commit();
  }
#if LITMUS_MENDED
  if (thread_index() == 0) bulk_wait_group_read(0);
#else
  if (thread_index() == 32) bulk_wait_group_read(0);
#endif
  bar_sync(0, 64);
  st_shared_u32x4(mine, splat(2));
}

/* wait_group.read says that sources were read, not that the destination is written. */
WEFT_KERNEL(LITMUS(wait_read), 32, struct litmus_args, args) {
  if (cta_index() == 1) {
    st_shared_u32x4(smem_add(stage_base(), 16 * thread_index()), splat(7));
    fence_proxy_async_shared_cta(wait_read_filled); /* stage stores -> bulk store */
    warp_sync();
    if (thread_index() == 0) {
      bulk_store(args.data, stage_base(), STAGE_BYTES);
      bulk_commit();
#if LITMUS_MENDED
      bulk_wait_group(0);
#else
      bulk_wait_group_read(0);
#endif
      st_u32(release, gpu, args.flag, 1);
    }
  } else if (thread_index() == 0) {
    wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1);
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* A phase that expects fewer bytes than come. */
WEFT_KERNEL(LITMUS(short_expect), 64, struct litmus_args, args) {
  if (thread_index() == 0) mbarrier_init(full_barrier(), 1);
  bar_sync(0, 64);
  if (thread_index() == 0) {
#if LITMUS_MENDED
    mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
#else
    mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES - 16);
#endif
    bulk_load(stage_base(), args.data, STAGE_BYTES - 16, full_barrier());
    bulk_load(smem_add(stage_base(), STAGE_BYTES - 16), gmem_add(args.data, STAGE_BYTES - 16), 16,
              full_barrier());
  }
  mbarrier_wait(full_barrier(), 0);
  const uint32_t v = ld_shared_u32(smem_add(stage_base(), 8 * thread_index()));
  st_global_u32(gmem_add(args.out, 4 * thread_index()), v);
}

/* Barriers used by threads that nothing tells of their initialisation. */
WEFT_KERNEL(LITMUS(init_unpublished), 64, struct litmus_args, args) {
  if (thread_index() == 0) mbarrier_init(full_barrier(), 1);
#if LITMUS_MENDED
  bar_sync(0, 64);
#endif
  if (thread_index() == 0) {
    st_shared_u32(stage_base(), 1);
    mbarrier_arrive(full_barrier());
  }
  if (thread_index() == 32) {
    mbarrier_wait(full_barrier(), 0);
    st_global_u32(args.out, ld_shared_u32(stage_base()));
  }
}

/* try_wait acquires only when it answers true. */
WEFT_KERNEL(LITMUS(try_wait_ignored), 64, struct litmus_args, args) {
  if (thread_index() == 0) mbarrier_init(full_barrier(), 1);
  bar_sync(0, 64);
  if (thread_index() == 0) {
    mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
    bulk_load(stage_base(), args.data, STAGE_BYTES, full_barrier());
#if !LITMUS_MENDED
    mbarrier_wait(full_barrier(), 0); /* so that the CTA does not exit before the copy ends */
#endif
  } else if (thread_index() == 32) {
#if LITMUS_MENDED
    mbarrier_wait(full_barrier(), 0);
#else
    mbarrier_try_wait(full_barrier(), 0);
#endif
    st_global_u32(args.out, ld_shared_u32(stage_base()));
  }
}

/* One arrival more than the phase counts, while its bytes are still under way. */
WEFT_KERNEL(LITMUS(over_arrive), 32, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
#if !LITMUS_MENDED
    mbarrier_arrive(full_barrier());
#endif
    bulk_load(stage_base(), args.data, STAGE_BYTES, full_barrier());
    mbarrier_wait(full_barrier(), 0);
  }
}

/* Two phases complete while a thread waits for the first. */
WEFT_KERNEL(LITMUS(parity_alias), 64, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_init(empty_barrier(), 1);
  }
  bar_sync(0, 64);
  if (thread_index() == 0) {
    st_shared_u32(stage_base(), 1);
    mbarrier_arrive(full_barrier());
#if LITMUS_MENDED
    mbarrier_wait(empty_barrier(), 0);
#endif
    mbarrier_arrive(full_barrier());
  } else if (thread_index() == 32) {
    mbarrier_wait(full_barrier(), 0);
    st_global_u32(args.out, ld_shared_u32(stage_base()));
    mbarrier_arrive(empty_barrier());
  }
}

WEFT_KERNEL(LITMUS(unwritten), 32, struct litmus_args, args) {
#if LITMUS_MENDED
  st_shared_u32(smem_add(stage_base(), 4 * thread_index()), 1);
#endif
  const uint32_t v = ld_shared_u32(smem_add(stage_base(), 4 * thread_index()));
  st_global_u32(gmem_add(args.out, 4 * thread_index()), v);
}

WEFT_KERNEL(LITMUS(misaligned_bulk), 32, struct litmus_args, args) {
  if (thread_index() == 0) {
#if LITMUS_MENDED
    const uint32_t bytes = 32;
#else
    const uint32_t bytes = 24;
#endif
    mbarrier_init(full_barrier(), 1);
    mbarrier_arrive_expect_tx(full_barrier(), bytes);
    bulk_load(stage_base(), args.data, bytes, full_barrier());
    mbarrier_wait(full_barrier(), 0);
  }
}

WEFT_KERNEL(LITMUS(short_barrier), 64, struct litmus_args, args) {
  if (thread_index() == 32) st_shared_u32(stage_base(), 1);
#if LITMUS_MENDED
  bar_sync(1, 64);
#else
  bar_sync(1, 96);
#endif
  if (thread_index() == 0) st_global_u32(args.out, ld_shared_u32(stage_base()));
}
