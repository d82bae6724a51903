/* Dispatch, second part, on CTA 0: from the peers' counts the order of this rank's rows; tells each
 * peer where its rows begin and which arrays they go to; and learns the same of all peers. */
#ifndef WEFT_DEVICE_EP_SM90_EP_GRANT_H
#define WEFT_DEVICE_EP_SM90_EP_GRANT_H

#include "device/ep/sm90_ep_count.h"

/* Whether a peer takes part, as CTA 0 knows it: several threads may find out that it does not. */
DEV uint32_t ep_part_of(const struct ep_part *p, uint32_t peer) {
  return ld_shared_order_u32(relaxed, cta, ep_shared(p->at.part, peer));
}
DEV void ep_set_part(const struct ep_part *p, uint32_t peer, uint32_t takes_part) {
  st_shared_order_u32(relaxed, cta, ep_shared(p->at.part, peer), takes_part);
}

DEV void ep_meet_all(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t descriptor = ep_own_descriptor(t, !a->reuse);
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers()) {
    const uint64_t since = globaltimer();
    uint32_t in = ep_expected(t, r);
    if (in) in = ep_meet(t, p->epoch, descriptor, r, PEER_PHASE_EP_COUNTS);
    ep_set_part(p, r, in);
    st_shared_u32(ep_shared(p->at.waited, r), (uint32_t)(globaltimer() - since));
  }
  ep_routers_meet();
}

/* A count of each pair of a peer and an own expert, into shared memory [ranks][L]: `rest` is free
 * by now. A peer of which not all have come does not take part. */
DEV void ep_take_counts(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  for (uint32_t i = thread_index(); i < a->experts; i += ep_routers()) {
    const uint32_t r = i / t->experts_local;
    uint32_t count = 0;
    if (ep_part_of(p, r)) {
      const struct gmem word = ep_own(t, t->words.counts + (uint64_t)i * 8);
      if (wait_u64_ge(sys, word, (uint64_t)(p->epoch + 1) << 32, ep_limit(t, r),
                      ep_late(PEER_PHASE_EP_COUNTS, r)))
        count = (uint32_t)ld_u64(relaxed, sys, word);
      else
        ep_set_part(p, r, 0);
    }
    st_shared_u32(ep_shared(p->at.rest, i), count);
  }
  ep_routers_meet();
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers())
    if (t->masking && !ep_part_of(p, r)) ep_leave_out(t, r, PEER_PHASE_EP_COUNTS);
}

DEV uint32_t ep_count_from(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t r,
                           uint32_t local) {
  return ep_part_of(p, r) ? ld_shared_u32(ep_shared(p->at.rest, r * a->team.experts_local + local))
                          : 0;
}

/* The routers: the sum of `value` over the threads before, and in *total over all. */
DEV uint32_t ep_scan(const struct ep_part *p, uint32_t value, uint32_t *total) {
  const uint32_t lane = lane_index(), warp = warp_index();
  uint32_t sum = value;
  for (uint32_t d = 1; d < 32; d *= 2) {
    const uint32_t below = shfl_u32(sum, (lane - d) & 31);
    if (lane >= d) sum += below;
  }
  if (lane == 31) st_shared_u32(ep_shared(p->at.sums, warp), sum);
  ep_routers_meet();
  uint32_t before = 0, all = 0;
  for (uint32_t w = 0; w < ep_routers() / 32; w++) {
    const uint32_t of = ld_shared_u32(ep_shared(p->at.sums, w));
    if (w < warp) before += of;
    all += of;
  }
  *total = all;
  return before + sum - value;
}

DEV void ep_put_i64(struct gmem array, uint32_t index, uint32_t value) {
  if (array.a != 0) st_global_u64(gmem_add(array, (uint64_t)index * 8), value);
}

/* The routers: where the rows of each own expert begin, into shared memory. */
DEV void ep_order_experts(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t experts = a->team.experts_local;
  uint32_t base = 0;
  for (uint32_t first = 0; first < experts; first += ep_routers()) {
    const uint32_t local = first + thread_index();
    uint32_t rows = 0, all;
    if (local < experts && !a->packed) rows = a->slab_rows;
    if (local < experts && a->packed) {
      for (uint32_t r = 0; r < a->team.view.ranks; r++)
        rows += ep_count_from(a, p, r, local);
      rows = ep_rounded(rows, a->alignment);
    }
    const uint32_t offset = base + ep_scan(p, rows, &all);
    if (local < experts) st_shared_u32(ep_shared(p->at.offsets, local), offset);
    base += all;
    if (first + ep_routers() < experts) ep_routers_meet(); /* the sums have been read */
  }
  if (thread_index() == 0) st_shared_u32(ep_shared(p->at.offsets, experts), base);
  ep_routers_meet();
}

/* The routers, a pair of a peer and an own expert each: the first row of the pair, told to the
 * peer; and what the handle keeps. */
DEV void ep_order(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t experts = t->experts_local, ranks = t->view.ranks;
  ep_order_experts(a, p);
  for (uint32_t i = thread_index(); i < a->experts; i += ep_routers()) {
    const uint32_t r = i / experts, local = i % experts;
    uint32_t row = ld_shared_u32(ep_shared(p->at.offsets, local));
    for (uint32_t before = 0; before < r; before++)
      row += ep_count_from(a, p, before, local);
    const uint64_t at = t->words.first + ((uint64_t)t->view.rank * experts + local) * 4;
    if (ep_part_of(p, r)) st_global_u32(peer_at(&t->view, r, at), row);
    ep_put_i64(a->kept_counts, local * ranks + r, ep_count_from(a, p, r, local));
  }
  for (uint32_t l = thread_index(); l <= experts; l += ep_routers())
    ep_put_i64(a->kept_offsets, l, ld_shared_u32(ep_shared(p->at.offsets, l)));
}

DEV uint32_t ep_kept_count(const struct ep_dispatch_args *a, const struct ep_part *p, uint32_t r,
                           uint32_t local) {
  if (!a->reuse) return ep_count_from(a, p, r, local);
  return (uint32_t)ld_global_u64(
      gmem_add(a->kept_counts, ((uint64_t)local * a->team.view.ranks + r) * 8));
}

/* All threads: what the caller asked for; with reuse from the handle. */
DEV void ep_give_counts(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const uint32_t experts = a->team.experts_local, ranks = a->team.view.ranks;
  for (uint32_t l = thread_index(); l <= experts; l += thread_count()) {
    const uint32_t offset =
        a->reuse ? (uint32_t)ld_global_u64(gmem_add(a->kept_offsets, (uint64_t)l * 8))
                 : ld_shared_u32(ep_shared(p->at.offsets, l));
    ep_put_i64(a->offsets, l, offset);
    if (l == experts) break;
    uint32_t sum = 0;
    for (uint32_t r = 0; r < ranks; r++) {
      const uint32_t count = ep_kept_count(a, p, r, l);
      ep_put_i64(a->source_counts, l * ranks + r, count);
      sum += count;
    }
    ep_put_i64(a->counts, l, sum);
    const struct gmem rows = gmem_add(a->expert_rows, (uint64_t)l * 8);
    st_global_u64(rows, ld_global_u64(rows) + sum);
  }
}

/* One thread a peer: offers it the arrays for its rows. */
DEV void ep_offer_arrays(const struct ep_dispatch_args *a, uint32_t peer) {
  const struct gmem offer = ep_offer_to(&a->team, peer);
  st_global_u64(offer, a->recv_x.a);
  st_global_u64(gmem_add(offer, 8), a->recv_scales.a);
  st_global_u64(gmem_add(offer, 16), a->recv_weights.a);
}

/* One thread a peer: the peer has said where this rank's rows begin. Other CTAs than the first wait
 * for what their own first CTA and the peers' have to wait for before, so they are patient: it is
 * the first that names who is missing. */
DEV uint32_t ep_await_grant(const struct ep_team *t, uint32_t epoch, uint32_t peer) {
  struct wait_limit limit = ep_limit(t, peer);
  if (cta_index() != 0) limit.timeout_ns *= EP_GATE_PATIENCE;
  return wait_u32_ge(sys, peer_word(&t->view, t->view.rank, t->words.grant, peer), epoch + 1, limit,
                     ep_late(PEER_PHASE_EP_ROWS, peer));
}

/* The routers of CTA 0: from hellos to the grants for the peers. Afterwards `part` says who was
 * given one. */
DEV void ep_agree(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  ep_meet_all(a, p);
  if (!a->reuse) {
    ep_take_counts(a, p);
    ep_order(a, p);
  }
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers())
    if (ep_part_of(p, r)) {
      ep_offer_arrays(a, r);
      ep_give_permit(t, p->epoch, r);
    }
  ep_routers_meet();
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers())
    if (ep_part_of(p, r)) {
      /* The offers and first rows of all threads, and what earlier kernels of this rank did with
       * the arrays. */
      peer_set(peer_word(&t->view, r, t->words.grant, t->view.rank), p->epoch + 1);
    }
}

/* With masking, the routers of CTA 0: who of the peers has granted, and whose permit is claimed. */
DEV void ep_take_grants(const struct ep_dispatch_args *a, const struct ep_part *p) {
  const struct ep_team *const t = &a->team;
  for (uint32_t r = thread_index(); r < t->view.ranks; r += ep_routers()) {
    uint32_t in = ep_part_of(p, r);
    if (in) {
      in = ep_await_grant(t, p->epoch, r);
      if (in) in = ep_claim_permit(t, p->epoch, r);
      if (!in) ep_leave_out(t, r, PEER_PHASE_EP_ROWS);
    }
    ep_set_state(t, r, in);
  }
  ep_routers_meet();
  if (thread_index() == 0) ep_open_gate(t, p->epoch);
}

#endif
