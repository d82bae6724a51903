/* The parts of dX's reduction over a team (dx_reduce.h), for groups of threads of any kernel: a
 * thread is number `thread` of `threads` that share the work. Knows the peer view. */
#ifndef WEFT_DEVICE_CE_DX_REDUCE_PARTS_H
#define WEFT_DEVICE_CE_DX_REDUCE_PARTS_H

#include "device/ce/dx_reduce.h"
#include "device/comm/team.h"

/* Loads of peers' memory in flight together. */
#define DX_PEERS_AT_ONCE 4

/* Rows [first, last) of rank `of`. */
struct dx_shard {
  uint32_t first, last;
};

DEV struct dx_shard dx_shard_of(const struct dx_reduce_args *args, uint32_t of) {
  const uint32_t rows = dx_shard_rows(args->tokens, args->view.ranks);
  struct dx_shard s;
  s.first = of * rows < args->tokens ? of * rows : args->tokens;
  s.last = args->tokens - s.first < rows ? args->tokens : s.first + rows;
  return s;
}

/* Four elements as they are stored: two words of 16-bit formats, four of f32. */
DEV struct u32x4 dx_pack(uint32_t format, struct f32x4 v) {
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
DEV void dx_store(const struct dx_reduce_args *args, uint32_t row, uint32_t column,
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

/* Words that say where ranks are: the epoch of the launch, and its tokens. */
DEV uint64_t dx_word(const struct dx_reduce_args *args, uint32_t epoch) {
  return (uint64_t)(epoch + 1) << 32 | args->tokens;
}

/* Tells every rank that this one has come so far: `words` is args->ready or args->summed. */
DEV void dx_announce(const struct dx_reduce_args *args, uint64_t words, uint32_t epoch,
                     uint32_t thread, uint32_t threads) {
  const struct peer_view *const view = &args->view;
  for (uint32_t peer = thread; peer < view->ranks; peer += threads)
    peer_set64(peer_at(view, peer, words + view->rank * 8), dx_word(args, epoch));
}

/* Until every rank's part is there. */
DEV void dx_wait_parts(const struct dx_reduce_args *args, uint32_t epoch, uint32_t thread,
                       uint32_t threads) {
  const struct peer_view *const view = &args->view;
  for (uint32_t peer = thread; peer < view->ranks; peer += threads) {
    const struct gmem word = peer_at(view, view->rank, args->ready + peer * 8);
    if (peer_wait64(view, word, (uint64_t)(epoch + 1) << 32, PEER_PHASE_DX_PARTIAL, peer) &&
        (uint32_t)ld_u64(relaxed, sys, word) != args->tokens)
      peer_fail(view, PEER_ERROR_DIFFERS, PEER_PHASE_DX_PARTIAL, peer);
  }
}

/* Until the peer's rows of the sum are there; it reads no part any more. */
DEV void dx_wait_sum(const struct dx_reduce_args *args, uint32_t epoch, uint32_t peer) {
  const struct peer_view *const view = &args->view;
  peer_wait64(view, peer_at(view, view->rank, args->summed + peer * 8), (uint64_t)(epoch + 1) << 32,
              PEER_PHASE_DX_GATHER, peer);
}

/* Four elements of this rank's rows of the sum, `row` counted from its first. */
DEV void dx_reduce_group(const struct dx_reduce_args *args, uint32_t own_first, uint32_t row,
                         uint32_t column) {
  const struct peer_view *const view = &args->view;
  const uint32_t bytes = args->format == DX_F32 ? 4 : 2;
  const uint64_t at = args->part + ((uint64_t)(own_first + row) * args->part_stride + column) * 4;
  struct f32x4 sum;
  sum.x = sum.y = sum.z = sum.w = 0.0f;
  for (uint32_t from = 0; from < view->ranks; from += DX_PEERS_AT_ONCE) {
    struct f32x4 part[DX_PEERS_AT_ONCE];
    UNROLL for (uint32_t k = 0; k < DX_PEERS_AT_ONCE; k++) {
      /* Loaded in any case: what is not always set would take registers all the time. */
      const uint32_t peer = from + k < view->ranks ? from + k : view->ranks - 1;
      part[k] = ld_global_f32x4(peer_at(view, peer, at));
    }
    UNROLL for (uint32_t k = 0; k < DX_PEERS_AT_ONCE; k++) {
      if (from + k < view->ranks) {
        sum.x += part[k].x;
        sum.y += part[k].y;
        sum.z += part[k].z;
        sum.w += part[k].w;
      }
    }
  }
  const struct u32x4 v = dx_pack(args->format, sum);
  dx_store(args, args->scatter ? row : own_first + row, column, v);
  if (args->scatter) return;
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

/* Rows [first, last) of this rank's rows of the sum. */
DEV void dx_reduce_rows(const struct dx_reduce_args *args, uint32_t first, uint32_t last,
                        uint32_t thread, uint32_t threads) {
  const struct dx_shard own = dx_shard_of(args, args->view.rank);
  for (uint32_t row = first; row < last && row < own.last - own.first; row++)
    for (uint32_t column = thread * 4; column < args->hidden; column += threads * 4)
      dx_reduce_group(args, own.first, row, column);
}

/* Rows [first, last) of a peer's, counted from its first, from its arena to dX. */
DEV void dx_copy_rows(const struct dx_reduce_args *args, uint32_t peer, uint32_t first,
                      uint32_t last, uint32_t thread, uint32_t threads) {
  const struct dx_shard theirs = dx_shard_of(args, peer);
  const uint32_t bytes = args->format == DX_F32 ? 4 : 2;
  for (uint32_t row = first; row < last && row < theirs.last - theirs.first; row++)
    for (uint32_t column = thread * 4; column < args->hidden; column += threads * 4) {
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
      dx_store(args, theirs.first + row, column, v);
    }
}

#endif
