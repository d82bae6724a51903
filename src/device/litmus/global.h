/* Rules about global memory: scopes, acquire, proxies between CTAs and GPUs, aliases. */
#include "body.h"

/* A peer's stores, announced by a flag, are read by a bulk load. */
WEFT_KERNEL(LITMUS(hazard_a), 32, struct litmus_args, args) {
  if (args.rank == 1) {
    st_global_u32x4(gmem_add(args.data, 16 * thread_index()), splat(7));
    warp_sync();
    if (thread_index() == 0) st_u32(release, sys, args.flag, 1);
  } else if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    wait_u32_ge(sys, args.flag, 1, litmus_limit(args.error), 1);
#if LITMUS_MENDED
    fence_proxy_async_global(hazard_a_acquired); /* peer's stores -> bulk load */
#endif
    load_and_wait(args.data, args.out);
  }
}

/* One thread stores and bulk loads what it stored. */
WEFT_KERNEL(LITMUS(same_thread), 32, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    st_global_u32x4(args.data, splat(7));
#if LITMUS_MENDED
    fence_proxy_async_global(same_thread_stored); /* own store -> own bulk load */
#endif
    load_and_wait(args.data, args.out);
  }
}

/* The writer's CTA fences; the reading one must. */
WEFT_KERNEL(LITMUS(fence_wrong_cta), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32x4(args.data, splat(7));
#if !LITMUS_MENDED
    fence_proxy_async_global(writer_side); /* own store; says nothing in the other CTA */
#endif
    st_u32(release, gpu, args.flag, 1);
  } else {
    mbarrier_init(full_barrier(), 1);
    wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1);
#if LITMUS_MENDED
    fence_proxy_async_global(reader_side); /* other CTA's store -> bulk load */
#endif
    load_and_wait(args.data, args.out);
  }
}

/* A bulk store, completed and announced, is read by a bulk load in another CTA. */
WEFT_KERNEL(LITMUS(async_relay), 32, struct litmus_args, args) {
  if (cta_index() == 1) {
    st_shared_u32x4(smem_add(stage_base(), 16 * thread_index()), splat(7));
    fence_proxy_async_shared_cta(relay_filled); /* stage stores -> bulk store */
    warp_sync();
    if (thread_index() == 0) {
      bulk_store(args.data, stage_base(), STAGE_BYTES);
      bulk_commit();
      bulk_wait_group(0);
      st_u32(release, gpu, args.flag, 1);
    }
  } else if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1);
#if LITMUS_MENDED
    fence_proxy_async_global(relay_acquired); /* other CTA's bulk store -> bulk load */
#endif
    load_and_wait(args.data, args.out);
  }
}

/* A bulk store goes over what a bulk load of another CTA has read, completed and announced. */
WEFT_KERNEL(LITMUS(async_overwrite), 32, struct litmus_args, args) {
  if (cta_index() == 1) {
    if (thread_index() == 0) {
      mbarrier_init(full_barrier(), 1);
      load_and_wait(args.data, args.out);
      st_u32(release, gpu, args.flag, 1);
    }
  } else {
    st_shared_u32x4(smem_add(stage_base(), 16 * thread_index()), splat(7));
    fence_proxy_async_shared_cta(overwrite_filled); /* stage stores -> bulk store */
    warp_sync();
    if (thread_index() == 0) {
      wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1);
#if LITMUS_MENDED
      fence_proxy_async_global(overwrite_acquired); /* other CTA's bulk load -> bulk store */
#endif
      bulk_store(args.data, stage_base(), STAGE_BYTES);
      bulk_commit();
      bulk_wait_group(0);
    }
  }
}

/* Data of a peer through the read-only path. */
WEFT_KERNEL(LITMUS(nc_load), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (args.rank == 1) {
    st_global_u32(args.data, 7);
    st_u32(release, sys, args.flag, 1);
  } else {
    wait_u32_ge(sys, args.flag, 1, litmus_limit(args.error), 1);
#if LITMUS_MENDED
    st_global_u32(args.out, ld_global_u32(args.data));
#else
    st_global_u32(args.out, ld_global_nc_u32(args.data));
#endif
  }
}

/* A flag that is looked at once, without acquire. */
WEFT_KERNEL(LITMUS(missing_acquire), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32(args.data, 7);
    st_u32(release, gpu, args.flag, 1);
  } else {
#if LITMUS_MENDED
    const uint32_t seen = ld_u32(acquire, gpu, args.flag);
#else
    const uint32_t seen = ld_u32(relaxed, gpu, args.flag);
#endif
    if (seen == 1) st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* Relaxed accesses around fences make a release and an acquire pattern. */
WEFT_KERNEL(LITMUS(fence_pattern), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32(args.data, 7);
#if LITMUS_MENDED
    fence_acq_rel(gpu, pattern_release); /* data -> flag */
#endif
    st_u32(relaxed, gpu, args.flag, 1);
  } else if (ld_u32(relaxed, gpu, args.flag) == 1) {
#if LITMUS_MENDED
    fence_acq_rel(gpu, pattern_acquire); /* flag -> data */
#endif
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* A release whose scope does not hold the reader. */
WEFT_KERNEL(LITMUS(narrow_release_cta), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32(args.data, 7);
#if LITMUS_MENDED
    st_u32(release, gpu, args.flag, 1);
#else
    st_u32(release, cta, args.flag, 1);
#endif
  } else {
    wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1);
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

WEFT_KERNEL(LITMUS(narrow_release_gpu), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (args.rank == 1) {
    st_global_u32(args.data, 7);
#if LITMUS_MENDED
    st_u32(release, sys, args.flag, 1);
#else
    st_u32(release, gpu, args.flag, 1);
#endif
  } else {
    wait_u32_ge(sys, args.flag, 1, litmus_limit(args.error), 1);
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* One memory through two addresses. */
WEFT_KERNEL(LITMUS(multicast_alias), 32, struct litmus_args, args) {
  if (thread_index() == 0) {
    st_global_u32(args.alias, 7);
#if LITMUS_MENDED
    fence_proxy_alias(alias_written); /* store by one address -> load by the other */
#endif
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* A flag that nobody sets. */
WEFT_KERNEL(LITMUS(no_signal), 32, struct litmus_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32(args.data, 7);
#if LITMUS_MENDED
    st_u32(release, gpu, args.flag, 1);
#endif
  } else {
    if (wait_u32_ge(gpu, args.flag, 1, litmus_limit(args.error), 1))
      st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* Every CTA meets at one barrier; the host launches more CTAs than fit, or as many as fit. */
WEFT_KERNEL(LITMUS(not_coresident), 32, struct litmus_args, args) {
  const uint32_t next = (cta_index() + 1) % cta_count();
  if (thread_index() == 0) st_global_u32(gmem_add(args.data, 4 * cta_index()), 7);
  grid_barrier(args.flag, 1, litmus_limit(args.error), 1);
  if (thread_index() == 0)
    st_global_u32(gmem_add(args.out, 4 * cta_index()),
                  ld_global_u32(gmem_add(args.data, 4 * next)));
}
