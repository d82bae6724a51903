/* Execution barriers of a CTA and operations of a converged warp (PTX "barrier", "bar.warp.sync",
 * "elect.sync", "shfl.sync", "vote.sync"). bar.sync and bar.warp.sync order memory among their
 * threads; elect, shuffles and votes do not. */
#ifndef WEFT_DEVICE_PTX_SYNC_H
#define WEFT_DEVICE_PTX_SYNC_H

#include "types.h"

#ifdef __CUDACC__

/* Named barrier `id` (0 to 15) of `threads` threads, a multiple of 32. */
DEV void bar_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives and goes on; the count takes in those that arrive and those that sync. */
DEV void bar_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEV void warp_sync(void) {
  __syncwarp();
}

/* For speed alone: the lanes go on together. Nothing may rely on it, and in loom it does nothing.
 */
DEV void warp_converge(void) {
  __syncwarp();
}

/* True in one lane of the warp, never assumed to be lane 0. All 32 lanes call it. */
DEV uint32_t elect_one(void) {
  uint32_t r;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(r));
  return r;
}

DEV uint32_t shfl_u32(uint32_t v, uint32_t lane) {
  return __shfl_sync(0xffffffffu, v, (int)lane);
}
DEV uint32_t shfl_xor_u32(uint32_t v, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}
DEV float shfl_f32(float v, uint32_t lane) {
  return __shfl_sync(0xffffffffu, v, (int)lane);
}
DEV float shfl_xor_f32(float v, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}
DEV uint32_t warp_ballot(uint32_t predicate) {
  return __ballot_sync(0xffffffffu, (int)predicate);
}

/* Moves registers between the warpgroups of a CTA; the count is a literal, a multiple of 8. */
#define setmaxnreg_inc(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define setmaxnreg_dec(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))

#else

#define bar_sync(id, threads)   loom_bar_sync(LOOM_SITE(barrier, "bar.sync", ""), id, threads)
#define bar_arrive(id, threads) loom_bar_arrive(LOOM_SITE(plain, "bar.arrive", ""), id, threads)
#define warp_converge()         ((void)0)
#define warp_sync()             loom_warp_sync(LOOM_SITE(barrier, "bar.warp.sync", ""))
#define elect_one()             loom_elect(LOOM_SITE(plain, "elect.sync", ""))
#define shfl_u32(v, lane)       loom_shfl(LOOM_SITE(plain, "shfl.sync.idx", ""), v, lane, 0)
#define shfl_xor_u32(v, mask)   loom_shfl(LOOM_SITE(plain, "shfl.sync.bfly", ""), v, mask, 1)
#define shfl_f32(v, lane)       loom_shfl_f32(LOOM_SITE(plain, "shfl.sync.idx", ""), v, lane, 0)
#define shfl_xor_f32(v, mask)   loom_shfl_f32(LOOM_SITE(plain, "shfl.sync.bfly", ""), v, mask, 1)
#define warp_ballot(p)          loom_ballot(LOOM_SITE(plain, "vote.sync.ballot", ""), p)
#define setmaxnreg_inc(n)       loom_setmaxnreg(LOOM_SITE(plain, "setmaxnreg.inc", ""), n, 1)
#define setmaxnreg_dec(n)       loom_setmaxnreg(LOOM_SITE(plain, "setmaxnreg.dec", ""), n, 0)

#endif
#endif
