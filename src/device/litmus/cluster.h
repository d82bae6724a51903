/* Rules between the CTAs of a cluster. */
#include "body.h"

/* CTA 0 fills the stages of both CTAs; their warps 1 read by ordinary loads and hand them back. */
WEFT_KERNEL_CLUSTER(LITMUS(remote_arrive), 64, 2, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_init(empty_barrier(), 64);
  }
  cluster_sync();
  if (thread_index() == 0) {
    for (uint32_t i = 0; i < 3; i++) {
      if (cluster_rank() == 0) {
#if LITMUS_MENDED
        mbarrier_wait_cluster(empty_barrier(), (i & 1) ^ 1);
#else
        mbarrier_wait(empty_barrier(), (i & 1) ^ 1);
#endif
      } else if (i > 0) {
        mbarrier_wait(full_barrier(), (i & 1) ^ 1);
      }
      mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
      if (cluster_rank() == 0)
        bulk_load_multicast(stage_base(), gmem_add(args.data, STAGE_BYTES * i), STAGE_BYTES,
                            full_barrier(), 3);
    }
  } else if (thread_index() >= 32) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 3; i++) {
      mbarrier_wait(full_barrier(), i & 1);
      sum += ld_shared_u32x4(smem_add(stage_base(), 16 * lane_index())).x;
      fence_proxy_async_shared_cta(remote_read); /* stage loads -> the next multicast load */
#if LITMUS_MENDED
      mbarrier_arrive_remote_cluster(cluster_map(empty_barrier(), 0));
#else
      mbarrier_arrive_remote(cluster_map(empty_barrier(), 0));
#endif
    }
    st_global_u32(gmem_add(args.out, 4 * (32 * cluster_rank() + lane_index())), sum);
  }
  cluster_sync();
}

/* CTA 1 reads CTA 0's shared memory, which lives no longer than CTA 0. */
WEFT_KERNEL_CLUSTER(LITMUS(exited_cta), 32, 2, struct litmus_args, args) {
  st_shared_u32(smem_add(stage_base(), 4 * thread_index()), thread_index());
  cluster_sync();
  if (cluster_rank() == 1) {
    const struct dsmem from = cluster_map(smem_add(stage_base(), 4 * thread_index()), 0);
    st_global_u32(gmem_add(args.out, 4 * thread_index()), ld_dsmem_u32(from));
  }
#if LITMUS_MENDED
  cluster_sync();
#endif
}
