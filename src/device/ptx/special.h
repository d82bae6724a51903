/* Special registers (PTX "Special Registers"): who a thread is, and the clock. Grids and CTAs are
 * one-dimensional in weft; clusters too. */
#ifndef WEFT_DEVICE_PTX_SPECIAL_H
#define WEFT_DEVICE_PTX_SPECIAL_H

#include "types.h"

#ifdef __CUDACC__

DEV uint32_t thread_index(void) {
  return threadIdx.x;
}
/* The same, and not kept from an earlier reading. */
DEV uint32_t thread_index_anew(void) {
  uint32_t r;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}
DEV uint32_t thread_count(void) {
  return blockDim.x;
}
DEV uint32_t cta_index(void) {
  return blockIdx.x;
}
DEV uint32_t cta_count(void) {
  return gridDim.x;
}

DEV uint32_t lane_index(void) {
  uint32_t r;
  asm("mov.u32 %0, %%laneid;" : "=r"(r));
  return r;
}

DEV uint32_t cluster_rank(void) {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

DEV uint32_t cluster_size(void) {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  return r;
}

/* Nanoseconds; its step is a microsecond or so. */
DEV uint64_t globaltimer(void) {
  uint64_t r;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(r));
  return r;
}

/* Start of the dynamic shared memory. Kernels declare no static shared memory, so that it is
 * aligned to 1024 bytes, which 128-byte swizzles want. */
DEV struct smem smem_base(void) {
  extern __shared__ __align__(1024) unsigned char weft_dynamic_smem[];
  struct smem r;
  r.a = (uint32_t)__cvta_generic_to_shared(weft_dynamic_smem);
  return r;
}

#else

#define thread_index()      (loom_self->thread)
#define thread_index_anew() (loom_self->thread)
#define thread_count()      (loom_self->threads)
#define cta_index()         (loom_self->cta)
#define cta_count()         (loom_self->ctas)
#define lane_index()        (loom_self->thread % 32u)
#define cluster_rank()      (loom_self->cluster_rank)
#define cluster_size()      (loom_self->cluster_size)
#define globaltimer()       loom_globaltimer()
#define smem_base()         (loom_self->smem)

#endif

/* Same value in every lane, and the compiler may rely on it. */
DEV uint32_t warp_index(void) {
#ifdef __CUDACC__
  return __shfl_sync(0xffffffffu, threadIdx.x / 32u, 0);
#else
  return loom_self->thread / 32u;
#endif
}

#endif
