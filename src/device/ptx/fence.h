/* Fences. Each call takes a bare name: the site by which `weft check --drop` finds it, and beside
 * which the caller says what accesses it orders.
 *
 * Proxy fences (PTX "membar / fence", "Proxies" of the memory consistency model): the executing
 * thread's ordinary accesses (generic proxy) against bulk copies, tensor copies and wgmma (async
 * proxy), both ways; .global and .shared narrow it to one state space. */
#ifndef WEFT_DEVICE_PTX_FENCE_H
#define WEFT_DEVICE_PTX_FENCE_H

#include "types.h"

#ifdef __CUDACC__

/* generic <-> async, every state space; PTX 8.6, "membar / fence" */
#define fence_proxy_async(name) asm volatile("fence.proxy.async;" ::: "memory")
/* generic <-> async, global memory; 8.6 */
#define fence_proxy_async_global(name) asm volatile("fence.proxy.async.global;" ::: "memory")
/* generic <-> async, shared memory of this CTA; 8.6 */
#define fence_proxy_async_shared_cta(name)                                                         \
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
/* generic <-> async, shared memory of the cluster; 8.6 */
#define fence_proxy_async_shared_cluster(name)                                                     \
  asm volatile("fence.proxy.async.shared::cluster;" ::: "memory")
/* two virtual addresses of the same memory, multicast and unicast ones among them; 8.2.2, 8.6 */
#define fence_proxy_alias(name) asm volatile("fence.proxy.alias;" ::: "memory")
/* no proxies: makes this thread's mbarrier.init known in the cluster, before a relaxed cluster
 * barrier; a releasing one needs none. "membar / fence" */
#define fence_mbarrier_init(name) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
/* no proxies: release and acquire patterns with relaxed accesses, for the threads of the scope: cta
 * cluster gpu sys; 8.8 */
#define fence_acq_rel(scope, name) asm volatile("fence.acq_rel." #scope ";" ::: "memory")
#define fence_sc(scope, name)      asm volatile("fence.sc." #scope ";" ::: "memory")

#else

#define fence_proxy_async(name)                                                                    \
  loom_fence_proxy(LOOM_SITE(fence, "fence.proxy.async", #name),                                   \
                   LOOM_FENCE_GLOBAL | LOOM_FENCE_SHARED)
#define fence_proxy_async_global(name)                                                             \
  loom_fence_proxy(LOOM_SITE(fence, "fence.proxy.async.global", #name), LOOM_FENCE_GLOBAL)
#define fence_proxy_async_shared_cta(name)                                                         \
  loom_fence_proxy(LOOM_SITE(fence, "fence.proxy.async.shared::cta", #name), LOOM_FENCE_SHARED)
#define fence_proxy_async_shared_cluster(name)                                                     \
  loom_fence_proxy(LOOM_SITE(fence, "fence.proxy.async.shared::cluster", #name), LOOM_FENCE_SHARED)
#define fence_proxy_alias(name)                                                                    \
  loom_fence_proxy(LOOM_SITE(fence, "fence.proxy.alias", #name), LOOM_FENCE_ALIAS)
#define fence_mbarrier_init(name)                                                                  \
  loom_fence_mbarrier_init(LOOM_SITE(fence, "fence.mbarrier_init", #name))
#define fence_acq_rel(scope, name)                                                                 \
  loom_fence_acq_rel(LOOM_SITE(fence, "fence.acq_rel." #scope, #name), LOOM_SCOPE_##scope)
#define fence_sc(scope, name)                                                                      \
  loom_fence_acq_rel(LOOM_SITE(fence, "fence.sc." #scope, #name), LOOM_SCOPE_##scope)

#endif
#endif
