/* Clusters: the address of another CTA's shared memory (PTX "mapa") and the barrier of all threads
 * of the cluster (PTX "barrier.cluster"), whose arrive releases and whose wait acquires at cluster
 * scope. Not .aligned: lanes may come to it apart. A CTA must not exit while others may still reach
 * its shared memory. */
#ifndef WEFT_DEVICE_PTX_CLUSTER_H
#define WEFT_DEVICE_PTX_CLUSTER_H

#include "types.h"

#ifdef __CUDACC__

/* The address in CTA `rank` of the cluster that p is in this one. */
DEV struct dsmem cluster_map(struct smem p, uint32_t rank) {
  struct dsmem r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r.a) : "r"(p.a), "r"(rank));
  return r;
}

DEV void cluster_arrive(void) {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
}
/* Orders nothing: for a barrier that only keeps CTAs alive or in step. */
DEV void cluster_arrive_relaxed(void) {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
DEV void cluster_wait(void) {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
DEV void cluster_sync(void) {
  cluster_arrive();
  cluster_wait();
}

#else

#define cluster_map(p, rank) loom_cluster_map(LOOM_SITE(plain, "mapa", ""), p, rank)
#define cluster_arrive()     loom_cluster_arrive(LOOM_SITE(plain, "barrier.cluster.arrive", ""), 0)
#define cluster_arrive_relaxed()                                                                   \
  loom_cluster_arrive(LOOM_SITE(plain, "barrier.cluster.arrive.relaxed", ""), 1)
#define cluster_wait() loom_cluster_wait(LOOM_SITE(wait, "barrier.cluster.wait", ""))
#define cluster_sync() loom_cluster_sync(LOOM_SITE(barrier, "barrier.cluster", ""))

#endif
#endif
