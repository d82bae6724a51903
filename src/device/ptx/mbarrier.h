/* mbarrier objects (PTX "Parallel Synchronization and Communication Instructions: mbarrier"): eight
 * bytes of shared memory, aligned to eight. A phase completes when its pending arrivals and its
 * transaction bytes are both zero. Arrive releases and try_wait acquires, each at CTA scope unless
 * the name says cluster. Waiting is in wait.h. */
#ifndef WEFT_DEVICE_PTX_MBARRIER_H
#define WEFT_DEVICE_PTX_MBARRIER_H

#include "types.h"

#ifdef __CUDACC__

DEV void mbarrier_init(struct smem bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar.a), "r"(count) : "memory");
}

DEV void mbarrier_inval(struct smem bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar.a) : "memory");
}

DEV void mbarrier_arrive(struct smem bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar.a) : "memory");
}

/* One arrival that also expects `bytes` more transaction bytes in this phase. */
DEV void mbarrier_arrive_expect_tx(struct smem bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar.a), "r"(bytes)
               : "memory");
}

/* Expects bytes without arriving. Orders nothing. */
DEV void mbarrier_expect_tx(struct smem bar, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar.a), "r"(bytes)
               : "memory");
}

/* Arrives on a barrier of any CTA of the cluster, releasing at CTA scope: enough when what it
 * announces are async operations that have completed (docs/loom.md, "Remote arrive"). */
DEV void mbarrier_arrive_remote(struct dsmem bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar.a) : "memory");
}

/* The same with release at cluster scope: what announces ordinary loads and stores. Costs a MEMBAR.
 */
DEV void mbarrier_arrive_remote_cluster(struct dsmem bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar.a)
               : "memory");
}

DEV void mbarrier_arrive_expect_tx_remote(struct dsmem bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(bar.a), "r"(bytes)
               : "memory");
}

/* True when the phase of that parity has completed; may suspend the thread for a while first. */
DEV uint32_t mbarrier_try_wait(struct smem bar, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n"
               " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
               " selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(bar.a), "r"(parity)
               : "memory");
  return done;
}

DEV uint32_t mbarrier_try_wait_cluster(struct smem bar, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n"
               " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
               " selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(bar.a), "r"(parity)
               : "memory");
  return done;
}

#else

#define mbarrier_init(bar, count)                                                                  \
  loom_mbarrier_init(LOOM_SITE(plain, "mbarrier.init", ""), bar, count)
#define mbarrier_inval(bar) loom_mbarrier_inval(LOOM_SITE(plain, "mbarrier.inval", ""), bar)
#define mbarrier_arrive(bar)                                                                       \
  loom_mbarrier_arrive(LOOM_SITE(plain, "mbarrier.arrive", ""), bar, 1, 0)
#define mbarrier_arrive_expect_tx(bar, bytes)                                                      \
  loom_mbarrier_arrive(LOOM_SITE(plain, "mbarrier.arrive.expect_tx", ""), bar, 1, bytes)
#define mbarrier_expect_tx(bar, bytes)                                                             \
  loom_mbarrier_arrive(LOOM_SITE(plain, "mbarrier.expect_tx", ""), bar, 0, bytes)
#define mbarrier_arrive_remote(bar)                                                                \
  loom_mbarrier_arrive_remote(LOOM_SITE(plain, "mbarrier.arrive.shared::cluster", ""), bar, 0,     \
                              LOOM_SCOPE_cta)
#define mbarrier_arrive_remote_cluster(bar)                                                        \
  loom_mbarrier_arrive_remote(                                                                     \
      LOOM_SITE(plain, "mbarrier.arrive.release.cluster.shared::cluster", ""), bar, 0,             \
      LOOM_SCOPE_cluster)
#define mbarrier_arrive_expect_tx_remote(bar, bytes)                                               \
  loom_mbarrier_arrive_remote(LOOM_SITE(plain, "mbarrier.arrive.expect_tx.shared::cluster", ""),   \
                              bar, bytes, LOOM_SCOPE_cta)
#define mbarrier_try_wait(bar, parity)                                                             \
  loom_mbarrier_try_wait(LOOM_SITE(plain, "mbarrier.try_wait", ""), bar, parity, LOOM_SCOPE_cta)
#define mbarrier_try_wait_cluster(bar, parity)                                                     \
  loom_mbarrier_try_wait(LOOM_SITE(plain, "mbarrier.try_wait.acquire.cluster", ""), bar, parity,   \
                         LOOM_SCOPE_cluster)

#endif
#endif
