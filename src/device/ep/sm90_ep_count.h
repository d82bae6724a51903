/* Dispatch, first part: how many rows this rank has for each expert, and the place of each of its
 * slots (token, k) among them, in token order. Every CTA counts all tokens by itself, since a pass
 * over the indices costs less than a barrier of the grid: those before its own share apart, which
 * is where its own places begin. */
#ifndef WEFT_DEVICE_EP_SM90_EP_COUNT_H
#define WEFT_DEVICE_EP_SM90_EP_COUNT_H

#include "device/ep/sm90_ep_meet.h"

/* A CTA's part of a dispatch. */
struct ep_part {
  uint32_t first, last; /* tokens */
  uint32_t epoch;
  uint32_t cached; /* experts and rows of all of its slots fit shared memory */
  struct ep_dispatch_shared at;
};

/* While the last warp places, the others meet the peers. */
DEV uint32_t ep_routers(void) {
  return thread_count() - 32;
}
#define ep_routers_meet() bar_sync(1, ep_routers())

DEV struct smem ep_shared(uint32_t offset, uint32_t index) {
  return smem_add(smem_base(), offset + index * 4);
}

DEV struct ep_known ep_known_of(const struct ep_part *p) {
  struct ep_known k;
  k.in = ep_shared(p->at.in, 0);
  k.offers = ep_shared(p->at.offers, 0);
  return k;
}

/* The expert of a slot; −1 for none, and for what is out of range. */
DEV int32_t ep_expert(const struct ep_dispatch_args *a, uint32_t slot) {
  const uint64_t bits = a->topk_i64 ? ld_global_u64(gmem_add(a->topk, (uint64_t)slot * 8))
                                    : ld_global_u32(gmem_add(a->topk, (uint64_t)slot * 4));
  return bits < a->experts ? (int32_t)bits : -1;
}

/* −1 is none, anything else out of range an error. */
DEV uint32_t ep_is_none(const struct ep_dispatch_args *a, uint32_t slot) {
  return a->topk_i64 ? ld_global_u64(gmem_add(a->topk, (uint64_t)slot * 8)) == ~(uint64_t)0
                     : ld_global_u32(gmem_add(a->topk, (uint64_t)slot * 4)) == ~(uint32_t)0;
}

enum { EP_COUNT_GROUP = 8 }; /* indices that a thread has in flight */

/* All threads: rows of each expert, of tokens before the CTA's share and of the others. */
DEV void ep_count(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t slots = a->team.tokens * a->team.topk, own = p->first * a->team.topk;
  const uint32_t step = thread_count();
  for (uint32_t e = thread_index(); e < 2 * a->experts; e += step)
    st_shared_u32(ep_shared(p->at.before, e), 0);
  bar_sync(0, thread_count());
  for (uint32_t first = thread_index(); first < slots; first += EP_COUNT_GROUP * step) {
    int32_t expert[EP_COUNT_GROUP];
    UNROLL for (uint32_t i = 0; i < EP_COUNT_GROUP; i++) {
      expert[i] = -1;
      if (first + i * step < slots) expert[i] = ep_expert(a, first + i * step);
    }
    UNROLL for (uint32_t i = 0; i < EP_COUNT_GROUP; i++) {
      if (expert[i] < 0) continue;
      const uint32_t counter = first + i * step < own ? p->at.before : p->at.rest;
      (void)atom_add_shared_u32(ep_shared(counter, (uint32_t)expert[i]), 1);
    }
  }
  bar_sync(0, thread_count());
}

/* The routers of CTA 0, before whose tokens there are none: tells each owner of experts how many
 * rows it gets. The words carry their epoch, so nothing has to be ordered before or after them. */
DEV void ep_tell_counts(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  for (uint32_t e = thread_index(); e < a->experts; e += ep_routers()) {
    const uint32_t owner = e / t->experts_local, local = e % t->experts_local;
    if (ep_masked(t, owner)) continue;
    const uint32_t count = ld_shared_u32(ep_shared(p->at.rest, e));
    const uint64_t at = t->words.counts + ((uint64_t)t->view.rank * t->experts_local + local) * 8;
    st_u64(relaxed, sys, peer_at(&t->view, owner, at), (uint64_t)(p->epoch + 1) << 32 | count);
  }
}

/* A warp: loads `count` slots from `first` on into shared memory, and reports what is wrong with
 * them. */
DEV void ep_load_batch(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t first,
                       uint32_t count) {
  const struct ep_team *const t = &a->team;
  for (uint32_t i = lane_index(); i < count; i += 32) {
    const int32_t expert = ep_expert(a, first + i);
    st_shared_u32(ep_shared(p->at.ids, i), (uint32_t)expert);
    if (expert < 0 && !ep_is_none(a, first + i))
      peer_fail(&t->view, PEER_ERROR_DATA, PEER_PHASE_EP_COUNTS, t->view.rank);
  }
  warp_sync();
  for (uint32_t i = lane_index(); i < count; i += 32) {
    const uint32_t expert = ld_shared_u32(ep_shared(p->at.ids, i));
    for (uint32_t j = i - i % t->topk; j < i; j++)
      if ((int32_t)expert >= 0 && ld_shared_u32(ep_shared(p->at.ids, j)) == expert)
        peer_fail(&t->view, PEER_ERROR_DATA, PEER_PHASE_EP_COUNTS, t->view.rank);
  }
}

/* A warp: the expert of each slot of the CTA's tokens, and its place, into shared memory and the
 * handle: a token after the other, a lane a slot. */
DEV void ep_place(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t lane = lane_index(), topk = a->team.topk, batch = EP_BATCH / topk * topk;
  const uint32_t end = p->last * topk;
  for (uint32_t first = p->first * topk; first < end; first += batch) {
    const uint32_t count = end - first < batch ? end - first : batch;
    ep_load_batch(a, p, first, count);
    for (uint32_t i = 0; i < count; i += topk) {
      if (lane < topk) {
        const int32_t expert = (int32_t)ld_shared_u32(ep_shared(p->at.ids, i + lane));
        uint32_t place = 0;
        if (expert >= 0) place = atom_add_shared_u32(ep_shared(p->at.before, (uint32_t)expert), 1);
        st_shared_u32(ep_shared(p->at.rows, i + lane), place);
        const uint64_t slot = (uint64_t)(first + i + lane) * 4;
        st_global_u32(gmem_add(a->expert, slot), (uint32_t)expert);
        st_global_u32(gmem_add(a->row, slot), place);
      }
      warp_sync();
    }
  }
}

#endif
