/* Dispatch as E4M3: a warp takes 1024 channels of a token at a time, finds the scale of each block
 * of 128, casts in registers, and stores codes and scales once for each of the token's experts, by
 * ordinary stores. */
#ifndef WEFT_DEVICE_EP_SM90_EP_CAST_H
#define WEFT_DEVICE_EP_SM90_EP_CAST_H

#include "device/ep/sm90_ep_rows.h"

enum {
  EP_LANE_CHANNELS = 8,
  EP_STEP_CHANNELS = 32 * EP_LANE_CHANNELS, /* two blocks */
  EP_STEPS = 4,
  EP_SEGMENT_CHANNELS = EP_STEPS * EP_STEP_CHANNELS,
  EP_SEGMENT_BLOCKS = EP_SEGMENT_CHANNELS / EP_BLOCK
};

DEV uint32_t ep_larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* The larger bf16 of each half by size, in the low bits. */
DEV uint32_t ep_size_of(uint32_t pair) {
  return ep_larger(pair & 0x7fffu, pair >> 16 & 0x7fffu);
}

/* The scale bits of this lane's block; its 16 lanes agree. */
DEV uint32_t ep_block_scale(struct u32x4 v, uint32_t format) {
  uint32_t amax = ep_larger(ep_larger(ep_size_of(v.x), ep_size_of(v.y)),
                            ep_larger(ep_size_of(v.z), ep_size_of(v.w)));
  for (uint32_t mask = 1; mask < 16; mask *= 2)
    amax = ep_larger(amax, shfl_xor_u32(amax, mask));
  return ep_scale_bits(amax, format);
}

DEV uint32_t ep_codes(uint32_t lo, uint32_t hi, float inverse) {
  return pack_e4m3x2(bf16x2_lo(lo) * inverse, bf16x2_hi(lo) * inverse) |
         pack_e4m3x2(bf16x2_lo(hi) * inverse, bf16x2_hi(hi) * inverse) << 16;
}

DEV struct gmem ep_shfl_address(struct gmem p, uint32_t lane) {
  struct gmem r;
  r.a = (uint64_t)shfl_u32((uint32_t)(p.a >> 32), lane) << 32 | shfl_u32((uint32_t)p.a, lane);
  return r;
}

/* The word of this lane's block (lane % 8, of the segment's eight) and whether the lane stores it,
 * at *index of the row's words. */
DEV uint32_t ep_scale_word(const struct ep_dispatch_args *a, const uint32_t scale[EP_STEPS],
                           uint32_t segment, uint32_t *index) {
  const uint32_t own = lane_index() % EP_SEGMENT_BLOCKS;
  const uint32_t block = segment * EP_SEGMENT_BLOCKS + own;
  uint32_t bits = 0;
  UNROLL for (uint32_t i = 0; i < EP_STEPS; i++) {
    const uint32_t of = shfl_u32(scale[i], own % 2 * 16);
    if (own / 2 == i) bits = of;
  }
  *index = block;
  if (a->scales.format != EP_SCALE_UE8M0) {
    if (block >= a->scales.blocks) *index = ~0u;
    return bits;
  }
  uint32_t word = block < a->scales.blocks ? ep_ue8m0(bits) << own % 4 * 8 : 0;
  word |= shfl_xor_u32(word, 1);
  word |= shfl_xor_u32(word, 2);
  *index = own % 4 == 0 && block / 4 < a->scales.words ? block / 4 : ~0u;
  return word;
}

/* The segment's scales to all targets, four of them at a time, eight lanes each. */
DEV void ep_store_scales(const struct ep_dispatch_args *a, const uint32_t scale[EP_STEPS],
                         uint32_t segment, struct gmem scales, uint32_t row) {
  uint32_t index;
  const uint32_t word = ep_scale_word(a, scale, segment, &index);
  for (uint32_t first = 0; first < a->team.topk; first += 4) {
    const uint32_t k = first + lane_index() / EP_SEGMENT_BLOCKS;
    const struct gmem to = ep_shfl_address(scales, k % 32);
    const uint32_t of = shfl_u32(row, k % 32);
    if (k < a->team.topk && to.a != 0 && index != ~0u)
      st_global_u32(gmem_add(to, ep_scale_index(&a->scales, of, index) * 4), word);
  }
}

/* A warp: one segment of a token's row. */
DEV void ep_cast_segment(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t token,
                         uint32_t segment) {
  const uint32_t lane = lane_index();
  const uint32_t first = segment * EP_SEGMENT_CHANNELS + lane * EP_LANE_CHANNELS;
  const struct gmem x = gmem_add(a->x, token * a->x_stride + (uint64_t)first * 2);
  struct u32x4 v[EP_STEPS];
  UNROLL for (uint32_t i = 0; i < EP_STEPS; i++) {
    const struct u32x4 none = {0, 0, 0, 0};
    v[i] = none;
    if (first + i * EP_STEP_CHANNELS < a->hidden)
      v[i] = ld_global_u32x4(gmem_add(x, i * EP_STEP_CHANNELS * 2));
  }
  const struct ep_target to = ep_target(a, p, token, lane);
  struct gmem scales = {0};
  if (to.x.a != 0) scales = ep_offered(&a->team, ep_known_of(p), to.rank, 1);
  if (segment == 0) ep_send_weight(a, p, &to, token, lane);
  uint32_t scale[EP_STEPS];
  struct u32x2 codes[EP_STEPS];
  UNROLL for (uint32_t i = 0; i < EP_STEPS; i++) {
    scale[i] = ep_block_scale(v[i], a->scales.format);
    const float inverse = ep_inverse(scale[i]);
    codes[i].x = ep_codes(v[i].x, v[i].y, inverse);
    codes[i].y = ep_codes(v[i].z, v[i].w, inverse);
  }
  for (uint32_t k = 0; k < a->team.topk; k++) {
    const struct gmem base = ep_shfl_address(to.x, k);
    const uint32_t row = shfl_u32(to.row, k);
    if (base.a == 0) continue;
    const struct gmem out = gmem_add(base, (uint64_t)row * a->hidden + first);
    UNROLL for (uint32_t i = 0; i < EP_STEPS; i++) if (first + i * EP_STEP_CHANNELS < a->hidden)
        st_global_u32x2(gmem_add(out, i * EP_STEP_CHANNELS), codes[i]);
  }
  ep_store_scales(a, scale, segment, scales, to.row);
}

/* All warps. */
DEV void ep_cast_rows(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t segments = (a->hidden + EP_SEGMENT_CHANNELS - 1) / EP_SEGMENT_CHANNELS;
  const uint32_t items = (p->last - p->first) * segments;
  for (uint32_t i = warp_index(); i < items; i += thread_count() / 32)
    ep_cast_segment(a, p, p->first + i / segments, i % segments);
}

/* The whole kernel. */
DEV void ep_dispatch_fp8(const struct ep_dispatch_args *a) {
  if (a->team.view.ranks == 0) return; /* a launch that only loads the code */
  struct ep_part p = ep_part_make(a);
  const struct ep_team *const t = &a->team;
  if (!ep_begin(t, &p.epoch)) return;
  if (ep_prepare(a, &p)) {
    ep_cast_rows(a, &p);
    ep_tell_done(t, ep_known_of(&p));
    if (cta_index() == 0) ep_receive_all(a, &p, a->hidden);
  }
  if (thread_index() == 0) ep_end(t, p.epoch);
}

#endif
