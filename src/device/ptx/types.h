/* What every wrapper needs: the function qualifier, loop unrolling, small vectors and address
 * arithmetic. Under nvcc the wrappers are inline PTX; under gcc they are loom's, declared in
 * loom/shim.h, and each call carries its site. */
#ifndef WEFT_DEVICE_PTX_TYPES_H
#define WEFT_DEVICE_PTX_TYPES_H

#include "address.h"

#ifdef __CUDACC__
#define DEV    static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#else
#define DEV    static inline __attribute__((unused))
#define UNROLL _Pragma("GCC unroll 128")
#endif

struct u32x2 {
  uint32_t x, y;
};
struct u32x4 {
  uint32_t x, y, z, w;
};
struct f32x2 {
  float x, y;
};
struct f32x4 {
  float x, y, z, w;
};

#ifndef __CUDACC__
#include "loom/shim.h"
#endif

DEV struct smem smem_add(struct smem p, uint32_t bytes) {
  struct smem r;
  r.a = p.a + bytes;
  return r;
}

DEV struct dsmem dsmem_add(struct dsmem p, uint32_t bytes) {
  struct dsmem r;
  r.a = p.a + bytes;
  return r;
}

DEV struct gmem gmem_add(struct gmem p, uint64_t bytes) {
  struct gmem r;
  r.a = p.a + bytes;
  return r;
}

#endif
