/* Rules of wgmma: operands belong to the async proxy, accumulators to whoever waits. */
#include "body.h"

/* A 64x64 tile of 16-bit elements, rows of 128 bytes. */
#define TILE_BYTES 8192u

DEV uint64_t tile_desc(struct smem tile) {
  return wgmma_desc(tile, 0, 1024, WGMMA_SWIZZLE_128B);
}

/* Operands written by ordinary stores. */
WEFT_KERNEL(LITMUS(wgmma_operand), 128, struct litmus_args, args) {
  float d[32] = {0};
  for (uint32_t i = 0; i < TILE_BYTES; i += 2048)
    st_shared_u32x4(smem_add(stage_base(), i + 16 * thread_index()), splat(0x3f803f80u));
#if LITMUS_MENDED
  fence_proxy_async_shared_cta(operand_written); /* tile stores -> wgmma */
#endif
  bar_sync(0, 128);
  wgmma_fence();
  wgmma_m64n64k16_bf16(d, tile_desc(stage_base()), tile_desc(stage_base()), 0, 0, 0);
  wgmma_commit();
  wgmma_wait(0);
  wgmma_pin(d, 32);
  st_global_f32(gmem_add(args.out, 4 * thread_index()), d[0] + d[31]);
}

/* A stage handed back while wgmma may still read it. Warp 4 produces. */
WEFT_KERNEL(LITMUS(wgmma_no_wait), 160, struct litmus_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(full_barrier(), 1);
    mbarrier_init(empty_barrier(), 4);
  }
  bar_sync(0, 160);
  if (thread_index() == 128) {
    for (uint32_t i = 0; i < 2; i++) {
      mbarrier_wait(empty_barrier(), (i & 1) ^ 1);
      mbarrier_arrive_expect_tx(full_barrier(), TILE_BYTES);
      bulk_load(stage_base(), args.data, TILE_BYTES, full_barrier());
    }
  } else if (thread_index() < 128) {
    float d[32] = {0};
    for (uint32_t i = 0; i < 2; i++) {
      mbarrier_wait(full_barrier(), i & 1);
      wgmma_fence();
      wgmma_m64n64k16_bf16(d, tile_desc(stage_base()), tile_desc(stage_base()), i, 0, 0);
      wgmma_commit();
#if LITMUS_MENDED
      wgmma_wait(0);
#endif
      if (lane_index() == 0) mbarrier_arrive(empty_barrier());
    }
#if !LITMUS_MENDED
    wgmma_wait(0);
#endif
    wgmma_pin(d, 32);
    st_global_f32(gmem_add(args.out, 4 * thread_index()), d[0] + d[31]);
  }
}

/* Accumulators that the program has written. */
WEFT_KERNEL(LITMUS(wgmma_no_fence), 128, struct litmus_args, args) {
  float d[32];
  for (uint32_t i = 0; i < TILE_BYTES; i += 2048)
    st_shared_u32x4(smem_add(stage_base(), i + 16 * thread_index()), splat(0x3f803f80u));
  fence_proxy_async_shared_cta(no_fence_written); /* tile stores -> wgmma */
  bar_sync(0, 128);
  UNROLL for (int i = 0; i < 32; i++) d[i] = 1.0f;
  wgmma_pin(d, 32);
#if LITMUS_MENDED
  wgmma_fence();
#endif
  wgmma_m64n64k16_bf16(d, tile_desc(stage_base()), tile_desc(stage_base()), 1, 0, 0);
  wgmma_commit();
  wgmma_wait(0);
  wgmma_pin(d, 32);
  st_global_f32(gmem_add(args.out, 4 * thread_index()), d[0] + d[31]);
}
