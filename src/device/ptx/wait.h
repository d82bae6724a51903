/* Waiting for memory. This file alone may spin.
 *
 * mbarrier_wait has no limit of its own: whoever completes a barrier of this CTA or cluster waits,
 * at worst, in wait_u32_ge, which has. A kernel whose wait ran out reports it and carries on, with
 * wrong data but with all its barriers in step, so that nothing hangs. */
#ifndef WEFT_DEVICE_PTX_WAIT_H
#define WEFT_DEVICE_PTX_WAIT_H

#include "access.h"
#include "atomic.h"
#include "mbarrier.h"
#include "special.h"

/* The error word is u32, zero while all is well; the first code stored stays. Once it is not zero,
 * waits with that word give up at once. */
struct wait_limit {
  struct gmem error;
  uint64_t timeout_ns;
};

#ifdef __CUDACC__

/* Until the phase of that parity has completed; acquires at CTA scope. */
DEV void mbarrier_wait(struct smem bar, uint32_t parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}

DEV void mbarrier_wait_cluster(struct smem bar, uint32_t parity) {
  while (!mbarrier_try_wait_cluster(bar, parity)) {
  }
}

/* The same for speed alone: nothing may rely on it, and loom leaves it in its place. */
DEV void mbarrier_pace(struct smem bar, uint32_t parity) {
  mbarrier_wait(bar, parity);
}

/* Polls between two looks at the clock and at the error word. */
#define PTX_WAIT_POLLS 64

#define PTX_WAIT_GE(name, order, scope, bits)                                                      \
  DEV uint32_t name##_u##bits##_ge_##scope(struct gmem p, uint##bits##_t value,                    \
                                           struct wait_limit limit, uint32_t code) {               \
    uint64_t start = 0;                                                                            \
    for (;;) {                                                                                     \
      for (int i = 0; i < PTX_WAIT_POLLS; i++)                                                     \
        if ((int##bits##_t)(ld_u##bits(order, scope, p) - value) >= 0) return 1;                   \
      const uint64_t now = globaltimer();                                                          \
      if (start == 0) start = now;                                                                 \
      if (ld_u32(relaxed, sys, limit.error) != 0) return 0;                                        \
      if (now - start > limit.timeout_ns) {                                                        \
        atom_cas_u32(relaxed, sys, limit.error, 0, code);                                          \
        return 0;                                                                                  \
      }                                                                                            \
    }                                                                                              \
  }

PTX_WAIT_GE(wait, acquire, gpu, 32)
PTX_WAIT_GE(wait, acquire, sys, 32)
PTX_WAIT_GE(wait, acquire, sys, 64)
PTX_WAIT_GE(pace, relaxed, gpu, 32)

/* Until *p has reached value (differences modulo 2^32 or 2^64), acquiring at `scope` (gpu or sys;
 * words of 64 bits: sys). Answers 1; or 0 if that took too long, when `code` (not 0) is in the
 * error word unless another came first. */
#define wait_u32_ge(scope, p, value, limit, code) wait_u32_ge_##scope(p, value, limit, code)
#define wait_u64_ge(scope, p, value, limit, code) wait_u64_ge_##scope(p, value, limit, code)
/* The same, but it orders nothing: for threads that keep pace and do not need each other's data. */
#define pace_u32_ge(scope, p, value, limit, code) pace_u32_ge_##scope(p, value, limit, code)

#else

#define mbarrier_wait(bar, parity)                                                                 \
  loom_mbarrier_wait(LOOM_SITE(wait, "mbarrier.try_wait (wait)", ""), bar, parity, LOOM_SCOPE_cta)
#define mbarrier_pace(bar, parity)                                                                 \
  loom_mbarrier_wait(LOOM_SITE(plain, "mbarrier.try_wait (pace)", ""), bar, parity, LOOM_SCOPE_cta)
#define mbarrier_wait_cluster(bar, parity)                                                         \
  loom_mbarrier_wait(LOOM_SITE(wait, "mbarrier.try_wait.acquire.cluster (wait)", ""), bar, parity, \
                     LOOM_SCOPE_cluster)
#define wait_u32_ge(scope, p, value, limit, code)                                                  \
  loom_wait_ge(LOOM_SITE(wait, "ld.acquire." #scope " (wait)", ""), p, value, 4,                   \
               LOOM_SCOPE_##scope, (limit).error, (limit).timeout_ns, code)
#define wait_u64_ge(scope, p, value, limit, code)                                                  \
  loom_wait_ge(LOOM_SITE(wait, "ld.acquire." #scope ".u64 (wait)", ""), p, value, 8,               \
               LOOM_SCOPE_##scope, (limit).error, (limit).timeout_ns, code)
#define pace_u32_ge(scope, p, value, limit, code)                                                  \
  loom_wait_ge(LOOM_SITE(plain, "ld.relaxed." #scope " (pace)", ""), p, value, 4,                  \
               LOOM_SCOPE_##scope, (limit).error, (limit).timeout_ns, code)

#endif
#endif
