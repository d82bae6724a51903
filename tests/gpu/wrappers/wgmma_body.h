/* One warpgroup multiplies raw shared memory by two wgmma steps, for every swizzle and major of
 * both operands, and dumps its accumulators. What the bytes mean is up to the descriptors: that is
 * the test. An instance defines WGMMA_COLUMNS. */
#include "device/ptx/ptx.h"
#include "wrapper_args.h"

#define WGMMA_PASTE_(n, type)  wgmma_m64n##n##k16_##type
#define WGMMA_PASTE(n, type)   WGMMA_PASTE_(n, type)
#define KERNEL_PASTE_(n, type) wrapper_wgmma_##n##_##type
#define KERNEL_PASTE(n, type)  KERNEL_PASTE_(n, type)

enum { WGMMA_A_BYTES = 16384, WGMMA_IN_BYTES = 49152 };

/* Tiles are packed as tightly as their two steps allow. Strides: PTX ISA, "Strides" of the matrix
 * descriptor; `step` takes an operand to its second 16 of depth. */
DEV uint64_t operand(struct smem at, uint32_t swizzle, uint32_t mn_major, uint32_t step) {
  const uint32_t width = swizzle == WGMMA_SWIZZLE_128B  ? 128
                         : swizzle == WGMMA_SWIZZLE_64B ? 64
                         : swizzle == WGMMA_SWIZZLE_32B ? 32
                                                        : 16;
  uint32_t lbo, sbo, advance;
  if (width == 16) { /* core matrices of 128 bytes, four side by side in depth */
    lbo = 128;
    sbo = 512;
    advance = 256;
  } else if (mn_major) { /* atoms of 8 lines of `width`, four of them in depth */
    sbo = width * 8;
    lbo = sbo * 4;
    advance = sbo * 2;
  } else { /* 8 lines of `width`; 32 bytes of a line a step, or a second tile where that is all */
    lbo = 16;
    sbo = width * 8;
    advance = width == 32 ? 8192 : 32;
  }
  return wgmma_desc(at, lbo, sbo, swizzle) + step * (advance / 16);
}

#define MULTIPLY(type, a_mn, b_mn)                                                                 \
  do {                                                                                             \
    wgmma_fence();                                                                                 \
    UNROLL for (uint32_t step = 0; step < 2; step++) {                                             \
      WGMMA_PASTE(WGMMA_COLUMNS, type)                                                             \
      (d, operand(a, swizzle_a, a_mn, step), operand(b, swizzle_b, b_mn, step), step, a_mn, b_mn); \
    }                                                                                              \
    wgmma_commit();                                                                                \
    wgmma_wait(0);                                                                                 \
    wgmma_pin(d, WGMMA_COLUMNS / 2);                                                               \
  } while (0)

/* Parameter: swizzle of A, of B (two bits each, as descriptors have them), A MN-major, B MN-major.
 */
#define WGMMA_KERNEL(type)                                                                         \
  WEFT_KERNEL(KERNEL_PASTE(WGMMA_COLUMNS, type), 128, struct wrapper_args, args) {                 \
    const uint32_t t = thread_index(), p = args.parameter;                                         \
    const uint32_t swizzle_a = p & 3, swizzle_b = p >> 2 & 3;                                      \
    const struct smem bar = smem_base(), a = smem_add(bar, 1024), b = smem_add(a, WGMMA_A_BYTES);  \
    if (t == 0) {                                                                                  \
      mbarrier_init(bar, 1);                                                                       \
      mbarrier_arrive_expect_tx(bar, WGMMA_IN_BYTES);                                              \
      bulk_load(a, args.in, WGMMA_IN_BYTES, bar);                                                  \
    }                                                                                              \
    bar_sync(0, 128);                                                                              \
    mbarrier_wait(bar, 0);                                                                         \
    float d[WGMMA_COLUMNS / 2];                                                                    \
    switch (p >> 4 & 3) {                                                                          \
    case 0:                                                                                        \
      MULTIPLY(type, 0, 0);                                                                        \
      break;                                                                                       \
    case 1:                                                                                        \
      MULTIPLY(type, 1, 0);                                                                        \
      break;                                                                                       \
    case 2:                                                                                        \
      MULTIPLY(type, 0, 1);                                                                        \
      break;                                                                                       \
    default:                                                                                       \
      MULTIPLY(type, 1, 1);                                                                        \
      break;                                                                                       \
    }                                                                                              \
    UNROLL for (uint32_t i = 0; i < WGMMA_COLUMNS / 2; i++)                                        \
        st_global_f32(gmem_add(args.out, (i * 128 + t) * 4), d[i]);                                \
  }

WGMMA_KERNEL(bf16)
WGMMA_KERNEL(f16)
