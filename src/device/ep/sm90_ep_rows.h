/* Dispatch, the frame of the third part: where each slot's row goes, what a send half alone keeps,
 * and the end of the operation. Knows the parts before; how a row travels is in sm90_ep_store.h and
 * sm90_ep_cast.h. */
#ifndef WEFT_DEVICE_EP_SM90_EP_ROWS_H
#define WEFT_DEVICE_EP_SM90_EP_ROWS_H

#include "device/ep/sm90_ep_grant.h"

/* All threads of CTA 0: nothing has to be ordered before it. */
DEV void ep_say_hello(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t descriptor = ep_own_descriptor(t, !a->reuse);
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count())
    if (!ep_masked(t, r))
      st_u64(relaxed, sys, peer_at(&t->view, r, t->words.hello + (uint64_t)t->view.rank * 8),
             (uint64_t)(p->epoch + 1) << 32 | descriptor);
}

/* ---- A send half alone ---- */

/* All threads: x and the weights of the CTA's tokens are the caller's again when this half ends. */
DEV void ep_stage(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t vectors = a->row_bytes / 16;
  for (uint32_t token = p->first; token < p->last; token++) {
    const struct gmem from = gmem_add(a->x, token * a->x_stride);
    const struct gmem to = gmem_add(a->staged, (uint64_t)token * a->row_bytes);
    for (uint32_t v = thread_index(); v < vectors; v += thread_count())
      st_global_u32x4(gmem_add(to, v * 16), ld_global_u32x4(gmem_add(from, v * 16)));
  }
  const uint32_t end = p->last * a->team.topk;
  for (uint32_t i = p->first * a->team.topk + thread_index(); i < end; i += thread_count())
    st_global_f32(gmem_add(a->staged_weights, (uint64_t)i * 4),
                  a->weights.a != 0 ? ld_global_f32(gmem_add(a->weights, (uint64_t)i * 4)) : 1.0f);
}

/* ---- Rows ---- */

/* All threads: the row of each slot of the CTA's tokens, in place of its place; −1 where there is
 * none. `placed`: this launch has placed them; with reuse the handle has the rows. */
DEV void ep_resolve(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t placed) {
  const struct ep_team *const t = &a->team;
  const struct ep_known k = ep_known_of(p);
  const uint32_t start = p->first * t->topk, slots = p->last * t->topk - start;
  const uint32_t here = placed && p->cached;
  for (uint32_t i = thread_index(); i < slots; i += thread_count()) {
    const uint64_t slot = (uint64_t)(start + i) * 4;
    const int32_t expert = (int32_t)(here ? ld_shared_u32(ep_shared(p->at.ids, i))
                                          : ld_global_u32(gmem_add(a->expert, slot)));
    uint32_t row =
        here ? ld_shared_u32(ep_shared(p->at.rows, i)) : ld_global_u32(gmem_add(a->row, slot));
    if (!a->reuse) {
      const uint32_t rank = expert >= 0 ? (uint32_t)expert / t->experts_local : 0;
      if (expert < 0 || !ep_takes_part(k, rank)) {
        row = ~0u;
      } else {
        row += ld_global_u32(ep_own(t, t->words.first + (uint64_t)(uint32_t)expert * 4));
        /* only an expert named twice in a token, reported before, comes here */
        if (row >=
            ep_row_limit(a->packed, a->slab_rows, a->rows_max, (uint32_t)expert % t->experts_local))
          row = ~0u;
      }
      st_global_u32(gmem_add(a->row, slot), row);
    }
    if (p->cached) {
      if (!here) st_shared_u32(ep_shared(p->at.ids, i), (uint32_t)expert);
      st_shared_u32(ep_shared(p->at.rows, i), row);
    }
  }
}

/* Where a slot's row goes. */
struct ep_target {
  struct gmem x; /* the receiver's recv_x; 0: nowhere */
  uint32_t rank, row;
};

/* A lane a slot. */
DEV struct ep_target ep_target(const struct ep_dispatch_args *a, const struct ep_part *p,
                               uint32_t token, uint32_t lane) {
  struct ep_target to = {{0}, 0, ~0u};
  if (lane >= a->team.topk) return to;
  const uint32_t i = (token - p->first) * a->team.topk + lane;
  const uint64_t slot = ((uint64_t)token * a->team.topk + lane) * 4;
  const int32_t expert = (int32_t)(p->cached ? ld_shared_u32(ep_shared(p->at.ids, i))
                                             : ld_global_u32(gmem_add(a->expert, slot)));
  to.row =
      p->cached ? ld_shared_u32(ep_shared(p->at.rows, i)) : ld_global_u32(gmem_add(a->row, slot));
  if (expert < 0 || to.row == ~0u) return to;
  to.rank = (uint32_t)expert / a->team.experts_local;
  if (ep_takes_part(ep_known_of(p), to.rank))
    to.x = ep_offered(&a->team, ep_known_of(p), to.rank, 0);
  return to;
}

/* The weight of a slot, where the receiver wants it. */
DEV void ep_send_weight(const struct ep_dispatch_args *a, const struct ep_part *p,
                        const struct ep_target *to, uint32_t token, uint32_t lane) {
  if (to->x.a == 0) return;
  const struct gmem array = ep_offered(&a->team, ep_known_of(p), to->rank, 2);
  if (array.a == 0) return;
  float weight = 1.0f;
  if (a->weights.a != 0)
    weight = ld_global_f32(gmem_add(a->weights, ((uint64_t)token * a->team.topk + lane) * 4));
  st_global_f32(gmem_add(array, (uint64_t)to->row * 4), weight);
}

/* ---- The end ---- */

/* All threads of every CTA, when its rows have been written: one more CTA is done. */
DEV void ep_tell_done(const struct ep_team *t, struct ep_known k) {
  bar_sync(0, thread_count());
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count())
    if (ep_takes_part(k, r)) peer_count(peer_word(&t->view, r, t->words.done, t->view.rank), 1);
}

/* All threads of CTA 0: rows that a peer was to write and has not are 0. */
DEV void ep_clear_rows(const struct ep_dispatch_args *a, uint32_t row_bytes, uint32_t peer) {
  const uint32_t ranks = a->team.view.ranks;
  for (uint32_t l = 0; l < a->team.experts_local; l++) {
    uint32_t row = (uint32_t)ld_global_u64(gmem_add(a->kept_offsets, (uint64_t)l * 8));
    for (uint32_t r = 0; r < peer; r++)
      row += (uint32_t)ld_global_u64(gmem_add(a->kept_counts, ((uint64_t)l * ranks + r) * 8));
    const uint32_t count =
        (uint32_t)ld_global_u64(gmem_add(a->kept_counts, ((uint64_t)l * ranks + peer) * 8));
    for (uint32_t i = row; i < row + count; i++) {
      struct u32x2 zero = {0, 0};
      for (uint32_t at = thread_index() * 8; at < row_bytes; at += thread_count() * 8)
        st_global_u32x2(gmem_add(a->recv_x, (uint64_t)i * row_bytes + at), zero);
      for (uint32_t w = thread_index(); w < a->scales.words; w += thread_count())
        st_global_u32(gmem_add(a->recv_scales, ep_scale_index(&a->scales, i, w) * 4), 0);
      if (thread_index() == 0 && a->recv_weights.a != 0)
        st_global_f32(gmem_add(a->recv_weights, (uint64_t)i * 4), 0.0f);
    }
  }
}

/* All threads of CTA 0: waits for the rows of all peers. `row_bytes`: of received rows. */
DEV void ep_receive_all(const struct ep_dispatch_args *a, const struct ep_part *p,
                        uint32_t row_bytes) {
  const struct ep_team *const t = &a->team;
  ep_give_counts(a, p);
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count())
    if (ep_part_of(p, r)) {
      const uint32_t done =
          ep_await_done(t, p->epoch, r, ld_shared_u32(ep_shared(p->at.waited, r)));
      if (!done) ep_set_part(p, r, 0);
    }
  if (t->masking) {
    bar_sync(0, thread_count());
    for (uint32_t r = 0; r < t->view.ranks; r++)
      if (!ep_part_of(p, r)) ep_clear_rows(a, row_bytes, r);
  }
  if (thread_index() != 0) return;
  st_global_u64(t->operations, ld_global_u64(t->operations) + 1);
  if (!a->reuse) st_global_u32(t->routing, ep_routing(p->epoch, t->slot));
}

/* ---- The frame ---- */

/* The routers: who takes part, and where rows go there. */
DEV void ep_meet_peers(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  if (cta_index() == 0) ep_agree(a, p);
  if (t->masking) {
    if (cta_index() == 0) ep_take_grants(a, p);
    if (thread_index() == 0) st_shared_u32(ep_shared(p->at.alive, 0), ep_pass_gate(t, p->epoch));
    ep_routers_meet();
    if (!ld_shared_u32(ep_shared(p->at.alive, 0))) return;
  }
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers()) {
    const uint32_t in = t->masking ? ep_state(t, r) : ep_await_grant(t, p->epoch, r);
    ep_learn(t, ep_known_of(p), r, in, 3);
    /* What the peers' own kernels did with the arrays that they have offered -> our bulk stores. */
    if (t->fence == EP_FENCE_ON && a->stages != 0) fence_proxy_async_global(ep_dispatch_granted);
  }
}

/* All threads: hello, counts, places, grants. 1: rows may travel. */
DEV uint32_t ep_prepare(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t sends = t->halves & EP_SEND, receives = t->halves & EP_RECEIVE;
  const uint32_t places = sends && !a->reuse, router = thread_index() < ep_routers();
  if (sends && cta_index() == 0) ep_say_hello(a, p);
  if (places) ep_count(a, p);
  if (router) {
    if (places && cta_index() == 0) ep_tell_counts(a, p);
    if (receives) ep_meet_peers(a, p);
  } else if (places) {
    ep_place(a, p);
  }
  if (sends && !receives) ep_stage(a, p);
  bar_sync(0, thread_count());
  if (!receives) return 0;
  if (!(t->masking ? ld_shared_u32(ep_shared(p->at.alive, 0))
                   : ep_all_take_part(t, ep_known_of(p))))
    return 0;
  ep_resolve(a, p, places);
  bar_sync(0, thread_count());
  return 1;
}

DEV struct ep_part ep_part_make(const struct ep_dispatch_args *a) {
  struct ep_part p;
  p.first = ep_share(a->team.tokens, cta_count(), cta_index());
  p.last = ep_share(a->team.tokens, cta_count(), cta_index() + 1);
  p.at = ep_dispatch_shared(a->team.view.ranks, a->experts, a->stages, a->pieces.bytes);
  p.cached = (p.last - p.first) * a->team.topk <= EP_BATCH / a->team.topk * a->team.topk;
  p.epoch = 0;
  return p;
}

#endif
