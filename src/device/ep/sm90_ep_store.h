/* Dispatch of bf16: a row is loaded once, by bulk loads into a ring of stages, and stored once for
 * each of its experts, by bulk stores from there. No register holds data. One thread loads; a warp
 * stores, a lane a slot of the token. */
#ifndef WEFT_DEVICE_EP_SM90_EP_STORE_H
#define WEFT_DEVICE_EP_SM90_EP_STORE_H

#include "device/ep/sm90_ep_rows.h"

DEV struct smem ep_stage_at(const struct ep_dispatch_args *a, uint32_t stage) {
  return smem_add(smem_base(), stage * a->pieces.bytes);
}
DEV struct smem ep_barrier(uint32_t array, uint32_t stage) {
  return smem_add(smem_base(), array + stage * 8);
}

/* One thread: loads item `i` of the CTA's, a piece of a token's row. */
DEV void ep_load_item(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t i,
                      uint32_t stage) {
  const uint32_t piece = i % a->pieces.count;
  const uint64_t token = p->first + i / a->pieces.count;
  const uint32_t bytes = ep_piece_bytes(a->row_bytes, a->pieces, piece);
  const struct smem full = ep_barrier(p->at.full, stage);
  mbarrier_arrive_expect_tx(full, bytes);
  bulk_load(ep_stage_at(a, stage),
            gmem_add(a->x, token * a->x_stride + (uint64_t)piece * a->pieces.bytes), bytes, full);
}

/* The stage's load has landed. */
DEV void ep_await_stage(const struct ep_part *p, uint32_t stage, uint32_t parity) {
  mbarrier_wait(ep_barrier(p->at.full, stage), parity);
}

DEV uint32_t ep_items(const struct ep_dispatch_args *a, const struct ep_part *p) {
  return (p->last - p->first) * a->pieces.count;
}

/* One thread, before anything else: fills the ring, which needs nothing from anybody. */
DEV void ep_fill_ring(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t items = ep_items(a, p);
  for (uint32_t s = 0; s < a->stages; s++) {
    mbarrier_init(ep_barrier(p->at.full, s), 1);
    mbarrier_init(ep_barrier(p->at.empty, s), 1);
  }
  for (uint32_t i = 0; i < a->stages && i < items; i++)
    ep_load_item(a, p, i, i);
}

/* The thread that loads: the items behind the first fill. */
DEV void ep_load_rows(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t items = ep_items(a, p);
  uint32_t stage = 0, parity = 0;
  for (uint32_t i = a->stages; i < items; i++) {
    mbarrier_wait(ep_barrier(p->at.empty, stage), parity);
    ep_load_item(a, p, i, stage);
    if (++stage == a->stages) stage = 0, parity ^= 1;
  }
}

/* A warp: the stage of each item to its targets. A stage is free when all lanes' stores have read
 * it, which is found EP_STORE_LAG items later. */
DEV void ep_store_rows(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t lane = lane_index();
  uint32_t stage = 0, parity = 0, item = 0, behind = 0;
  struct ep_target next = {{0}, 0, ~0u};
  if (p->first < p->last) next = ep_target(a, p, p->first, lane);
  for (uint32_t token = p->first; token < p->last; token++) {
    const struct ep_target to = next;
    ep_send_weight(a, p, &to, token, lane);
    for (uint32_t piece = 0; piece < a->pieces.count; piece++) {
      const uint32_t bytes = ep_piece_bytes(a->row_bytes, a->pieces, piece);
      const uint64_t at = (uint64_t)to.row * a->row_bytes + (uint64_t)piece * a->pieces.bytes;
      ep_await_stage(p, stage, parity);
      if (to.x.a != 0) {
        if (a->team.fence == EP_FENCE_WIDE) fence_proxy_async(ep_dispatch_wide);
        bulk_store(gmem_add(to.x, at), ep_stage_at(a, stage), bytes);
      }
      bulk_commit();
      if (piece == 0 && token + 1 < p->last) next = ep_target(a, p, token + 1, lane);
      bulk_wait_group_read(EP_STORE_LAG);
      warp_sync();
      if (item >= EP_STORE_LAG) {
        if (lane == 0) mbarrier_arrive(ep_barrier(p->at.empty, behind));
        if (++behind == a->stages) behind = 0;
      }
      item++;
      if (++stage == a->stages) stage = 0, parity ^= 1;
    }
  }
  bulk_wait_group(0);
}

/* One thread of a CTA whose operation has failed: the first fill must have landed. */
DEV void ep_drain_ring(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t items = ep_items(a, p);
  for (uint32_t i = 0; i < a->stages && i < items; i++)
    ep_await_stage(p, i, 0);
}

/* The whole kernel. */
DEV void ep_dispatch_bf16(const struct ep_dispatch_args *a) {
  if (a->team.view.ranks == 0) return; /* a launch that only loads the code */
  struct ep_part p = ep_part_make(a);
  const struct ep_team *const t = &a->team;
  if (!ep_begin(t, &p.epoch)) return;
  if (thread_index() == 0 && t->halves & EP_RECEIVE) ep_fill_ring(a, &p);
  if (ep_prepare(a, &p)) {
    if (warp_index() == 0) {
      if (elect_one()) ep_load_rows(a, &p);
    } else if (warp_index() == 1) {
      ep_store_rows(a, &p);
    }
    ep_tell_done(t, ep_known_of(&p));
    if (cta_index() == 0) ep_receive_all(a, &p, a->row_bytes);
  } else if (thread_index() == 0 && t->halves & EP_RECEIVE) {
    ep_drain_ring(a, &p);
  }
  if (thread_index() == 0) ep_end(t, p.epoch);
}

#endif
