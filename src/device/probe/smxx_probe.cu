/* The smallest kernel, for every architecture: each CTA of a cluster reports that it runs and what
 * its partner said. The host launches it once to learn whether the library's code runs on a device.
 */
#include "device/probe/probe.h"
#include "device/ptx/ptx.h"

WEFT_KERNEL_CLUSTER(smxx_probe, PROBE_THREADS, PROBE_CLUSTER, struct probe_args, args) {
  const struct smem word = smem_base();
  const uint32_t partner = cluster_rank() ^ 1;
  if (thread_index() == 0) st_shared_u32(word, args.seed + cta_index());
  cluster_sync();
  if (thread_index() == 0) {
    const uint32_t heard = ld_dsmem_u32(cluster_map(word, partner));
    st_global_u32(gmem_add(args.heard, cta_index() * 4), heard);
  }
  /* The partner may still be reading this CTA's word. */
  cluster_sync();
}
