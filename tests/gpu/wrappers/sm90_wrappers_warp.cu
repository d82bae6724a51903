/* Operations of warps and CTAs, matrices in shared memory, and conversions. */
#include "device/ptx/ptx.h"
#include "wrapper_args.h"

/* 128 threads, 16 bytes each of `in`, 64 of `out`. */
WEFT_KERNEL(wrapper_sync, 128, struct wrapper_args, args) {
  const uint32_t t = thread_index(), lane = lane_index();
  const struct gmem out = gmem_add(args.out, t * 64);
  const uint32_t v = ld_global_u32(gmem_add(args.in, t * 16));
  const float f = ld_global_f32(gmem_add(args.in, t * 16 + 4));
  const struct smem own = smem_add(smem_base(), t * 4);
  struct u32x4 r;
  r.x = shfl_u32(v, (lane * 7 + 3) % 32);
  r.y = shfl_xor_u32(v, 21);
  r.z = f32_bits(shfl_f32(f, 31 - lane));
  r.w = f32_bits(shfl_xor_f32(f, 8));
  st_global_u32x4(out, r);
  st_global_u32(gmem_add(out, 16), warp_ballot(v & 1));
  /* exactly one lane is elected, which one is not said */
  const uint32_t elected = warp_ballot(elect_one());
  st_global_u32(gmem_add(out, 20), elected != 0 && (elected & (elected - 1)) == 0);
  /* a warp at a time: neighbours through shared memory */
  st_shared_u32(own, v);
  warp_sync();
  st_global_u32(gmem_add(out, 24), ld_shared_u32(smem_add(smem_base(), (t ^ 5) * 4)));
  /* the whole CTA */
  bar_sync(0, 128);
  st_global_u32(gmem_add(out, 28), ld_shared_u32(smem_add(smem_base(), (127 - t) * 4)));
  bar_sync(0, 128);
  /* two warps produce, two consume, by a named barrier */
  if (warp_index() < 2) {
    st_shared_u32(own, ~v);
    bar_arrive(3, 128);
    st_global_u32(gmem_add(out, 32), 0);
  } else {
    bar_sync(3, 128);
    st_global_u32(gmem_add(out, 32), ld_shared_u32(smem_add(smem_base(), (t - 64) * 4)));
  }
  st_global_u32(gmem_add(out, 36), thread_index() + thread_count() * 1000);
}

/* One warp: 512 bytes of four 8x8 matrices. ldmatrix of `in`, plain and transposed; then stmatrix,
 * plain and transposed, of the plain registers. `out`: 512 bytes each of the four. */
WEFT_KERNEL(wrapper_matrix, 32, struct wrapper_args, args) {
  const uint32_t t = thread_index();
  const struct smem source = smem_base(), plain = smem_add(source, 512),
                    turned = smem_add(source, 1024);
  st_shared_u32x4(smem_add(source, t * 16), ld_global_u32x4(gmem_add(args.in, t * 16)));
  warp_sync();
  /* rows in an order of their own, so that the address of every lane counts */
  const uint32_t row = (t * 5 + 3) % 32 * 16;
  const struct u32x4 a = ldmatrix_x4(smem_add(source, row));
  const struct u32x4 b = ldmatrix_x4_trans(smem_add(source, row));
  st_global_u32x4(gmem_add(args.out, t * 16), a);
  st_global_u32x4(gmem_add(args.out, 512 + t * 16), b);
  stmatrix_x4(smem_add(plain, row), a);
  stmatrix_x4_trans(smem_add(turned, row), a);
  warp_sync();
  st_global_u32x4(gmem_add(args.out, 1024 + t * 16), ld_shared_u32x4(smem_add(plain, t * 16)));
  st_global_u32x4(gmem_add(args.out, 1536 + t * 16), ld_shared_u32x4(smem_add(turned, t * 16)));
}

/* 128 threads; conversions and exact arithmetic of pairs of arbitrary bit patterns. 16 bytes in,
 * 40 out. The approximate functions (ex2, lg2, tanh, rcp) are not here: loom's are libm's. */
WEFT_KERNEL(wrapper_convert, 128, struct wrapper_args, args) {
  const uint32_t t = thread_index();
  const struct gmem out = gmem_add(args.out, t * 40);
  const struct u32x4 v = ld_global_u32x4(gmem_add(args.in, t * 16));
  const float a = bits_f32(v.x), b = bits_f32(v.y), c = bits_f32(v.z);
  st_global_u32(out, pack_bf16x2(a, b));
  st_global_u32(gmem_add(out, 4), pack_f16x2(a, b));
  st_global_u32(gmem_add(out, 8), pack_e4m3x2(a, b));
  st_global_f32(gmem_add(out, 12), f16_f32(v.w & 0xffffu));
  st_global_f32(gmem_add(out, 16), bf16x2_lo(v.w));
  st_global_f32(gmem_add(out, 20), bf16x2_hi(v.w));
  st_global_f32(gmem_add(out, 24), max_f32(a, b));
  st_global_f32(gmem_add(out, 28), min_f32(a, b));
  st_global_f32(gmem_add(out, 32), fma_f32(a, b, c));
  st_global_u32(gmem_add(out, 36), f32_bits(c));
}
