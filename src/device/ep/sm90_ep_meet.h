/* How the ranks of an operation meet, for dispatch and combine: the epoch of the slot, hellos,
 * masks, and how a rank's CTAs learn who takes part. Knows device/comm/team.h and the
 * words of ep.h, not what is sent.
 *
 * Without masking each CTA waits for the peers by itself, a thread a peer, and what it has learnt
 * of them lies in its shared memory. With masking all CTAs of a rank must come to the same: CTA 0
 * meets the peers and opens a gate, at which the others wait.
 *
 * With masking a rank that does not come in time is left out from then on, and never a rank that is
 * in the middle of writing or reading memory of this one: before a rank touches a peer's memory, it
 * claims the permit that the peer has given it for this epoch, and a rank that has waited in vain
 * revokes the permit. One of the two comes first. A revoked rank finds out, a claimed one is waited
 * for. */
#ifndef WEFT_DEVICE_EP_SM90_EP_MEET_H
#define WEFT_DEVICE_EP_SM90_EP_MEET_H

#include "device/comm/team.h"
#include "device/ep/ep.h"

/* A word of this rank's own arena. */
DEV struct gmem ep_own(const struct ep_team *t, uint64_t offset) {
  return peer_at(&t->view, t->view.rank, offset);
}

/* ---- Epochs ---- */

/* 1, and the operation's epoch in its slot; 0 where the slot is in use, or holds no such operation.
 * A replayed graph can come to that; the host refuses it otherwise. */
DEV uint32_t ep_begin(const struct ep_team *t, uint32_t *epoch) {
  const uint32_t sent = epoch_read(t->sent), received = epoch_read(t->received);
  *epoch = t->halves & EP_SEND ? sent : received;
  const uint32_t ready = t->halves & EP_SEND ? sent == received : sent == received + 1;
  if (!ready && thread_index() == 0)
    peer_fail(&t->view, PEER_ERROR_BUSY, PEER_PHASE_EP_COUNTS, t->view.rank);
  return ready;
}

/* One thread of a CTA, when its CTA reads the epoch no more: the last one moves it on, of the
 * halves that this launch was. */
#define ep_end(t, epoch)                                                                           \
  do {                                                                                             \
    const struct gmem ep_words_ = (t)->halves & EP_SEND ? (t)->sent : (t)->received;               \
    if (atom_add_u32(acq_rel, gpu, gmem_add(ep_words_, 4), 1) + 1 == cta_count()) {                \
      st_global_u32(gmem_add(ep_words_, 4), 0);                                                    \
      if ((t)->halves & EP_SEND) st_global_u32((t)->sent, (epoch) + 1);                            \
      if ((t)->halves & EP_RECEIVE) st_global_u32((t)->received, (epoch) + 1);                     \
    }                                                                                              \
  } while (0)

/* What the operation says of itself. */
DEV uint32_t ep_own_descriptor(const struct ep_team *t, uint32_t fresh) {
  return ep_descriptor(t->kind, fresh || t->kind == EP_REFUSED ? 0 : ld_global_u32(t->routing));
}

/* ---- Masks and permits ---- */

DEV struct gmem ep_mask_word(const struct ep_team *t, uint32_t peer) {
  return gmem_add(t->mask, (uint64_t)peer * 4);
}

/* A wait for this peer ends by the team's error word; with masking by the peer's mask, which it
 * sets when the time is up. */
DEV struct wait_limit ep_limit(const struct ep_team *t, uint32_t peer) {
  struct wait_limit limit = peer_limit(&t->view);
  if (t->masking) limit.error = ep_mask_word(t, peer);
  return limit;
}

#define ep_late(phase, peer) peer_error(PEER_ERROR_TIMEOUT, phase, peer)

DEV uint32_t ep_masked(const struct ep_team *t, uint32_t peer) {
  return t->masking && peer != t->view.rank && ld_u32(relaxed, sys, ep_mask_word(t, peer)) != 0;
}

/* The peer is left out from now on, and told so. */
DEV void ep_leave_out(const struct ep_team *t, uint32_t peer, enum peer_phase phase) {
  if (!t->masking) return;
  (void)atom_cas_u32(relaxed, sys, ep_mask_word(t, peer), 0, ep_late(phase, peer));
  st_u32(relaxed, sys, peer_word(&t->view, peer, t->notice, t->view.rank), 1);
}

/* A permit of an epoch: given, and with the lowest bit claimed. */
DEV uint32_t ep_permit(uint32_t epoch) {
  return (epoch + 1) * 2;
}

DEV void ep_give_permit(const struct ep_team *t, uint32_t epoch, uint32_t peer) {
  if (t->masking)
    st_u32(relaxed, sys, peer_word(&t->view, t->view.rank, t->words.permit, peer),
           ep_permit(epoch));
}

/* 0 where the peer has left this rank out. */
DEV uint32_t ep_claim_permit(const struct ep_team *t, uint32_t epoch, uint32_t peer) {
  if (!t->masking) return 1;
  const struct gmem word = peer_word(&t->view, peer, t->words.permit, t->view.rank);
  return atom_cas_u32(relaxed, sys, word, ep_permit(epoch), ep_permit(epoch) | 1) ==
         ep_permit(epoch);
}

/* 0 where the peer has claimed it. */
DEV uint32_t ep_revoke_permit(const struct ep_team *t, uint32_t epoch, uint32_t peer) {
  const struct gmem word = peer_word(&t->view, t->view.rank, t->words.permit, peer);
  return atom_cas_u32(relaxed, sys, word, ep_permit(epoch), 0) == ep_permit(epoch);
}

/* ---- Hellos ---- */

/* One thread a peer: whether the peer takes part, as far as is known by now. */
DEV uint32_t ep_expected(const struct ep_team *t, uint32_t peer) {
  if (ep_masked(t, peer)) return 0;
  if (t->masking && ld_u32(relaxed, sys, peer_word(&t->view, t->view.rank, t->notice, peer)) != 0) {
    ep_leave_out(t, peer, PEER_PHASE_EP_READY);
    return 0;
  }
  return 1;
}

/* Statistics, one thread a peer, at the end: the time that it has waited for the peer. */
DEV void ep_add_wait(const struct ep_team *t, uint32_t peer, uint64_t ns) {
  const struct gmem sum = gmem_add(t->wait_ns, (uint64_t)peer * 8);
  st_global_u64(sum, ld_global_u64(sum) + ns);
}

/* One thread a peer: waits for the peer's hello and compares it with this rank's. 0: the peer does
 * not take part, or the team has an error. */
DEV uint32_t ep_meet(const struct ep_team *t, uint32_t epoch, uint32_t descriptor, uint32_t peer,
                     enum peer_phase phase) {
  const struct gmem word = ep_own(t, t->words.hello + (uint64_t)peer * 8);
  const uint32_t came =
      wait_u64_ge(sys, word, (uint64_t)(epoch + 1) << 32, ep_limit(t, peer), ep_late(phase, peer));
  if (!came) {
    ep_leave_out(t, peer, phase);
    return 0;
  }
  const uint32_t theirs = (uint32_t)ld_u64(relaxed, sys, word);
  if (theirs == descriptor) return 1;
  peer_fail(&t->view,
            theirs == ep_descriptor(EP_REFUSED, 0) ? PEER_ERROR_REFUSED : PEER_ERROR_DIFFERS, phase,
            peer);
  return 0;
}

/* One thread a peer that was given a permit: waits until the peer's CTAs have ended their part. 0:
 * it has done nothing in this rank's memory, and never will. `waited`: ns for its hello. */
DEV uint32_t ep_await_done(const struct ep_team *t, uint32_t epoch, uint32_t peer,
                           uint32_t waited) {
  const uint64_t since = globaltimer();
  const struct gmem word = peer_word(&t->view, t->view.rank, t->words.done, peer);
  const uint32_t value = (epoch + 1) * cta_count();
  uint32_t done =
      wait_u32_ge(sys, word, value, ep_limit(t, peer), ep_late(PEER_PHASE_EP_DONE, peer));
  if (!done && t->masking) {
    /* It is masked from now on; but where it has claimed the permit, it must be let end. */
    if (!ep_revoke_permit(t, epoch, peer))
      done = peer_wait(&t->view, word, value, PEER_PHASE_EP_DONE, peer);
    ep_leave_out(t, peer, PEER_PHASE_EP_DONE);
  }
  ep_add_wait(t, peer, globaltimer() - since + waited);
  return done;
}

/* ---- The gate ---- */

/* CTA 0, one thread, after a barrier of those that have set the states. */
#define ep_open_gate(t, epoch) st_u32(release, gpu, (t)->gate, (epoch) + 1)

/* CTA 0 may wait for peers several times before it opens the gate, or gives up and says for whom.
 */
DEV struct wait_limit ep_gate_limit(const struct ep_team *t) {
  struct wait_limit limit = peer_limit(&t->view);
  limit.timeout_ns *= EP_GATE_PATIENCE;
  return limit;
}

/* One thread. 0: the operation has failed. */
#define ep_pass_gate(t, epoch)                                                                     \
  wait_u32_ge(gpu, (t)->gate, (epoch) + 1, ep_gate_limit(t),                                       \
              peer_error(PEER_ERROR_LOCAL, PEER_PHASE_EP_READY, (t)->view.rank))

/* Of a CTA that has passed the gate. */
DEV uint32_t ep_state(const struct ep_team *t, uint32_t peer) {
  return ld_global_u32(gmem_add(t->state, (uint64_t)peer * 4));
}

DEV void ep_set_state(const struct ep_team *t, uint32_t peer, uint32_t takes_part) {
  st_global_u32(gmem_add(t->state, (uint64_t)peer * 4), takes_part);
}

/* Where what rank `peer` has offered this one begins. */
DEV struct gmem ep_offer_from(const struct ep_team *t, uint32_t peer) {
  return ep_own(t, t->words.offer + (uint64_t)peer * EP_OFFER_BYTES);
}
DEV struct gmem ep_offer_to(const struct ep_team *t, uint32_t peer) {
  return peer_at(&t->view, peer, t->words.offer + (uint64_t)t->view.rank * EP_OFFER_BYTES);
}

/* ---- What a CTA knows of its peers, in its shared memory ---- */

struct ep_known {
  struct smem in;     /* u32 [ranks]: 1: takes part */
  struct smem offers; /* u64 [count][ranks] */
};

/* The thread that has waited for the peer. `count` is a literal. */
DEV void ep_learn(const struct ep_team *t, struct ep_known k, uint32_t peer, uint32_t in,
                  const uint32_t count) {
  uint64_t offers[3] = {0, 0, 0};
  const struct gmem from = ep_offer_from(t, peer);
  st_shared_u32(smem_add(k.in, peer * 4), in);
  if (!in) return;
  UNROLL for (uint32_t i = 0; i < count; i++) offers[i] = ld_global_u64(gmem_add(from, i * 8));
  UNROLL for (uint32_t i = 0; i < count; i++)
      st_shared_u64(smem_add(k.offers, (i * t->view.ranks + peer) * 8), offers[i]);
}

DEV uint32_t ep_takes_part(struct ep_known k, uint32_t peer) {
  return ld_shared_u32(smem_add(k.in, peer * 4));
}

DEV uint32_t ep_all_take_part(const struct ep_team *t, struct ep_known k) {
  uint32_t all = 1;
  for (uint32_t r = 0; r < t->view.ranks; r++)
    all &= ep_takes_part(k, r);
  return all;
}

DEV struct gmem ep_offered(const struct ep_team *t, struct ep_known k, uint32_t peer,
                           uint32_t index) {
  struct gmem p;
  p.a = ld_shared_u64(smem_add(k.offers, (index * t->view.ranks + peer) * 8));
  return p;
}

#endif
