/* The reduction of dX over a team, as a kernel of its own behind backward (dx_reduce.h). */
#include "device/ce/dx_reduce.h"
#include "device/comm/team.h"

/* Loads of peers' memory in flight together. */
#define PEERS_AT_ONCE 4

/* Rows [first, last) of rank `of`. */
struct shard {
  uint32_t first, last;
};

DEV struct shard shard_of(const struct dx_reduce_args *args, uint32_t of) {
  const uint32_t rows = dx_shard_rows(args->tokens, args->view.ranks);
  struct shard s;
  s.first = of * rows < args->tokens ? of * rows : args->tokens;
  s.last = args->tokens - s.first < rows ? args->tokens : s.first + rows;
  return s;
}

/* Four elements as they are stored: two words of 16-bit formats, four of f32. */
DEV struct u32x4 pack(uint32_t format, struct f32x4 v) {
  struct u32x4 r;
  r.z = r.w = 0;
  if (format == DX_F32) {
    r.x = f32_bits(v.x);
    r.y = f32_bits(v.y);
    r.z = f32_bits(v.z);
    r.w = f32_bits(v.w);
  } else if (format == DX_BF16) {
    r.x = pack_bf16x2(v.x, v.y);
    r.y = pack_bf16x2(v.z, v.w);
  } else {
    r.x = pack_f16x2(v.x, v.y);
    r.y = pack_f16x2(v.z, v.w);
  }
  return r;
}

/* Into dX: `row` counts from its start, `left` elements of the row remain. */
DEV void store_dx(const struct dx_reduce_args *args, uint32_t row, uint32_t column,
                  struct u32x4 v) {
  const uint32_t bytes = args->format == DX_F32 ? 4 : 2, left = args->hidden - column;
  const struct gmem to =
      gmem_add(args->dx, ((uint64_t)((int64_t)row * args->dx_stride) + column) * bytes);
  if (args->dx_aligned && left >= 4) {
    if (bytes == 4) {
      st_global_u32x4(to, v);
    } else {
      struct u32x2 half;
      half.x = v.x;
      half.y = v.y;
      st_global_u32x2(to, half);
    }
  } else if (bytes == 4) {
    st_global_u32(to, v.x);
    if (left > 1) st_global_u32(gmem_add(to, 4), v.y);
    if (left > 2) st_global_u32(gmem_add(to, 8), v.z);
    if (left > 3) st_global_u32(gmem_add(to, 12), v.w);
  } else {
    st_global_u16(to, (uint16_t)v.x);
    if (left > 1) st_global_u16(gmem_add(to, 2), (uint16_t)(v.x >> 16));
    if (left > 2) st_global_u16(gmem_add(to, 4), (uint16_t)v.y);
    if (left > 3) st_global_u16(gmem_add(to, 6), (uint16_t)(v.y >> 16));
  }
}

/* This rank's rows of the sum. */
DEV void reduce_shard(const struct dx_reduce_args *args) {
  const struct peer_view *const view = &args->view;
  const struct shard own = shard_of(args, view->rank);
  const uint32_t groups = (args->hidden + 3) / 4, bytes = args->format == DX_F32 ? 4 : 2;
  const uint64_t items = (uint64_t)(own.last - own.first) * groups;
  for (uint64_t i = (uint64_t)cta_index() * DX_REDUCE_THREADS + thread_index(); i < items;
       i += (uint64_t)cta_count() * DX_REDUCE_THREADS) {
    const uint32_t row = (uint32_t)(i / groups), column = (uint32_t)(i % groups) * 4;
    const uint64_t at = args->part + ((uint64_t)(own.first + row) * args->part_stride + column) * 4;
    struct f32x4 sum;
    sum.x = sum.y = sum.z = sum.w = 0.0f;
    for (uint32_t first = 0; first < view->ranks; first += PEERS_AT_ONCE) {
      struct f32x4 part[PEERS_AT_ONCE];
      UNROLL for (uint32_t k = 0; k < PEERS_AT_ONCE; k++) {
        if (first + k < view->ranks) part[k] = ld_global_f32x4(peer_at(view, first + k, at));
      }
      UNROLL for (uint32_t k = 0; k < PEERS_AT_ONCE; k++) {
        if (first + k < view->ranks) {
          sum.x += part[k].x;
          sum.y += part[k].y;
          sum.z += part[k].z;
          sum.w += part[k].w;
        }
      }
    }
    const struct u32x4 v = pack(args->format, sum);
    store_dx(args, args->scatter ? row : own.first + row, column, v);
    if (args->scatter) continue;
    const struct gmem to = peer_at(
        view, view->rank, args->shard + ((uint64_t)row * args->shard_stride + column) * bytes);
    if (bytes == 4) {
      st_global_u32x4(to, v);
    } else {
      struct u32x2 half;
      half.x = v.x;
      half.y = v.y;
      st_global_u32x2(to, half);
    }
  }
}

/* A peer's rows, from its arena to dX. */
DEV void copy_shard(const struct dx_reduce_args *args, uint32_t peer) {
  const struct shard theirs = shard_of(args, peer);
  const uint32_t groups = (args->hidden + 3) / 4, bytes = args->format == DX_F32 ? 4 : 2;
  const uint64_t items = (uint64_t)(theirs.last - theirs.first) * groups;
  for (uint64_t i = (uint64_t)cta_index() * DX_REDUCE_THREADS + thread_index(); i < items;
       i += (uint64_t)cta_count() * DX_REDUCE_THREADS) {
    const uint32_t row = (uint32_t)(i / groups), column = (uint32_t)(i % groups) * 4;
    const struct gmem from = peer_at(
        &args->view, peer, args->shard + ((uint64_t)row * args->shard_stride + column) * bytes);
    struct u32x4 v;
    if (bytes == 4) {
      v = ld_global_u32x4(from);
    } else {
      const struct u32x2 half = ld_global_u32x2(from);
      v.x = half.x;
      v.y = half.y;
      v.z = v.w = 0;
    }
    store_dx(args, theirs.first + row, column, v);
  }
}

/* One thread of each CTA for each peer. */
DEV void wait_for_parts(const struct dx_reduce_args *args, uint32_t epoch) {
  const struct peer_view *const view = &args->view;
  for (uint32_t peer = thread_index(); peer < view->ranks; peer += DX_REDUCE_THREADS) {
    const struct gmem word = peer_at(view, view->rank, args->ready + peer * 8);
    if (peer_wait64(view, word, (uint64_t)(epoch + 1) << 32, PEER_PHASE_DX_PARTIAL, peer) &&
        (uint32_t)ld_u64(relaxed, sys, word) != args->tokens)
      peer_fail(view, PEER_ERROR_DIFFERS, PEER_PHASE_DX_PARTIAL, peer);
  }
}

WEFT_KERNEL(smxx_ce_dx_reduce, DX_REDUCE_THREADS, struct dx_reduce_args, args) {
  const struct peer_view *const view = &args.view;
  if (view->ranks < 2) return; /* a launch that only loads the kernel */
  const uint32_t thread = thread_index(), epoch = epoch_read(args.epoch);
  const uint64_t value = (uint64_t)(epoch + 1) << 32 | args.tokens;
  const struct smem last = smem_base();
  /* Backward has ended before this kernel began: its part of dX is there. */
  if (cta_index() == 0) {
    for (uint32_t peer = thread; peer < view->ranks; peer += DX_REDUCE_THREADS)
      peer_set64(peer_at(view, peer, args.ready + view->rank * 8), value);
  }
  wait_for_parts(&args, epoch);
  bar_sync(0, DX_REDUCE_THREADS);
  reduce_shard(&args);
  bar_sync(0, DX_REDUCE_THREADS);
  if (thread == 0) {
    const uint32_t before = atom_add_u32(acq_rel, gpu, args.counter, 1);
    st_shared_u32(last, before + 1 == cta_count());
    if (before + 1 == cta_count()) st_global_u32(args.counter, 0);
  }
  bar_sync(0, DX_REDUCE_THREADS);
  if (ld_shared_u32(last)) {
    for (uint32_t peer = thread; peer < view->ranks; peer += DX_REDUCE_THREADS)
      peer_set64(peer_at(view, peer, args.summed + view->rank * 8), value);
  }
  for (uint32_t i = 1; i < view->ranks; i++) {
    const uint32_t peer = (view->rank + i) % view->ranks;
    if (thread == 0)
      peer_wait64(view, peer_at(view, view->rank, args.summed + peer * 8),
                  (uint64_t)(epoch + 1) << 32, PEER_PHASE_DX_GATHER, peer);
    if (args.scatter) continue; /* that the peer reads no part any more is all there is to know */
    bar_sync(0, DX_REDUCE_THREADS);
    copy_shard(&args, peer);
  }
  if (thread == 0) epoch_end(args.epoch, epoch, cta_count());
}
