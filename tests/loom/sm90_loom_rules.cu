/* Small kernels, each with a form that the rules allow (args.good) and one that they do not. */
#include "rules.h"

#include "device/ptx/ptx.h"

DEV struct smem bar_of(uint32_t i) {
  return smem_add(smem_base(), 8 * i);
}
DEV struct smem stage_of(uint32_t i) {
  return smem_add(smem_base(), 1024 + 1024 * i);
}
DEV struct wait_limit limit_of(struct gmem error) {
  struct wait_limit limit;
  limit.error = error;
  limit.timeout_ns = 1000000000ull;
  return limit;
}
DEV struct u32x4 splat(uint32_t v) {
  struct u32x4 r;
  r.x = r.y = r.z = r.w = v;
  return r;
}

/* Two of these in a stream: the second reads by bulk load what the first stored. */
WEFT_KERNEL(rules_writer, 32, struct rules_args, args) {
  st_global_u32x4(gmem_add(args.data, 16 * thread_index()), splat(5));
}

WEFT_KERNEL(rules_reader, 32, struct rules_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(bar_of(0), 1);
    mbarrier_arrive_expect_tx(bar_of(0), 512);
    bulk_load(stage_of(0), args.data, 512, bar_of(0));
    mbarrier_wait(bar_of(0), 0);
    st_global_u32(args.out, ld_shared_u32(stage_of(0)));
  }
}

/* Every CTA writes a word, meets the grid, reads its neighbour's; twice, with the grid meeting
 * between. */
WEFT_KERNEL(rules_grid, 64, struct rules_args, args) {
  const uint32_t cta = cta_index(), next = (cta + 1) % cta_count();
  uint32_t barriers = 0;
  for (uint32_t n = 1; n <= 2; n++) {
    if (thread_index() == 5) st_global_u32(gmem_add(args.data, 4 * cta), 100 * n + cta);
    grid_barrier(args.flag, ++barriers, limit_of(args.error), 1);
    if (thread_index() == 40)
      st_global_u32(gmem_add(args.out, 4 * cta), ld_global_u32(gmem_add(args.data, 4 * next)));
    if (args.good) grid_barrier(args.flag, ++barriers, limit_of(args.error), 1);
  }
}

/* An atomic keeps the releases before it in force, a store does not. */
WEFT_KERNEL(rules_chain, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 0) {
    st_global_u32(args.data, 5);
    st_u32(release, gpu, args.flag, 1);
  } else if (cta_index() == 1) {
    while (ld_u32(relaxed, gpu, args.flag) != 1) {
    }
    if (args.good)
      (void)atom_add_u32(relaxed, gpu, args.flag, 1);
    else
      st_u32(relaxed, gpu, args.flag, 2);
  } else {
    wait_u32_ge(gpu, args.flag, 2, limit_of(args.error), 1);
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* mbarrier.init, its fence, and a cluster barrier that orders nothing else. */
WEFT_KERNEL_CLUSTER(rules_init, 32, 2, struct rules_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(bar_of(0), 32);
    if (args.good) fence_mbarrier_init(rules_init_fence); /* init -> remote arrive */
  }
  cluster_arrive_relaxed();
  cluster_wait();
  mbarrier_arrive_remote(cluster_map(bar_of(0), cluster_rank() ^ 1));
  mbarrier_wait(bar_of(0), 0);
  cluster_sync();
}

/* Warp 0 hands over to warp 1 by bar.arrive; data by ordinary stores. */
WEFT_KERNEL(rules_bar_arrive, 64, struct rules_args, args) {
  if (thread_index() < 32) {
    if (args.good) st_shared_u32(smem_add(stage_of(0), 4 * thread_index()), 7);
    bar_arrive(2, 64);
    if (!args.good) st_shared_u32(smem_add(stage_of(0), 4 * thread_index()), 7);
  } else {
    bar_sync(2, 64);
    st_global_u32(gmem_add(args.out, 4 * thread_index()),
                  ld_shared_u32(smem_add(stage_of(0), 4 * (thread_index() - 32))));
  }
}

/* wait_group.read 1 frees the source of the first group, not of the second. */
WEFT_KERNEL(rules_groups, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  for (uint32_t i = 0; i < 2; i++)
    st_shared_u32x4(stage_of(i), splat(i));
  fence_proxy_async_shared_cta(rules_groups_filled); /* stores -> bulk stores */
  for (uint32_t i = 0; i < 2; i++) {
    bulk_store(gmem_add(args.out, 16 * i), stage_of(i), 16);
    bulk_commit();
  }
  bulk_wait_group_read(1);
  st_shared_u32x4(stage_of(args.good ? 0 : 1), splat(9));
  bulk_wait_group(0);
}

/* A group that was never committed is not waited for. */
WEFT_KERNEL(rules_uncommitted, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  st_shared_u32x4(stage_of(0), splat(1));
  fence_proxy_async_shared_cta(rules_uncommitted_filled); /* store -> bulk store */
  bulk_store(args.out, stage_of(0), 16);
  if (args.good) bulk_commit();
  bulk_wait_group(0);
}

/* A barrier polled for ever. */
WEFT_KERNEL(rules_spin, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  mbarrier_init(bar_of(0), 1);
  if (args.good) mbarrier_arrive(bar_of(0));
  while (!mbarrier_try_wait(bar_of(0), 0)) {
  }
}

WEFT_KERNEL(rules_illegal, 32, struct rules_args, args) {
  if (thread_index() == 0) st_global_u32(gmem_add(args.out, args.good ? 8188 : 8192), 1);
}

WEFT_KERNEL(rules_illegal_shared, 32, struct rules_args, args) {
  if (thread_index() == 0) st_shared_u32(smem_add(smem_base(), args.good ? 16380 : 16384), 1);
}

WEFT_KERNEL(rules_misaligned, 32, struct rules_args, args) {
  if (thread_index() == 0) st_global_u32x4(gmem_add(args.out, args.good ? 16 : 8), splat(1));
}

/* Rank 1 stores into rank 0's memory. */
WEFT_KERNEL(rules_peer, 32, struct rules_args, args) {
  if (args.rank == 1 && thread_index() == 0) st_global_u32(args.data, 1);
}

/* Waits for a flag that comes only if good. out: what the wait answered. */
WEFT_KERNEL(rules_timeout, 32, struct rules_args, args) {
  if (thread_index() == 0) {
    const uint32_t answer = wait_u32_ge(sys, args.flag, 1, limit_of(args.error), 42);
    st_global_u32(args.out, answer);
  } else if (thread_index() == 1 && args.good) {
    st_u32(release, sys, args.flag, 1);
  }
}

/* The lanes of a warp at two different shuffles. */
WEFT_KERNEL(rules_divergent, 32, struct rules_args, args) {
  uint32_t v = thread_index();
  if (args.good || thread_index() < 16)
    v = shfl_xor_u32(v, 1);
  else
    v = shfl_xor_u32(v, 2);
  st_global_u32(gmem_add(args.out, 4 * thread_index()), v);
}

/* Accumulators written while wgmma may use them. */
WEFT_KERNEL(rules_accumulators, 128, struct rules_args, args) {
  float d[32] = {0};
  for (uint32_t i = 0; i < 8192; i += 2048)
    st_shared_u32x4(smem_add(stage_of(0), i + 16 * thread_index()), splat(0));
  fence_proxy_async_shared_cta(rules_accumulators_filled); /* stores -> wgmma */
  bar_sync(0, 128);
  const uint64_t desc = wgmma_desc(stage_of(0), 0, 1024, WGMMA_SWIZZLE_128B);
  wgmma_pin(d, 32);
  wgmma_fence();
  wgmma_m64n64k16_bf16(d, desc, desc, 0, 0, 0);
  wgmma_commit();
  if (!args.good) d[3] = 1.0f;
  wgmma_wait(0);
  wgmma_pin(d, 32);
  st_global_f32(gmem_add(args.out, 4 * thread_index()), d[3]);
}

/* One lane stores for the warp, another reads after a shuffle: that orders nothing. */
WEFT_KERNEL(rules_shuffle, 32, struct rules_args, args) {
  if (thread_index() == 3) st_shared_u32(stage_of(0), 1);
  if (args.good)
    warp_sync();
  else
    (void)shfl_u32(0, 3);
  if (thread_index() == 9) st_global_u32(args.out, ld_shared_u32(stage_of(0)));
}

/* Neighbouring words of one 16-byte granule belong to different threads. */
WEFT_KERNEL(rules_neighbours, 64, struct rules_args, args) {
  const uint32_t i = args.good ? thread_index() : thread_index() / 2;
  st_global_u32(gmem_add(args.out, 4 * i), i);
}

/* Who comes second reads the other's data: ordered by the fence of the first before its atomic and
 * that of the second after its own. */
WEFT_KERNEL(rules_pattern, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  const uint32_t own = 4 * cta_index(), other = 4 - own;
  st_global_u32(gmem_add(args.data, own), 1);
  fence_sc(gpu, rules_pattern_first); /* own data -> the atomic */
  const uint32_t second = atom_add_u32(relaxed, gpu, args.flag, 1);
  if (args.good) fence_acq_rel(gpu, rules_pattern_second); /* the atomic -> the other's data */
  if (second) st_global_u32(gmem_add(args.out, own), ld_global_u32(gmem_add(args.data, other)));
}

/* An alias fence counts anywhere along the path: here in the writer's CTA. */
WEFT_KERNEL(rules_alias, 32, struct rules_args, args) {
  if (thread_index() != 0) return;
  if (cta_index() == 1) {
    st_global_u32(args.alias, 7);
    if (args.good) fence_proxy_alias(rules_alias_written); /* store -> the load by data */
    st_u32(release, gpu, args.flag, 1);
  } else {
    wait_u32_ge(gpu, args.flag, 1, limit_of(args.error), 1);
    st_global_u32(args.out, ld_global_u32(args.data));
  }
}

/* Two pairs of warps, two named barriers, or one that both use. */
WEFT_KERNEL(rules_shared_id, 128, struct rules_args, args) {
  const uint32_t pair = thread_index() / 64;
  for (uint32_t i = 0; i < 2; i++)
    bar_sync(args.good ? 1 + pair : 1, 64);
}

/* 384 threads are launched with 168 registers each: what one warpgroup gives up holds two increases
 * to 240 if it keeps 24, not if it keeps 32. */
WEFT_KERNEL(rules_registers, 384, struct rules_args, args) {
  if (thread_index() >= 128)
    setmaxnreg_inc(240);
  else if (args.good)
    setmaxnreg_dec(24);
  else
    setmaxnreg_dec(32);
  if (thread_index() % 128 == 0) st_global_u32(gmem_add(args.out, thread_index() / 32), 1);
}

/* A barrier of two arrivals a phase, one from each of two threads. */
WEFT_KERNEL(rules_early, 64, struct rules_args, args) {
  if (thread_index() == 0) mbarrier_init(bar_of(0), 2);
  bar_sync(0, 64);
  if (thread_index() % 32 != 0) return;
  for (uint32_t i = 0; i < 2; i++) {
    mbarrier_arrive(bar_of(0));
    if (args.good || thread_index() == 0) mbarrier_wait(bar_of(0), i);
  }
}

/* CTA 1 reads its stage, announces it at cluster scope, and CTA 0's bulk load fills it again. The
 * fence may stand in the CTA that owns the stage (good 1) or in that of the bulk load (good 2). */
WEFT_KERNEL_CLUSTER(rules_owner, 32, 2, struct rules_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(bar_of(0), 1);
    mbarrier_init(bar_of(1), 1);
    mbarrier_arrive_expect_tx(bar_of(0), 16);
  }
  if (thread_index() == 0) {
    st_shared_u32x4(stage_of(0), splat(0));
    fence_proxy_async_shared_cta(rules_owner_filled); /* store -> bulk load */
  }
  cluster_sync();
  if (thread_index() == 0 && cluster_rank() == 1) {
    st_global_u32(args.out, ld_shared_u32(stage_of(0)));
    if (args.good == 1)
      fence_proxy_async_shared_cta(rules_owner_fence); /* stage load -> bulk load */
    mbarrier_arrive_remote_cluster(cluster_map(bar_of(1), 0));
    mbarrier_wait(bar_of(0), 0);
  } else if (thread_index() == 0) {
    mbarrier_wait_cluster(bar_of(1), 0);
    if (args.good == 2) fence_proxy_async_shared_cluster(rules_issuer_fence); /* the same */
    bulk_load_multicast(stage_of(0), args.data, 16, bar_of(0), 2);
  }
  cluster_sync();
}
