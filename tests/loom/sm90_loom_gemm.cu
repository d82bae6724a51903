/* A warp-specialised, persistent GEMM in device C, as a test of loom: cluster of two with
 * multicast, tensor maps, wgmma, and an epilogue by stmatrix and tensor stores. Warpgroup 0 loads,
 * 1 and 2 multiply 64 rows each. */
#include "gemm.h"

#include "device/ptx/ptx.h"

#define STAGES      GEMM_STAGES
#define A_BYTES     16384u
#define STAGE_BYTES 32768u

DEV struct smem full_of(uint32_t stage) {
  return smem_add(smem_base(), 8 * stage);
}
DEV struct smem empty_of(uint32_t stage) {
  return smem_add(smem_base(), 8 * (STAGES + stage));
}
DEV struct smem stage_of(uint32_t stage) {
  return smem_add(smem_base(), 1024 + STAGE_BYTES * stage);
}
DEV struct smem output(void) {
  return smem_add(smem_base(), 1024 + STAGE_BYTES * STAGES);
}

DEV void load_tiles(const struct gemm_args *args) {
  uint32_t n = 0;
  for (uint32_t tile = cta_index() / 2; tile < args->tiles_m / 2 * args->tiles_n;
       tile += cta_count() / 2) {
    const uint32_t m = 2 * (tile % (args->tiles_m / 2)) + cluster_rank();
    const uint32_t v = tile / (args->tiles_m / 2);
    for (uint32_t k = 0; k < args->steps; k++, n++) {
      const uint32_t s = n % STAGES;
      mbarrier_wait(empty_of(s), (n / STAGES & 1) ^ 1);
      mbarrier_arrive_expect_tx(full_of(s), STAGE_BYTES);
      tensor_load_2d(stage_of(s), &args->a, full_of(s), (int32_t)(64 * k), (int32_t)(128 * m));
      tensor_load_2d_multicast(smem_add(stage_of(s), A_BYTES + 8192 * cluster_rank()), &args->b,
                               full_of(s), 3, (int32_t)(64 * k),
                               (int32_t)(128 * v + 64 * cluster_rank()));
    }
  }
}

/* Rows of C as bf16, through shared memory. */
DEV void store_tile(const struct gemm_args *args, const float *d, uint32_t group, uint32_t m,
                    uint32_t v) {
  const uint32_t t = thread_index() % 128, lane = lane_index();
  const struct smem out = smem_add(output(), 16384 * group);
  if (t == 0) bulk_wait_group_read(0);
  bar_sync(1 + group, 128);
  const uint32_t row = t / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
  UNROLL for (uint32_t j = 0; j < 16; j += 2) {
    const uint32_t column = j + lane / 16; /* of 8 elements */
    const uint32_t at = column / 8 * 8192 + row * 128 + (column % 8 ^ row % 8) * 16;
    struct u32x4 v4;
    v4.x = pack_bf16x2(d[4 * j], d[4 * j + 1]);
    v4.y = pack_bf16x2(d[4 * j + 2], d[4 * j + 3]);
    v4.z = pack_bf16x2(d[4 * j + 4], d[4 * j + 5]);
    v4.w = pack_bf16x2(d[4 * j + 6], d[4 * j + 7]);
    stmatrix_x4(smem_add(out, at), v4);
  }
  fence_proxy_async_shared_cta(gemm_out_written); /* stmatrix -> tensor store */
  bar_sync(1 + group, 128);
  if (t == 0) {
    for (uint32_t h = 0; h < 2; h++)
      tensor_store_2d(&args->c, smem_add(out, 8192 * h), (int32_t)(128 * v + 64 * h),
                      (int32_t)(128 * m + 64 * group));
    bulk_commit();
  }
}

DEV void multiply_tiles(const struct gemm_args *args, uint32_t group) {
  float d[64];
  uint32_t n = 0;
  for (uint32_t tile = cta_index() / 2; tile < args->tiles_m / 2 * args->tiles_n;
       tile += cta_count() / 2) {
    const uint32_t m = 2 * (tile % (args->tiles_m / 2)) + cluster_rank();
    const uint32_t v = tile / (args->tiles_m / 2);
    for (uint32_t k = 0; k < args->steps; k++, n++) {
      const uint32_t s = n % STAGES;
      mbarrier_wait(full_of(s), n / STAGES & 1);
      const uint64_t a =
          wgmma_desc(smem_add(stage_of(s), 8192 * group), 0, 1024, WGMMA_SWIZZLE_128B);
      const uint64_t b = wgmma_desc(smem_add(stage_of(s), A_BYTES), 0, 1024, WGMMA_SWIZZLE_128B);
      wgmma_fence();
      UNROLL for (uint32_t q = 0; q < 4; q++)
          wgmma_m64n128k16_bf16(d, a + 2 * q, b + 2 * q, k + q, 0, 0);
      wgmma_commit();
      if (k > 0) {
        wgmma_wait(1);
        if (thread_index() % 128 < 2)
          mbarrier_arrive_remote(cluster_map(empty_of((n - 1) % STAGES), thread_index() % 128));
      }
    }
    wgmma_wait(0);
    if (thread_index() % 128 < 2)
      mbarrier_arrive_remote(cluster_map(empty_of((n - 1) % STAGES), thread_index() % 128));
    wgmma_pin(d, 64);
    store_tile(args, d, group, m, v);
  }
  if (thread_index() % 128 == 0) bulk_wait_group(0);
}

WEFT_KERNEL_CLUSTER(test_gemm, 384, 2, struct gemm_args, args) {
  if (thread_index() == 0) {
    for (uint32_t s = 0; s < STAGES; s++) {
      mbarrier_init(full_of(s), 1);
      mbarrier_init(empty_of(s), 4); /* two warpgroups in each of two CTAs */
    }
    fence_mbarrier_init(gemm_init);
  }
  cluster_sync();
  if (thread_index() < 128) {
    setmaxnreg_dec(40);
    if (thread_index() == 0) load_tiles(&args);
  } else {
    setmaxnreg_inc(232);
    multiply_tiles(&args, thread_index() / 128 - 1);
  }
  cluster_sync();
}
