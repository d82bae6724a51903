/* Warpgroup matrix multiply-accumulate (PTX "wgmma.mma_async"): D[64,N] (f32, registers) =
 * A[64,16] * B[16,N] + (scale_d ? D : 0), both operands in shared memory by descriptor.
 *
 *   wgmma_m64nNk16_bf16(d, desc_a, desc_b, scale_d, a_mn_major, b_mn_major)     N: 64 128 192 256
 *   wgmma_m64nNk16_f16(...)
 *
 * d is a float array of N/2; its indices must be constants after unrolling, or it leaves the
 * registers. scale_d may be a run-time value; the two majors are literals, 0 for K-major. Element i
 * of thread t of the warpgroup is row 16*(t/32) + (t%32)/4 + 8*((i/2)%2), column 8*(i/4) + 2*(t%4)
 * + i%2.
 *
 * Order: wgmma_fence before the first and after any other access to d; wgmma_commit closes a group;
 * wgmma_wait(n) leaves at most n groups running. Operand reads belong to the async proxy and are
 * done when their group has been waited for. */
#ifndef WEFT_DEVICE_PTX_WGMMA_H
#define WEFT_DEVICE_PTX_WGMMA_H

#include "types.h"

/* Shared memory descriptor fields (PTX "Matrix Descriptor Format"). */
enum {
  WGMMA_SWIZZLE_NONE = 0,
  WGMMA_SWIZZLE_128B = 1,
  WGMMA_SWIZZLE_64B = 2,
  WGMMA_SWIZZLE_32B = 3
};

/* Byte offsets: lbo is that of the next core matrix in the leading dimension (ignored for swizzled
 * K-major operands), sbo that of the next group of eight rows. Advancing an operand by bytes adds
 * bytes >> 4 to its descriptor. */
DEV uint64_t wgmma_desc(struct smem p, uint32_t lbo, uint32_t sbo, uint32_t swizzle) {
  return (uint64_t)((p.a & 0x3ffffu) >> 4) | (uint64_t)((lbo & 0x3ffffu) >> 4) << 16 |
         (uint64_t)((sbo & 0x3ffffu) >> 4) << 32 | (uint64_t)swizzle << 62;
}

#ifdef __CUDACC__

#define PTX_REGS_0                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                               \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                         \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                       \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PTX_REGS_32                                                                                \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                       \
  "%40, %41, %42, %43, %44, %45, %46, %47, "                                                       \
  "%48, %49, %50, %51, %52, %53, %54, %55, "                                                       \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define PTX_REGS_64                                                                                \
  "%64, %65, %66, %67, %68, %69, %70, %71, "                                                       \
  "%72, %73, %74, %75, %76, %77, %78, %79, "                                                       \
  "%80, %81, %82, %83, %84, %85, %86, %87, "                                                       \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define PTX_REGS_96                                                                                \
  "%96, %97, %98, %99, %100, %101, %102, %103, "                                                   \
  "%104, %105, %106, %107, %108, %109, %110, %111, "                                               \
  "%112, %113, %114, %115, %116, %117, %118, %119, "                                               \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define PTX_ACC_8(d, i)                                                                            \
  "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]),            \
      "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define PTX_ACC_32(d, i)                                                                           \
  PTX_ACC_8(d, i), PTX_ACC_8(d, i + 8), PTX_ACC_8(d, i + 16), PTX_ACC_8(d, i + 24)
#define PTX_WGMMA_64(type, d, desc_a, desc_b, scale_d, a_mn, b_mn)                                 \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"                                      \
               " wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" PTX_REGS_0        \
               "}, %32, %33, p, 1, 1, %35, %36;\n}"                                                \
               : PTX_ACC_32(d, 0)                                                                  \
               : "l"(desc_a), "l"(desc_b), "r"((int)(scale_d)), "n"(a_mn), "n"(b_mn)               \
               : "memory")
#define PTX_WGMMA_128(type, d, desc_a, desc_b, scale_d, a_mn, b_mn)                                \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"                                      \
               " wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" PTX_REGS_0       \
               ", " PTX_REGS_32 "}, %64, %65, p, 1, 1, %67, %68;\n}"                               \
               : PTX_ACC_32(d, 0), PTX_ACC_32(d, 32)                                               \
               : "l"(desc_a), "l"(desc_b), "r"((int)(scale_d)), "n"(a_mn), "n"(b_mn)               \
               : "memory")
#define PTX_WGMMA_192(type, d, desc_a, desc_b, scale_d, a_mn, b_mn)                                \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %98, 0;\n"                                      \
               " wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {" PTX_REGS_0       \
               ", " PTX_REGS_32 ", " PTX_REGS_64 "}, %96, %97, p, 1, 1, %99, %100;\n}"             \
               : PTX_ACC_32(d, 0), PTX_ACC_32(d, 32), PTX_ACC_32(d, 64)                            \
               : "l"(desc_a), "l"(desc_b), "r"((int)(scale_d)), "n"(a_mn), "n"(b_mn)               \
               : "memory")
#define PTX_WGMMA_256(type, d, desc_a, desc_b, scale_d, a_mn, b_mn)                                \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n"                                     \
               " wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" PTX_REGS_0       \
               ", " PTX_REGS_32 ", " PTX_REGS_64 ", " PTX_REGS_96                                  \
               "}, %128, %129, p, 1, 1, %131, %132;\n}"                                            \
               : PTX_ACC_32(d, 0), PTX_ACC_32(d, 32), PTX_ACC_32(d, 64), PTX_ACC_32(d, 96)         \
               : "l"(desc_a), "l"(desc_b), "r"((int)(scale_d)), "n"(a_mn), "n"(b_mn)               \
               : "memory")
#define wgmma_m64n64k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  PTX_WGMMA_64("bf16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n128k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  PTX_WGMMA_128("bf16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n192k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  PTX_WGMMA_192("bf16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n256k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  PTX_WGMMA_256("bf16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n64k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                                \
  PTX_WGMMA_64("f16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n128k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  PTX_WGMMA_128("f16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n192k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  PTX_WGMMA_192("f16", d, desc_a, desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n256k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  PTX_WGMMA_256("f16", d, desc_a, desc_b, scale_d, a_mn, b_mn)

#define wgmma_fence()  asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define wgmma_commit() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wgmma_wait(n)  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

/* Pins d to this place in the program: before wgmma_fence if the program has written d, or the
 * writes may move past it; after the last wait, or uses may move above it and products be dropped
 * as unused. */
#define wgmma_pin(d, count)                                                                        \
  do {                                                                                             \
    UNROLL for (int pin_ = 0; pin_ < (count);                                                      \
                pin_++) asm volatile("" : "+f"((d)[pin_])::"memory");                              \
  } while (0)

#else

#define wgmma_m64n64k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n64k16.bf16", ""), d, 64, LOOM_WGMMA_BF16, desc_a, desc_b, \
             scale_d, a_mn, b_mn)
#define wgmma_m64n128k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n128k16.bf16", ""), d, 128, LOOM_WGMMA_BF16, desc_a,       \
             desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n192k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n192k16.bf16", ""), d, 192, LOOM_WGMMA_BF16, desc_a,       \
             desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n256k16_bf16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                              \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n256k16.bf16", ""), d, 256, LOOM_WGMMA_BF16, desc_a,       \
             desc_b, scale_d, a_mn, b_mn)
#define wgmma_m64n64k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                                \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n64k16.f16", ""), d, 64, LOOM_WGMMA_F16, desc_a, desc_b,   \
             scale_d, a_mn, b_mn)
#define wgmma_m64n128k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n128k16.f16", ""), d, 128, LOOM_WGMMA_F16, desc_a, desc_b, \
             scale_d, a_mn, b_mn)
#define wgmma_m64n192k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n192k16.f16", ""), d, 192, LOOM_WGMMA_F16, desc_a, desc_b, \
             scale_d, a_mn, b_mn)
#define wgmma_m64n256k16_f16(d, desc_a, desc_b, scale_d, a_mn, b_mn)                               \
  loom_wgmma(LOOM_SITE(plain, "wgmma.m64n256k16.f16", ""), d, 256, LOOM_WGMMA_F16, desc_a, desc_b, \
             scale_d, a_mn, b_mn)

#define wgmma_fence()       loom_wgmma_fence(LOOM_SITE(fence, "wgmma.fence", ""))
#define wgmma_commit()      loom_wgmma_commit(LOOM_SITE(plain, "wgmma.commit_group", ""))
#define wgmma_wait(n)       loom_wgmma_wait(LOOM_SITE(wait, "wgmma.wait_group", ""), n)
#define wgmma_pin(d, count) ((void)(d))

#endif
#endif
