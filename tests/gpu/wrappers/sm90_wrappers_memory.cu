/* Loads, stores, atomics and distributed shared memory: every type goes through its wrapper and
 * comes out as bytes. */
#include "device/ptx/ptx.h"
#include "wrapper_args.h"

/* One warp; thread t has 128 bytes of `in` and of `out`, and of shared memory. */
WEFT_KERNEL(wrapper_memory, 32, struct wrapper_args, args) {
  const uint32_t t = thread_index() * 128;
  const struct gmem in = gmem_add(args.in, t), out = gmem_add(args.out, t);
  const struct smem own = smem_add(smem_base(), t);
  /* global to shared, each type at its own offset, then shared to global */
  st_shared_u16(smem_add(own, 0), ld_global_u16(gmem_add(in, 0)));
  st_shared_u16(smem_add(own, 2), ld_global_u16(gmem_add(in, 2)));
  st_shared_u32(smem_add(own, 4), ld_global_u32(gmem_add(in, 4)));
  st_shared_u64(smem_add(own, 8), ld_global_u64(gmem_add(in, 8)));
  st_shared_f32(smem_add(own, 16), ld_global_f32(gmem_add(in, 16)));
  st_shared_u32(smem_add(own, 20), ld_global_nc_u32(gmem_add(in, 20)));
  st_shared_u32x2(smem_add(own, 24), ld_global_u32x2(gmem_add(in, 24)));
  st_shared_u32x4(smem_add(own, 32), ld_global_u32x4(gmem_add(in, 32)));
  st_shared_f32x4(smem_add(own, 48), ld_global_f32x4(gmem_add(in, 48)));
  st_shared_f32x2(smem_add(own, 64), ld_global_f32x2(gmem_add(in, 64)));
  st_shared_u64(smem_add(own, 72), ld_global_nc_u64(gmem_add(in, 72)));
  st_shared_u32x4(smem_add(own, 80), ld_global_nc_u32x4(gmem_add(in, 80)));
  st_shared_order_u32(relaxed, cta, smem_add(own, 96), ld_u32(relaxed, gpu, gmem_add(in, 96)));
  st_shared_order_u32(release, cta, smem_add(own, 100), ld_u32(acquire, sys, gmem_add(in, 100)));
  st_shared_u64(smem_add(own, 104), ld_u64(acquire, gpu, gmem_add(in, 104)));
  st_shared_u64(smem_add(own, 112), ld_u64(relaxed, sys, gmem_add(in, 112)));
  st_shared_f32(smem_add(own, 120), ld_global_nc_f32(gmem_add(in, 120)));
  st_shared_u32(smem_add(own, 124), ld_u32(acquire, cta, gmem_add(in, 124)));

  st_global_u16(gmem_add(out, 0), ld_shared_u16(smem_add(own, 0)));
  st_global_u16(gmem_add(out, 2), ld_shared_u16(smem_add(own, 2)));
  st_global_u32(gmem_add(out, 4), ld_shared_u32(smem_add(own, 4)));
  st_global_u64(gmem_add(out, 8), ld_shared_u64(smem_add(own, 8)));
  st_global_f32(gmem_add(out, 16), ld_shared_f32(smem_add(own, 16)));
  st_u32(relaxed, gpu, gmem_add(out, 20), ld_shared_order_u32(relaxed, cta, smem_add(own, 20)));
  st_global_u32x2(gmem_add(out, 24), ld_shared_u32x2(smem_add(own, 24)));
  st_global_u32x4(gmem_add(out, 32), ld_shared_u32x4(smem_add(own, 32)));
  st_global_f32x4(gmem_add(out, 48), ld_shared_f32x4(smem_add(own, 48)));
  st_global_f32x2(gmem_add(out, 64), ld_shared_f32x2(smem_add(own, 64)));
  st_u64(release, sys, gmem_add(out, 72), ld_shared_u64(smem_add(own, 72)));
  st_global_u32x4(gmem_add(out, 80), ld_shared_u32x4(smem_add(own, 80)));
  st_u32(release, gpu, gmem_add(out, 96), ld_shared_order_u32(acquire, cta, smem_add(own, 96)));
  st_u32(relaxed, sys, gmem_add(out, 100), ld_shared_u32(smem_add(own, 100)));
  st_global_u64(gmem_add(out, 104), ld_shared_u64(smem_add(own, 104)));
  st_u64(relaxed, gpu, gmem_add(out, 112), ld_shared_u64(smem_add(own, 112)));
  st_global_f32(gmem_add(out, 120), ld_shared_f32(smem_add(own, 120)));
  st_u32(release, cta, gmem_add(out, 124), ld_shared_u32(smem_add(own, 124)));
}

/* 64 threads. `out`: 64 bytes a thread of answers and own cells, then 16 bytes of cells that all
 * add to; they start as the bytes of `in`, copied by the host's fill: the kernel writes them first.
 */
WEFT_KERNEL(wrapper_atomics, 64, struct wrapper_args, args) {
  const uint32_t t = thread_index();
  const struct gmem own = gmem_add(args.out, t * 64), all = gmem_add(args.out, 64 * 64);
  const struct gmem in = gmem_add(args.in, t * 16);
  const struct smem counter = smem_base();
  if (t == 0) {
    st_global_u32(all, 5);
    st_global_u32(gmem_add(all, 4), 0);
    st_global_u64(gmem_add(all, 8), 7);
    st_shared_u32(counter, 0);
  }
  const uint32_t a = ld_global_u32(in);
  const uint64_t b = ld_global_u64(gmem_add(in, 8));
  st_global_u32(own, a);
  st_global_u32(gmem_add(own, 4), f32_bits((float)t));
  st_global_u64(gmem_add(own, 8), b);
  bar_sync(0, 64);
  st_global_u32(gmem_add(own, 16), atom_add_u32(relaxed, gpu, own, 0xfffffff0u));
  st_global_u32(gmem_add(own, 20), atom_exch_u32(acq_rel, sys, own, a ^ 0xffu));
  st_global_u32(gmem_add(own, 24), atom_cas_u32(acquire, gpu, own, a ^ 0xffu, 77));
  st_global_u32(gmem_add(own, 28), atom_cas_u32(release, gpu, own, a, 78)); /* fails unless 77 */
  st_global_u64(gmem_add(own, 32), atom_add_u64(relaxed, sys, gmem_add(own, 8), 1ull << 40));
  st_global_u64(gmem_add(own, 40), atom_exch_u64(acquire, gpu, gmem_add(own, 8), ~b));
  st_global_u64(gmem_add(own, 48), atom_cas_u64(acq_rel, gpu, gmem_add(own, 8), ~b, b + 1));
  red_add_f32(gmem_add(own, 4), 0.5f);
  red_add_u32(relaxed, gpu, all, t);
  red_add_f32(gmem_add(all, 4), (float)t); /* whole numbers: exact in any order */
  (void)atom_add_u64(relaxed, gpu, gmem_add(all, 8), 1ull << 33);
  (void)atom_add_shared_u32(counter, t);
  bar_sync(0, 64);
  st_global_u32(gmem_add(own, 56), ld_shared_u32(counter));
  st_global_u32(gmem_add(own, 60), 0);
}

/* Two CTAs of a cluster, a warp each: thread t writes to the other CTA's shared memory, which dumps
 * it. 64 bytes a thread. */
WEFT_KERNEL_CLUSTER(wrapper_dsmem, 32, 2, struct wrapper_args, args) {
  const uint32_t t = thread_index(), rank = cluster_rank();
  const struct gmem in = gmem_add(args.in, (rank * 32 + t) * 64);
  const struct gmem out = gmem_add(args.out, (rank * 32 + t) * 64);
  const struct smem own = smem_add(smem_base(), t * 64);
  const struct dsmem there = cluster_map(own, rank ^ 1);
  st_dsmem_u32(there, ld_global_u32(in));
  st_dsmem_f32(dsmem_add(there, 4), ld_global_f32(gmem_add(in, 4)));
  st_dsmem_order_u32(relaxed, cluster, dsmem_add(there, 8), ld_global_u32(gmem_add(in, 8)));
  st_dsmem_order_u32(release, cluster, dsmem_add(there, 12), ld_global_u32(gmem_add(in, 12)));
  st_dsmem_u32x4(dsmem_add(there, 16), ld_global_u32x4(gmem_add(in, 16)));
  st_shared_u32x4(smem_add(own, 32), ld_global_u32x4(gmem_add(in, 32)));
  cluster_sync();
  st_global_u32x4(out, ld_shared_u32x4(own));
  st_global_u32x4(gmem_add(out, 16), ld_dsmem_u32x4(dsmem_add(there, 16)));
  st_global_u32(gmem_add(out, 32), ld_dsmem_u32(dsmem_add(there, 32)));
  st_global_f32(gmem_add(out, 36), ld_dsmem_f32(dsmem_add(there, 36)));
  st_global_u32(gmem_add(out, 40), ld_dsmem_order_u32(acquire, cluster, dsmem_add(there, 40)));
  st_global_u32(gmem_add(out, 44), ld_dsmem_order_u32(relaxed, cluster, dsmem_add(there, 44)));
  st_global_u32(gmem_add(out, 48), cluster_rank());
  st_global_u32(gmem_add(out, 52), cluster_size());
  st_global_u32(gmem_add(out, 56), cta_index() * 1000 + cta_count());
  st_global_u32(gmem_add(out, 60), lane_index() + warp_index() * 100);
  cluster_sync();
}
