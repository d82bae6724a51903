/* mbarriers, bulk copies and bulk reductions, tensor copies with their swizzles, in one CTA and in
 * a cluster of two. Shared memory is dumped raw, so swizzle patterns and zero fill show. */
#include "device/ptx/ptx.h"
#include "wrapper_args.h"

/* Shared memory from byte 1024 on is data, below are barriers. */
DEV struct smem data_at(uint32_t bytes) {
  return smem_add(smem_base(), 1024 + bytes);
}
DEV struct smem bar_at(uint32_t i) {
  return smem_add(smem_base(), i * 8);
}

/* Clears `bytes` of data to 0x77, so that what a copy leaves alone is seen, and hands it to the
 * async proxy. All threads of a CTA of `threads`. */
DEV void clear_data(uint32_t bytes, uint32_t threads) {
  struct u32x4 v;
  v.x = v.y = v.z = v.w = 0x77777777u;
  for (uint32_t i = thread_index() * 16; i < bytes; i += threads * 16)
    st_shared_u32x4(data_at(i), v);
  /* these stores, before the copies that overwrite them */
  fence_proxy_async_shared_cta(wrapper_clear);
}

DEV void dump_data(struct gmem to, uint32_t bytes, uint32_t threads) {
  for (uint32_t i = thread_index() * 16; i < bytes; i += threads * 16)
    st_global_u32x4(gmem_add(to, i), ld_shared_u32x4(data_at(i)));
}

/* One thread walks a barrier of two arrivals through its phases and writes down what try_wait says
 * of either parity at each step. */
WEFT_KERNEL(wrapper_mbarrier, 32, struct wrapper_args, args) {
  const struct smem bar = bar_at(0), other = bar_at(1);
  if (thread_index() == 0) {
    uint32_t n = 0;
    mbarrier_init(bar, 2);
    mbarrier_init(other, 1);
#define LOOK(b)                                                                                    \
  do {                                                                                             \
    st_global_u32(gmem_add(args.out, n), mbarrier_try_wait(b, 0));                                 \
    st_global_u32(gmem_add(args.out, n + 4), mbarrier_try_wait_cluster(b, 1));                     \
    n += 8;                                                                                        \
  } while (0)
    LOOK(bar); /* fresh: phase 0 runs, the one before it counts as complete */
    mbarrier_arrive(bar);
    LOOK(bar);
    mbarrier_arrive(bar);
    LOOK(bar); /* phase 0 complete */
    mbarrier_arrive_expect_tx(bar, 64);
    mbarrier_arrive(bar);
    LOOK(bar); /* all have arrived, 64 bytes are missing */
    bulk_load(data_at(0), args.in, 48, bar);
    bulk_load(data_at(48), gmem_add(args.in, 48), 16, bar);
    mbarrier_wait(bar, 1);
    LOOK(bar); /* phase 1 complete */
    mbarrier_expect_tx(other, 32);
    LOOK(other);
    mbarrier_arrive(other);
    LOOK(other);
    bulk_load(data_at(64), args.in, 32, other);
    mbarrier_wait_cluster(other, 0);
    LOOK(other);
    mbarrier_inval(other);
    mbarrier_init(other, 1);
    LOOK(other);
    for (uint32_t i = 0; i < 96; i += 4)
      st_global_u32(gmem_add(args.out, 128 + i), ld_shared_u32(data_at(i)));
#undef LOOK
  }
}

/* Loads of several sizes, stores, and reductions in f32 and bf16. `in`: 8 KiB; `out`: the 4 KiB
 * that were loaded and stored, then 2 KiB of f32 sums and 2 KiB of bf16 sums. */
WEFT_KERNEL(wrapper_bulk, 32, struct wrapper_args, args) {
  const struct smem bar = bar_at(0);
  const uint32_t t = thread_index();
  if (t == 0) {
    mbarrier_init(bar, 1);
    mbarrier_arrive_expect_tx(bar, 8192);
    uint32_t at = 0;
    /* 16, 32, 48, ... bytes, the rest in one */
    for (uint32_t bytes = 16; bytes <= 256; bytes += 16) {
      bulk_load(data_at(at), gmem_add(args.in, at), bytes, bar);
      at += bytes;
    }
    bulk_load(data_at(at), gmem_add(args.in, at), 8192 - at, bar);
    mbarrier_wait(bar, 0);
    bulk_store(args.out, data_at(0), 1024);
    bulk_commit();
    bulk_store(gmem_add(args.out, 1024), data_at(1024), 3072);
    bulk_commit();
    bulk_wait_group(1);
    /* the sums' first terms are stores, on top of which the reductions add */
    bulk_store(gmem_add(args.out, 4096), data_at(4096), 2048);
    bulk_store(gmem_add(args.out, 6144), data_at(6144), 2048);
    bulk_commit();
    bulk_wait_group(0);
    bulk_reduce_add_f32(gmem_add(args.out, 4096), data_at(4096), 2048);
    bulk_reduce_add_bf16(gmem_add(args.out, 6144), data_at(6144), 2048);
    bulk_commit();
    bulk_wait_group_read(0);
    bulk_wait_group(0);
  }
}

/* A cluster of two: rank 0 multicasts to both, each pushes to the other, arrivals cross over. Each
 * CTA dumps 2 KiB. */
WEFT_KERNEL_CLUSTER(wrapper_bulk_cluster, 32, 2, struct wrapper_args, args) {
  const uint32_t rank = cluster_rank();
  const struct smem multicast = bar_at(0), pushed = bar_at(1), arrived = bar_at(2);
  clear_data(2048, 32);
  warp_sync();
  if (thread_index() == 0) {
    mbarrier_init(multicast, 1);
    mbarrier_init(pushed, 1);
    mbarrier_init(arrived, 3);
    mbarrier_arrive_expect_tx(multicast, 512);
    mbarrier_arrive_expect_tx(pushed, 512);
    fence_mbarrier_init(wrapper_cluster_init);
  }
  cluster_sync();
  if (thread_index() == 0) {
    if (rank == 0) bulk_load_multicast(data_at(256), args.in, 512, multicast, 3);
    mbarrier_wait(multicast, 0);
    bulk_push(cluster_map(data_at(1024), rank ^ 1), data_at(256), 512,
              cluster_map(pushed, rank ^ 1));
    mbarrier_arrive_remote(cluster_map(arrived, rank ^ 1));
    mbarrier_arrive_remote_cluster(cluster_map(arrived, rank ^ 1));
    mbarrier_arrive_expect_tx_remote(cluster_map(arrived, rank ^ 1), 0);
  }
  mbarrier_wait(pushed, 0);
  mbarrier_wait_cluster(arrived, 0);
  /* all threads, also those that did not wait for `multicast`: `pushed` of this CTA says nothing of
   * it */
  mbarrier_wait(multicast, 0);
  dump_data(gmem_add(args.out, rank * 2048), 2048, 32);
  cluster_sync();
}

/* Loads four boxes of a 2-D tensor, inside it and across each edge, and dumps shared memory. The
 * parameter is the box's size in bytes, and above 16 bits its columns. */
WEFT_KERNEL(wrapper_tensor_load_2d, 128, struct wrapper_args, args) {
  const uint32_t bytes = args.parameter & 0xffffu, wide = args.parameter >> 16;
  const struct smem bar = bar_at(0);
  clear_data(4 * bytes, 128);
  if (thread_index() == 0) mbarrier_init(bar, 1);
  bar_sync(0, 128);
  if (thread_index() == 0) {
    tensor_map_prefetch(&args.map);
    mbarrier_arrive_expect_tx(bar, 4 * bytes);
    tensor_load_2d(data_at(0), &args.map, bar, 0, 0);
    tensor_load_2d(data_at(bytes), &args.map, bar, (int32_t)wide, 3);
    tensor_load_2d(data_at(2 * bytes), &args.map, bar, -(int32_t)(wide / 2), -2);
    tensor_load_2d(data_at(3 * bytes), &args.map, bar, (int32_t)(wide + wide / 2), 21);
  }
  mbarrier_wait(bar, 0);
  dump_data(args.out, 4 * bytes, 128);
}

/* The same with a 3-D tensor, two boxes. */
WEFT_KERNEL(wrapper_tensor_load_3d, 128, struct wrapper_args, args) {
  const uint32_t bytes = args.parameter & 0xffffu;
  const struct smem bar = bar_at(0);
  clear_data(2 * bytes, 128);
  if (thread_index() == 0) mbarrier_init(bar, 1);
  bar_sync(0, 128);
  if (thread_index() == 0) {
    mbarrier_arrive_expect_tx(bar, 2 * bytes);
    tensor_load_3d(data_at(0), &args.map, bar, 0, 1, 1);
    tensor_load_3d(data_at(bytes), &args.map, bar, 0, 9, -1);
  }
  mbarrier_wait(bar, 0);
  dump_data(args.out, 2 * bytes, 128);
}

/* Each CTA of a cluster multicasts a box of 2 KiB to both. Parameter: the tensor's rank. */
WEFT_KERNEL_CLUSTER(wrapper_tensor_multicast, 128, 2, struct wrapper_args, args) {
  const uint32_t rank = cluster_rank();
  const struct smem bar = bar_at(0);
  clear_data(4096, 128);
  if (thread_index() == 0) {
    mbarrier_init(bar, 1);
    mbarrier_arrive_expect_tx(bar, 4096);
    fence_mbarrier_init(wrapper_multicast_init);
  }
  cluster_sync();
  if (thread_index() == 0) {
    const struct smem to = data_at(rank * 2048);
    if (args.parameter == 3)
      tensor_load_3d_multicast(to, &args.map, bar, 3, 0, (int32_t)rank * 8, 0);
    else
      tensor_load_2d_multicast(to, &args.map, bar, 3, 0, (int32_t)rank * 8);
  }
  mbarrier_wait(bar, 0);
  dump_data(gmem_add(args.out, rank * 4096), 4096, 128);
  cluster_sync();
}

/* Stores raw shared memory through a map of `out`: one box of 16 lines, inside the tensor of 30
 * lines and a bit less than two boxes, or across an edge. Parameter: bytes of the box, its columns
 * (from bit 16), and which (from bit 24): 0 inside, 1 right, 2 left, 3 below, 4 above; 5 inside,
 * and then the same added to it. */
WEFT_KERNEL(wrapper_tensor_store_2d, 128, struct wrapper_args, args) {
  const uint32_t bytes = args.parameter & 0xffffu, wide = args.parameter >> 16 & 0xffu;
  const uint32_t which = args.parameter >> 24;
  for (uint32_t i = thread_index() * 16; i < bytes; i += 128 * 16)
    st_shared_u32x4(data_at(i), ld_global_u32x4(gmem_add(args.in, i)));
  /* the stores above, before the tensor stores that read them */
  fence_proxy_async_shared_cta(wrapper_store_source);
  bar_sync(0, 128);
  if (thread_index() == 0) {
    const int32_t half = (int32_t)(wide / 2);
    const int32_t x = which == 1 ? (int32_t)wide + half : which == 2 ? -half : 0;
    const int32_t y = which == 3 ? 25 : which == 4 ? -5 : 3;
    tensor_store_2d(&args.map, data_at(0), x, y);
    bulk_commit();
    bulk_wait_group(0);
    if (which == 5) {
      tensor_reduce_add_2d(&args.map, data_at(0), x, y);
      bulk_commit();
      bulk_wait_group(0);
    }
  }
}

WEFT_KERNEL(wrapper_tensor_store_3d, 128, struct wrapper_args, args) {
  const uint32_t bytes = args.parameter & 0xffffu;
  for (uint32_t i = thread_index() * 16; i < bytes; i += 128 * 16)
    st_shared_u32x4(data_at(i), ld_global_u32x4(gmem_add(args.in, i)));
  /* the stores above, before the tensor store that reads them */
  fence_proxy_async_shared_cta(wrapper_store_source_3d);
  bar_sync(0, 128);
  if (thread_index() == 0) {
    tensor_store_3d(&args.map, data_at(0), 0, 5, 1);
    bulk_commit();
    bulk_wait_group(0);
  }
}
