/* One small kernel for each group of wrappers: what goes in and what comes out is plain memory, so
 * the same kernels run on a GPU with the same inputs. */
#include "wrappers.h"

#include "device/ptx/ptx.h"

DEV struct smem bar_of(uint32_t i) {
  return smem_add(smem_base(), 8 * i);
}
DEV struct smem image(void) {
  return smem_add(smem_base(), 1024);
}
DEV struct gmem word(struct gmem p, uint32_t i) {
  return gmem_add(p, 4ull * i);
}

/* Shared memory to out, 16 bytes a thread at a time. */
DEV void dump(struct gmem out, uint32_t bytes) {
  for (uint32_t i = 16 * thread_index(); i < bytes; i += 16 * thread_count())
    st_global_u32x4(gmem_add(out, i), ld_shared_u32x4(smem_add(image(), i)));
}

/* in to shared memory, by ordinary accesses. */
DEV void fill(struct gmem in, uint32_t bytes) {
  for (uint32_t i = 16 * thread_index(); i < bytes; i += 16 * thread_count())
    st_shared_u32x4(smem_add(image(), i), ld_global_u32x4(gmem_add(in, i)));
  fence_proxy_async_shared_cta(wrappers_filled); /* fill -> the async operation under test */
  bar_sync(0, thread_count());
}

WEFT_KERNEL(wrappers_tensor_load, 128, struct wrappers_args, args) {
  if (thread_index() == 0) {
    mbarrier_init(bar_of(0), 1);
    mbarrier_arrive_expect_tx(bar_of(0), args.bytes);
    if (args.rank == 2)
      tensor_load_2d(image(), &args.map, bar_of(0), args.at[0], args.at[1]);
    else
      tensor_load_3d(image(), &args.map, bar_of(0), args.at[0], args.at[1], args.at[2]);
  }
  bar_sync(0, 128);
  mbarrier_wait(bar_of(0), 0);
  dump(args.out, args.bytes);
}

WEFT_KERNEL(wrappers_tensor_store, 128, struct wrappers_args, args) {
  fill(args.in, args.bytes);
  if (thread_index() == 0) {
    if (args.rank == 3)
      tensor_store_3d(&args.map, image(), args.at[0], args.at[1], args.at[2]);
    else if (args.reduce)
      tensor_reduce_add_2d(&args.map, image(), args.at[0], args.at[1]);
    else
      tensor_store_2d(&args.map, image(), args.at[0], args.at[1]);
    bulk_commit();
    bulk_wait_group(0);
  }
}

WEFT_KERNEL(wrappers_bulk_store, 128, struct wrappers_args, args) {
  fill(args.in, args.bytes);
  if (thread_index() == 0) {
    if (args.reduce == 1)
      bulk_reduce_add_f32(args.out, image(), args.bytes);
    else if (args.reduce == 2)
      bulk_reduce_add_bf16(args.out, image(), args.bytes);
    else
      bulk_store(args.out, image(), args.bytes);
    bulk_commit();
    bulk_wait_group(0);
  }
}

/* Both CTAs get in by multicast; then CTA 0 pushes its copy to CTA 1, 16 KiB further on. */
WEFT_KERNEL_CLUSTER(wrappers_cluster, 128, 2, struct wrappers_args, args) {
  const struct smem second = smem_add(image(), 16384);
  if (thread_index() == 0) {
    mbarrier_init(bar_of(0), 1);
    mbarrier_init(bar_of(1), 1);
    fence_mbarrier_init(wrappers_cluster_init);
    mbarrier_arrive_expect_tx(bar_of(0), args.bytes);
    mbarrier_arrive_expect_tx(bar_of(1), args.bytes);
  }
  cluster_sync();
  if (thread_index() == 0 && cluster_rank() == 1)
    bulk_load_multicast(image(), args.in, args.bytes, bar_of(0), 3);
  mbarrier_wait(bar_of(0), 0);
  if (cluster_rank() == 0) {
    if (thread_index() == 0)
      bulk_push(cluster_map(second, 1), image(), args.bytes, cluster_map(bar_of(1), 1));
    dump(args.out, args.bytes);
  } else {
    mbarrier_wait(bar_of(1), 0);
    for (uint32_t i = 16 * thread_index(); i < args.bytes; i += 16 * thread_count())
      st_global_u32x4(gmem_add(args.out, args.bytes + i), ld_shared_u32x4(smem_add(second, i)));
  }
  cluster_sync();
  /* remote ordinary accesses: each CTA leaves a word per thread in the other */
  const struct dsmem there = cluster_map(smem_add(second, 4 * thread_index()), cluster_rank() ^ 1);
  st_dsmem_u32(there, 1000 * cluster_rank() + thread_index());
  cluster_sync();
  st_global_u32(word(gmem_add(args.out, 2 * args.bytes), 128 * cluster_rank() + thread_index()),
                ld_shared_u32(smem_add(second, 4 * thread_index())));
}

#define MULTIPLY(N, TYPE, A_MN, B_MN)                                                              \
  {                                                                                                \
    float d[N / 2];                                                                                \
    UNROLL for (int i = 0; i < N / 2; i++) d[i] = (float)i;                                        \
    wgmma_pin(d, N / 2);                                                                           \
    wgmma_fence();                                                                                 \
    wgmma_m64n##N##k16_##TYPE(d, a, b, args.reduce, A_MN, B_MN);                                   \
    if (args.k_step)                                                                               \
      wgmma_m64n##N##k16_##TYPE(d, a + (args.k_step >> 4), b + (args.k_step >> 4), 1, A_MN, B_MN); \
    wgmma_commit();                                                                                \
    wgmma_wait(0);                                                                                 \
    wgmma_pin(d, N / 2);                                                                           \
    UNROLL for (int i = 0; i < N / 2; i++)                                                         \
        st_global_f32(word(args.out, thread_index() * (N / 2) + (uint32_t)i), d[i]);               \
  }
#define MULTIPLY_N(TYPE, A_MN, B_MN, base)                                                         \
  case base + 0:                                                                                   \
    MULTIPLY(64, TYPE, A_MN, B_MN) break;                                                          \
  case base + 1:                                                                                   \
    MULTIPLY(128, TYPE, A_MN, B_MN) break;                                                         \
  case base + 2:                                                                                   \
    MULTIPLY(192, TYPE, A_MN, B_MN) break;                                                         \
  case base + 3:                                                                                   \
    MULTIPLY(256, TYPE, A_MN, B_MN) break;

/* Accumulators start as 0, 1, 2 ...; `reduce` says whether they count. */
WEFT_KERNEL(wrappers_wgmma, 128, struct wrappers_args, args) {
  fill(args.in, args.bytes);
  const uint64_t a = wgmma_desc(image(), args.lbo, args.sbo, args.swizzle);
  const uint64_t b = wgmma_desc(smem_add(image(), args.b_offset), args.lbo, args.sbo, args.swizzle);
  switch (args.variant) {
    MULTIPLY_N(bf16, 0, 0, 0)
    MULTIPLY_N(f16, 0, 0, 4)
    MULTIPLY_N(bf16, 1, 0, 8)
    MULTIPLY_N(f16, 1, 0, 12)
    MULTIPLY_N(bf16, 0, 1, 16)
    MULTIPLY_N(f16, 0, 1, 20)
    MULTIPLY_N(bf16, 1, 1, 24)
    MULTIPLY_N(f16, 1, 1, 28)
  default:
    break;
  }
}

/* in: 512 bytes, four 8x8 matrices, rows of 16 bytes. out: registers of ldmatrix, of ldmatrix.trans
 * (4 words a lane each), then what stmatrix and stmatrix.trans of lane's own numbers leave in
 * memory. */
WEFT_KERNEL(wrappers_matrix, 32, struct wrappers_args, args) {
  const uint32_t lane = lane_index();
  const struct smem row = smem_add(image(), 16 * lane);
  fill(args.in, 512);
  st_global_u32x4(gmem_add(args.out, 16 * lane), ldmatrix_x4(row));
  st_global_u32x4(gmem_add(args.out, 512 + 16 * lane), ldmatrix_x4_trans(row));
  struct u32x4 v;
  v.x = 1000 * lane | (1000 * lane + 1) << 16;
  v.y = (1000 * lane + 2) | (1000 * lane + 3) << 16;
  v.z = (1000 * lane + 4) | (1000 * lane + 5) << 16;
  v.w = (1000 * lane + 6) | (1000 * lane + 7) << 16;
  warp_sync();
  stmatrix_x4(row, v);
  warp_sync();
  st_global_u32x4(gmem_add(args.out, 1024 + 16 * lane), ld_shared_u32x4(row));
  warp_sync();
  stmatrix_x4_trans(row, v);
  warp_sync();
  st_global_u32x4(gmem_add(args.out, 1536 + 16 * lane), ld_shared_u32x4(row));
}

/* in: f32 values, one a thread. out, 8 words a thread. */
WEFT_KERNEL(wrappers_convert, 128, struct wrappers_args, args) {
  const uint32_t i = cta_index() * 128 + thread_index();
  const float v = bits_f32(ld_global_u32(word(args.in, i)));
  const struct gmem o = word(args.out, 8 * i);
  st_global_u32(word(o, 0), pack_bf16x2(v, 1.0f));
  st_global_u32(word(o, 1), pack_f16x2(v, 1.0f));
  st_global_u32(word(o, 2), pack_e4m3x2(v, 1.0f));
  st_global_f32(word(o, 3), f16_f32(f32_bits(v) & 0xffffu));
  st_global_f32(word(o, 4), bf16x2_hi(f32_bits(v)));
  st_global_f32(word(o, 5), bf16x2_lo(f32_bits(v)));
  st_global_f32(word(o, 6), max_f32(v, 2.0f));
  st_global_f32(word(o, 7), fma_f32(v, v, 1.0f));
}

/* Lane operations and atomics. out: 4 words a thread, then words that all threads work on. */
WEFT_KERNEL(wrappers_warp, 64, struct wrappers_args, args) {
  const uint32_t t = thread_index(), lane = lane_index();
  const struct gmem o = word(args.out, 4 * t), common = word(args.out, 4 * 64);
  st_global_u32(word(o, 0), shfl_u32(t * 3, 5));
  st_global_u32(word(o, 1), f32_bits(shfl_xor_f32((float)t, 8)));
  st_global_u32(word(o, 2), warp_ballot(lane % 3 == 0));
  st_global_u32(word(o, 3), elect_one());
  (void)atom_add_u32(relaxed, gpu, word(common, 0), t);
  red_add_u32(relaxed, gpu, word(common, 1), 1);
  (void)atom_cas_u32(relaxed, gpu, word(common, 2), 0, t + 1);
  red_add_f32(word(common, 3), 0.5f);
  (void)atom_add_u64(relaxed, gpu, word(common, 4), 1ull << 33);
  struct f32x2 two;
  two.x = 1.0f;
  two.y = 2.0f;
  red_add_f32x2(word(common, 6), two);
  if (t == 7) (void)atom_exch_u32(relaxed, gpu, word(common, 8), 77);
}

/* Phases of one mbarrier of count 2, seen by try_wait after each step. out: a word a step. */
WEFT_KERNEL(wrappers_mbarrier, 32, struct wrappers_args, args) {
  if (thread_index() != 0) return;
  uint32_t n = 0;
  mbarrier_init(bar_of(0), 2);
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 1)); /* the phase before: done */
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 0));
  mbarrier_arrive(bar_of(0));
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 0));
  mbarrier_arrive(bar_of(0));
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 0)); /* phase 0 done */
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 1));
  mbarrier_arrive_expect_tx(bar_of(0), 32);
  mbarrier_arrive(bar_of(0));
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 1)); /* bytes are missing */
  mbarrier_expect_tx(bar_of(0), 16);
  bulk_load(image(), args.in, 32, bar_of(0));
  bulk_load(smem_add(image(), 32), args.in, 16, bar_of(0));
  mbarrier_wait(bar_of(0), 1);
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 1));
  mbarrier_inval(bar_of(0));
  mbarrier_init(bar_of(0), 1);
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 0)); /* starts over */
  mbarrier_arrive(bar_of(0));
  st_global_u32(word(args.out, n++), mbarrier_try_wait(bar_of(0), 0));
}
