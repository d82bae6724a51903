/* Ranks that reach each other's memory, from inside a kernel: addresses of symmetric objects,
 * signals to a peer, timed waits for them, and the barrier of a team. Knows the wrappers of ptx/
 * and the peer view, and nothing of what is exchanged.
 *
 * Signals are words in the arena that only ever grow (modulo 2^32), set by one rank each or counted
 * up by several; what they grow by is the caller's. They are zero when a plan is made, and every
 * launch of a plan moves its epoch (a word in device memory, so that a captured launch can be
 * replayed) on by one: value e is the signal of the launch with epoch e, and nothing is ever reset.
 * What is macros here carries its own site wherever it is used, so that loom can drop it there. */
#ifndef WEFT_DEVICE_COMM_TEAM_H
#define WEFT_DEVICE_COMM_TEAM_H

#include "device/comm/peers.h"
#include "device/ptx/ptx.h"

/* Where `offset` of the peer's arena is, for this rank. */
DEV struct gmem peer_at(const struct peer_view *view, uint32_t peer, uint64_t offset) {
  struct gmem base;
  base.a = ld_global_u64(gmem_add(view->bases, (uint64_t)peer * 8));
  return gmem_add(base, offset);
}

/* Word `index` of a block of u32 signals at `offset` of the peer's arena. */
DEV struct gmem peer_word(const struct peer_view *view, uint32_t peer, uint64_t offset,
                          uint32_t index) {
  return peer_at(view, peer, offset + (uint64_t)index * 4);
}

DEV struct wait_limit peer_limit(const struct peer_view *view) {
  struct wait_limit limit;
  limit.error = view->error;
  limit.timeout_ns = view->timeout_ns;
  return limit;
}

/* Tells a peer, by a word that this rank alone sets: what this thread did and has observed (its
 * CTA's writes after a bar_sync, say) is there for whoever acquires the word. Generic accesses: the
 * reader's bulk loads need their own proxy fence after the wait. */
#define peer_set(word, value)   st_u32(release, sys, word, value)
#define peer_set64(word, value) st_u64(release, sys, word, value)
/* The same by a word that several threads or ranks count up. */
#define peer_count(word, n) red_add_u32(release, sys, word, n)

/* Until the word (of this rank's own arena, as a rule) has reached the value; acquires. Answers 1,
 * or 0 where the peer did not come in time or the rank's error word is set: then the kernel carries
 * on with whatever is there, all its own barriers in step, and the host tells who waited for whom.
 */
#define peer_wait(view, word, value, phase, peer)                                                  \
  wait_u32_ge(sys, word, value, peer_limit(view), peer_error(PEER_ERROR_TIMEOUT, phase, peer))
/* Words of 64 bits, compared as such: an epoch above 2^32, a payload below. */
#define peer_wait64(view, word, value, phase, peer)                                                \
  wait_u64_ge(sys, word, value, peer_limit(view), peer_error(PEER_ERROR_TIMEOUT, phase, peer))

/* Keeps an error that was not a wait's, unless another came first. */
#define peer_fail(view, kind, phase, peer)                                                         \
  ((void)atom_cas_u32(relaxed, sys, (view)->error, 0, peer_error(kind, phase, peer)))

/* The barrier of a team: one CTA of each rank, all of its threads. `offset`: a block of [ranks] u32
 * signals that this barrier has for itself; `value` is one more each time. Orders what the CTA's
 * threads did and have observed before it, with what the peers' CTAs do after it. */
#define team_barrier(view, offset, value, phase)                                                   \
  do {                                                                                             \
    const struct peer_view *const team_view_ = (view);                                             \
    const uint64_t team_signals_ = (offset);                                                       \
    const uint32_t team_value_ = (value);                                                          \
    bar_sync(0, thread_count());                                                                   \
    for (uint32_t team_peer_ = thread_index(); team_peer_ < team_view_->ranks;                     \
         team_peer_ += thread_count())                                                             \
      peer_set(peer_word(team_view_, team_peer_, team_signals_, team_view_->rank), team_value_);   \
    for (uint32_t team_peer_ = thread_index(); team_peer_ < team_view_->ranks;                     \
         team_peer_ += thread_count())                                                             \
      peer_wait(team_view_, peer_word(team_view_, team_view_->rank, team_signals_, team_peer_),    \
                team_value_, phase, team_peer_);                                                   \
    bar_sync(0, thread_count());                                                                   \
  } while (0)

/* The epoch of a plan's launches on this rank: two u32 in device memory, zero when the plan is
 * made. All of a launch's parties (CTAs, warpgroups) read the first; one thread of each calls
 * epoch_end when its party will read it no more, and the last one moves it on for the next launch.
 */
DEV uint32_t epoch_read(struct gmem words) {
  return ld_global_u32(words);
}
#define epoch_end(words, epoch, parties)                                                           \
  do {                                                                                             \
    const struct gmem epoch_words_ = (words);                                                      \
    if (atom_add_u32(acq_rel, gpu, gmem_add(epoch_words_, 4), 1) + 1 == (parties)) {               \
      st_global_u32(gmem_add(epoch_words_, 4), 0);                                                 \
      st_global_u32(epoch_words_, (epoch) + 1);                                                    \
    }                                                                                              \
  } while (0)

#endif
