/* Combine: each rank pulls, for each of its tokens, the rows that its experts made of it straight
 * from the peers' memory, by bulk loads into a ring of stages in shared memory, and sums them in
 * f32, in top-k order. A unit is a piece of a token's row; a stage holds that piece of all rows of
 * the token.
 *
 * Roles of a CTA's warps:
 *   warp 0       loads: a lane a slot of the token
 *   warps 1-8    readers: 16 bytes of the piece each
 *
 * Two hazards between proxies, each fenced once (docs/fences.md): the peers' stores to y, announced
 * by their hellos, against the bulk loads of it; and the readers' loads of a stage against the bulk
 * loads that overwrite it. */
#ifndef WEFT_DEVICE_EP_SM90_EP_COMBINE_H
#define WEFT_DEVICE_EP_SM90_EP_COMBINE_H

#include "device/ep/sm90_ep_meet.h"

struct ep_pull {
  uint32_t first, last; /* units */
  uint32_t epoch;
  struct ep_combine_shared at;
};

DEV struct smem pull_word(uint32_t offset, uint32_t index) {
  return smem_add(smem_base(), offset + index * 4);
}
DEV struct smem pull_barrier(uint32_t array, uint32_t stage) {
  return smem_add(smem_base(), array + stage * 8);
}
DEV struct smem pull_stage(const struct ep_pull *p, uint32_t stage) {
  return smem_add(smem_base(), stage * p->at.stage_bytes);
}

/* ---- Meeting ---- */

/* CTA 0, one thread a peer: shows it y, and says hello. */
DEV void pull_announce(const struct ep_combine_args *a, const struct ep_pull *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t descriptor = ep_own_descriptor(t, 0);
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count()) {
    if (!ep_expected(t, r)) continue;
    const struct gmem offer = ep_offer_to(t, r);
    st_global_u64(offer, a->y.a);
    st_global_u64(gmem_add(offer, 8), a->row_gradient.a);
    ep_give_permit(t, p->epoch, r);
    /* The offer, and what earlier kernels of this rank have written to y. */
    peer_set64(peer_at(&t->view, r, t->words.hello + (uint64_t)t->view.rank * 8),
               (uint64_t)(p->epoch + 1) << 32 | descriptor);
  }
}

/* With masking, all threads of CTA 0: meets the peers and opens the gate. `part` says to whom y was
 * shown. */
DEV void pull_agree(const struct ep_combine_args *a, const struct ep_pull *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t descriptor = ep_own_descriptor(t, 0);
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count()) {
    const uint32_t expected = ep_expected(t, r);
    uint32_t in = expected;
    if (in) in = ep_meet(t, p->epoch, descriptor, r, PEER_PHASE_EP_READY);
    if (in && !ep_claim_permit(t, p->epoch, r)) {
      ep_leave_out(t, r, PEER_PHASE_EP_READY);
      in = 0;
    }
    ep_set_state(t, r, in);
    st_shared_u32(pull_word(p->at.part, r), expected);
  }
  bar_sync(0, thread_count());
  if (thread_index() == 0) ep_open_gate(t, p->epoch);
}

DEV struct ep_known pull_known(const struct ep_pull *p) {
  struct ep_known k;
  k.in = pull_word(p->at.in, 0);
  k.offers = pull_word(p->at.offers, 0);
  return k;
}

/* All threads. 1: the rows are there. */
DEV uint32_t pull_enter(const struct ep_combine_args *a, const struct ep_pull *p) {
  const struct ep_team *const t = &a->team;
  const uint32_t descriptor = ep_own_descriptor(t, 0);
  if (t->masking) {
    if (cta_index() == 0) pull_agree(a, p);
    if (thread_index() == 0) st_shared_u32(pull_word(p->at.alive, 0), ep_pass_gate(t, p->epoch));
    bar_sync(0, thread_count());
    if (!ld_shared_u32(pull_word(p->at.alive, 0))) return 0;
  }
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count()) {
    const uint64_t since = globaltimer();
    const uint32_t in =
        t->masking ? ep_state(t, r) : ep_meet(t, p->epoch, descriptor, r, PEER_PHASE_EP_READY);
    st_shared_u32(pull_word(p->at.waited, r), (uint32_t)(globaltimer() - since));
    ep_learn(t, pull_known(p), r, in, 2);
    /* What the peers' kernels have stored to y -> our bulk loads (hazard A). */
    if (t->fence == EP_FENCE_ON) fence_proxy_async_global(ep_combine_ready);
  }
  bar_sync(0, thread_count());
  return t->masking || ep_all_take_part(t, pull_known(p));
}

/* ---- Loading ---- */

/* What the handle says of a slot: the row that comes back to it, and its weight. */
struct pull_slot {
  int32_t expert; /* −1: none */
  uint32_t row;   /* ~0: none */
  float weight;
};

/* A lane a slot. */
DEV struct pull_slot pull_slot(const struct ep_combine_args *a, uint32_t token, uint32_t lane) {
  struct pull_slot s = {-1, ~0u, 1.0f};
  if (lane >= a->team.topk) return s;
  const uint64_t slot = ((uint64_t)token * a->team.topk + lane) * 4;
  s.expert = (int32_t)ld_global_u32(gmem_add(a->expert, slot));
  s.row = ld_global_u32(gmem_add(a->row, slot));
  if (a->weights.a != 0) s.weight = ld_global_f32(gmem_add(a->weights, slot));
  return s;
}

/* Where the row is; 0: the slot is skipped. */
DEV struct gmem pull_source(const struct ep_combine_args *a, const struct ep_pull *p,
                            const struct pull_slot *s, uint32_t *rank) {
  struct gmem y = {0};
  if (s->expert < 0 || s->row == ~0u) return y;
  *rank = (uint32_t)s->expert / a->team.experts_local;
  if (!ep_takes_part(pull_known(p), *rank)) return y;
  return gmem_add(ep_offered(&a->team, pull_known(p), *rank, 0), (uint64_t)s->row * a->row_bytes);
}

/* A lane a slot: the value that came with its row. */
DEV void pull_gradient(const struct ep_combine_args *a, const struct ep_pull *p,
                       const struct pull_slot *s, struct gmem y, uint32_t rank, uint32_t token,
                       uint32_t lane) {
  float value = 0.0f;
  if (lane >= a->team.topk) return;
  if (y.a != 0) {
    const struct gmem values = ep_offered(&a->team, pull_known(p), rank, 1);
    if (values.a != 0) value = ld_global_f32(gmem_add(values, (uint64_t)s->row * 4));
  }
  st_global_f32(gmem_add(a->weight_gradient, ((uint64_t)token * a->team.topk + lane) * 4), value);
}

/* A warp: the rows of each unit into the ring, one behind the other. `next` is the first token's
 * slot. */
DEV void pull_load(const struct ep_combine_args *a, const struct ep_pull *p,
                   struct pull_slot next) {
  const uint32_t lane = lane_index(), topk = a->team.topk, pieces = a->pieces.count;
  uint32_t stage = 0, parity = 1; /* a fresh barrier counts as one whose odd phase has completed */
  struct pull_slot slot = next;
  struct gmem y = {0};
  for (uint32_t unit = p->first; unit < p->last; unit++) {
    const uint32_t token = unit / pieces, piece = unit % pieces;
    if (unit == p->first || piece == 0) {
      uint32_t rank = 0;
      slot = next;
      y = pull_source(a, p, &slot, &rank);
      if (piece == 0 && a->weight_gradient.a != 0) pull_gradient(a, p, &slot, y, rank, token, lane);
      if ((token + 1) * pieces < p->last) next = pull_slot(a, token + 1, lane);
    }
    const uint32_t bytes = ep_piece_bytes(a->row_bytes, a->pieces, piece);
    const uint32_t rows = warp_ballot(y.a != 0);
    const uint32_t index = popc(rows & ((1u << lane) - 1));
    const struct smem full = pull_barrier(p->at.full, stage);
    mbarrier_wait(pull_barrier(p->at.empty, stage), parity);
    if (y.a != 0) st_shared_f32(pull_word(p->at.weights, stage * topk + index), slot.weight);
    if (lane == 0) st_shared_u32(pull_word(p->at.present, stage), popc(rows));
    warp_sync();
    if (lane == 0) mbarrier_arrive_expect_tx(full, popc(rows) * bytes);
    if (y.a != 0) {
      if (a->team.fence == EP_FENCE_WIDE) fence_proxy_async(ep_combine_wide);
      bulk_load(smem_add(pull_stage(p, stage), index * a->pieces.bytes),
                gmem_add(y, (uint64_t)piece * a->pieces.bytes), bytes, full);
    }
    if (++stage == a->stages) stage = 0, parity ^= 1;
  }
}

/* ---- Summing ---- */

struct pull_sum {
  float of[8];
};

DEV void pull_add(struct pull_sum *sum, float weight, struct u32x4 v) {
  sum->of[0] = fma_f32(weight, bf16x2_lo(v.x), sum->of[0]);
  sum->of[1] = fma_f32(weight, bf16x2_hi(v.x), sum->of[1]);
  sum->of[2] = fma_f32(weight, bf16x2_lo(v.y), sum->of[2]);
  sum->of[3] = fma_f32(weight, bf16x2_hi(v.y), sum->of[3]);
  sum->of[4] = fma_f32(weight, bf16x2_lo(v.z), sum->of[4]);
  sum->of[5] = fma_f32(weight, bf16x2_hi(v.z), sum->of[5]);
  sum->of[6] = fma_f32(weight, bf16x2_lo(v.w), sum->of[6]);
  sum->of[7] = fma_f32(weight, bf16x2_hi(v.w), sum->of[7]);
}

enum { PULL_GROUP = 4 }; /* rows whose loads are in flight together */

/* 16 bytes of all rows of a stage. */
DEV struct u32x4 pull_vector(const struct ep_combine_args *a, const struct ep_pull *p,
                             uint32_t stage, uint32_t rows, uint32_t at) {
  const struct smem data = smem_add(pull_stage(p, stage), at);
  const uint32_t weights = p->at.weights + stage * a->team.topk * 4;
  struct pull_sum sum;
  UNROLL for (int i = 0; i < 8; i++) sum.of[i] = 0.0f;
  uint32_t j = 0;
  for (; j + PULL_GROUP <= rows; j += PULL_GROUP) {
    struct u32x4 v[PULL_GROUP];
    float w[PULL_GROUP];
    UNROLL for (uint32_t i = 0; i < PULL_GROUP; i++) {
      v[i] = ld_shared_u32x4(smem_add(data, (j + i) * a->pieces.bytes));
      w[i] = ld_shared_f32(pull_word(weights, j + i));
    }
    UNROLL for (uint32_t i = 0; i < PULL_GROUP; i++) pull_add(&sum, w[i], v[i]);
  }
  for (; j < rows; j++)
    pull_add(&sum, ld_shared_f32(pull_word(weights, j)),
             ld_shared_u32x4(smem_add(data, j * a->pieces.bytes)));
  struct u32x4 out;
  out.x = pack_bf16x2(sum.of[0], sum.of[1]);
  out.y = pack_bf16x2(sum.of[2], sum.of[3]);
  out.z = pack_bf16x2(sum.of[4], sum.of[5]);
  out.w = pack_bf16x2(sum.of[6], sum.of[7]);
  return out;
}

/* All readers. */
DEV void pull_read(const struct ep_combine_args *a, const struct ep_pull *p, uint32_t reader) {
  uint32_t stage = 0, parity = 0;
  for (uint32_t unit = p->first; unit < p->last; unit++) {
    const uint32_t token = unit / a->pieces.count, piece = unit % a->pieces.count;
    const uint32_t bytes = ep_piece_bytes(a->row_bytes, a->pieces, piece);
    const struct gmem out =
        gmem_add(a->out, token * a->out_stride + (uint64_t)piece * a->pieces.bytes);
    mbarrier_wait(pull_barrier(p->at.full, stage), parity);
    const uint32_t rows = ld_shared_u32(pull_word(p->at.present, stage));
    for (uint32_t at = reader * 16; at < bytes; at += EP_COMBINE_READERS * 16)
      st_global_u32x4(gmem_add(out, at), pull_vector(a, p, stage, rows, at));
    /* Own loads of the stage -> the bulk loads that overwrite it (hazard B). */
    if (a->team.fence == EP_FENCE_ON) fence_proxy_async_shared_cta(ep_combine_stage_read);
    warp_sync();
    if (lane_index() == 0) mbarrier_arrive(pull_barrier(p->at.empty, stage));
    if (++stage == a->stages) stage = 0, parity ^= 1;
  }
}

/* ---- The end ---- */

/* All threads, when the CTA has read all its rows: one more CTA is done with the peers' y; and CTA
 * 0 waits until the peers are done with this rank's. */
DEV void pull_end(const struct ep_combine_args *a, const struct ep_pull *p) {
  const struct ep_team *const t = &a->team;
  bar_sync(0, thread_count());
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count())
    if (ep_takes_part(pull_known(p), r))
      peer_count(peer_word(&t->view, r, t->words.done, t->view.rank), 1);
  if (cta_index() != 0) return;
  for (uint32_t r = thread_index(); r < t->view.ranks; r += thread_count())
    if (!t->masking || ld_shared_u32(pull_word(p->at.part, r)))
      ep_await_done(t, p->epoch, r, ld_shared_u32(pull_word(p->at.waited, r)));
  if (thread_index() == 0) st_global_u64(t->operations, ld_global_u64(t->operations) + 1);
}

DEV struct ep_pull pull_make(const struct ep_combine_args *a) {
  struct ep_pull p;
  const uint32_t units = a->team.tokens * a->pieces.count;
  p.first = ep_share(units, cta_count(), cta_index());
  p.last = ep_share(units, cta_count(), cta_index() + 1);
  p.at = ep_combine_shared(a->team.view.ranks, a->team.topk, a->stages, a->pieces.bytes);
  p.epoch = 0;
  return p;
}

/* The whole kernel. */
DEV void ep_combine(const struct ep_combine_args *a) {
  if (a->team.view.ranks == 0) return; /* a launch that only loads the code */
  struct ep_pull p = pull_make(a);
  const struct ep_team *const t = &a->team;
  if (!ep_begin(t, &p.epoch)) return;
  if (t->halves & EP_SEND && cta_index() == 0) pull_announce(a, &p);
  if (t->halves & EP_RECEIVE) {
    struct pull_slot first = {-1, ~0u, 1.0f};
    if (thread_index() == 0)
      for (uint32_t s = 0; s < a->stages; s++) {
        mbarrier_init(pull_barrier(p.at.full, s), 1);
        mbarrier_init(pull_barrier(p.at.empty, s), EP_COMBINE_READERS / 32);
      }
    if (warp_index() == 0 && p.first < p.last)
      first = pull_slot(a, p.first / a->pieces.count, lane_index());
    if (pull_enter(a, &p)) {
      if (warp_index() == 0)
        pull_load(a, &p, first);
      else
        pull_read(a, &p, thread_index() - 32);
      pull_end(a, &p);
    }
  } else {
    bar_sync(0, thread_count()); /* all threads have read the epoch */
  }
  if (thread_index() == 0) ep_end(t, p.epoch);
}

#endif
