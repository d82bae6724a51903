/* What becomes of a row's statistics in the forward kernels: the loss, and in a team the exchange
 * with the peers before it. A warp that does nothing else takes the exchange, half a token tile
 * after the other, so that waiting for a peer never holds up what another peer waits for. Knows the
 * peer view and the contract of ce; nothing of tiles of the vocabulary. */
#ifndef WEFT_DEVICE_CE_SM90_FORWARD_TEAM_H
#define WEFT_DEVICE_CE_SM90_FORWARD_TEAM_H

#include "device/ce/sm90_forward_reduce.h"
#include "device/comm/team.h"

/* Adds statistics of other columns of the row, both in base 2. Exact in either order but for the
 * order of one addition. */
DEV struct row_state merge(struct row_state a, struct row_state b) {
  struct row_state r;
  r.m = max_f32(a.m, b.m);
  /* Where m is minus infinity the differences are NaN, which max takes for the other operand. */
  const float da = max_f32(a.m - r.m, LEAST_EXPONENT), db = max_f32(b.m - r.m, LEAST_EXPONENT);
  const float fa = ex2(da), fb = ex2(db);
  r.s = fma_f32(fa, a.s, fb * b.s);
  r.t = fma_f32(fa, fma_f32(da, a.s, a.t), fb * fma_f32(db, b.s, b.t));
  return r;
}

/* What a token's target says. */
struct forward_target {
  uint32_t ignored, bad, column; /* column: the row of this W, or FORWARD_NO_COLUMN */
};

DEV struct forward_target read_target(const struct forward_args *args, uint32_t token) {
  struct forward_target r;
  const int64_t id =
      args->target_is_i32
          ? (int64_t)(int32_t)ld_global_u32(gmem_add(args->target, (uint64_t)token * 4))
          : (int64_t)ld_global_u64(gmem_add(args->target, (uint64_t)token * 8));
  const int64_t local = id - args->vocab_start;
  r.ignored = id == args->ignore_index;
  r.bad = !r.ignored && (id < 0 || id >= args->vocab);
  r.column = !r.ignored && !r.bad && local >= 0 && local < (int64_t)args->rows
                 ? (uint32_t)local
                 : (uint32_t)FORWARD_NO_COLUMN;
  return r;
}

DEV uint32_t has_peers(const struct forward_args *args) {
  return args->team.view.ranks > 1;
}

/* Of waits for this rank's own grid. In a team they end with the team's. */
DEV struct wait_limit forward_limit(const struct forward_args *args) {
  struct wait_limit limit;
  limit.error = has_peers(args) ? args->team.view.error : args->errors;
  limit.timeout_ns = args->timeout_ns;
  return limit;
}

DEV uint32_t forward_wait_code(const struct forward_args *args) {
  return has_peers(args) ? peer_error(PEER_ERROR_LOCAL, PEER_PHASE_STATISTICS, args->team.view.rank)
                         : (uint32_t)WAIT_CODE;
}

/* The loss of a token from the sums over the whole vocabulary and its target's logit z. */
DEV void write_loss(const struct forward_args *args, uint32_t token, struct forward_target target,
                    struct row_state sum, float z) {
  const uint64_t at = (uint64_t)token * 4;
  const float log_s = lg2(sum.s);
  if (args->nll.a) {
    const float nll = ((sum.m - z) + log_s) * LN_2;
    st_global_f32(gmem_add(args->nll, at), target.ignored ? 0.0f : target.bad ? NOT_A_NUMBER : nll);
  }
  if (args->lse.a) st_global_f32(gmem_add(args->lse, at), (sum.m + log_s) * LN_2);
  if (args->entropy.a)
    st_global_f32(gmem_add(args->entropy, at),
                  target.ignored ? 0.0f : (log_s - sum.t / sum.s) * LN_2);
  if (args->stats.a) {
    struct f32x4 stats;
    stats.x = sum.m * LN_2;
    stats.y = sum.s;
    stats.z = z * LN_2;
    stats.w = args->wants_entropy ? sum.t * LN_2 : 0.0f;
    const struct gmem to = gmem_add(args->stats, at * 4);
    st_global_f32(to, stats.x);
    st_global_f32(gmem_add(to, 4), stats.y);
    st_global_f32(gmem_add(to, 8), stats.z);
    st_global_f32(gmem_add(to, 12), stats.w);
  }
}

/* ---- The team's exchange --------------------------------------------------------------------- */

/* Where a rank has its statistics of a token in its arena. */
DEV uint64_t shared_row(const struct forward_team *team, uint32_t epoch, uint32_t token) {
  return team->statistics +
         ((uint64_t)(epoch & 1) * team->halves * FORWARD_HALF_TOKENS + token) * 16;
}

/* Where rank `from` announces half a token tile, in every arena. */
DEV uint64_t shared_word(const struct forward_team *team, uint32_t epoch, uint32_t from,
                         uint32_t half) {
  const uint64_t set = (uint64_t)(epoch & 1) * team->halves + half;
  return team->arrived + (set * team->view.ranks + from) * 8;
}

/* Lays out what this rank has of a token, for every rank to load. */
DEV void share_row(const struct forward_args *args, uint32_t token, struct row_state sum, float z) {
  const struct peer_view *const view = &args->team.view;
  struct f32x4 v;
  v.x = sum.m;
  v.y = sum.s;
  v.z = sum.t;
  v.w = z;
  st_global_f32x4(
      peer_at(view, view->rank, shared_row(&args->team, epoch_read(args->team.epoch), token)), v);
}

/* A warp, all of whose threads have observed this rank's rows of half a token tile, tells every
 * rank that they are there. A call without tokens has one half too, so that ranks whose calls
 * differ find out. */
DEV void announce_rows(const struct forward_args *args, uint32_t half) {
  const struct peer_view *const view = &args->team.view;
  const uint32_t epoch = epoch_read(args->team.epoch);
  const uint64_t at = shared_word(&args->team, epoch, view->rank, half);
  for (uint32_t peer = lane_index(); peer < view->ranks; peer += 32)
    peer_set64(peer_at(view, peer, at), (uint64_t)(epoch + 1) << 32 | args->tokens);
}

/* A warp waits until every rank has announced its rows. */
DEV void wait_for_rows(const struct forward_args *args, uint32_t half) {
  const struct peer_view *const view = &args->team.view;
  const uint32_t epoch = epoch_read(args->team.epoch);
  for (uint32_t peer = lane_index(); peer < view->ranks; peer += 32) {
    const struct gmem word = peer_at(view, view->rank, shared_word(&args->team, epoch, peer, half));
    if (peer_wait64(view, word, (uint64_t)(epoch + 1) << 32, PEER_PHASE_STATISTICS, peer) &&
        (uint32_t)ld_u64(relaxed, sys, word) != args->tokens)
      peer_fail(view, PEER_ERROR_DIFFERS, PEER_PHASE_STATISTICS, peer);
  }
}

/* Merges what the ranks have of a token, in rank order: the same bits on every rank. */
DEV void merge_row(const struct forward_args *args, uint32_t token) {
  const struct peer_view *const view = &args->team.view;
  const uint32_t epoch = epoch_read(args->team.epoch);
  struct row_state sum = {MINUS_INFINITY, 0.0f, 0.0f};
  float z = 0.0f; /* one rank's at most is not 0 */
  for (uint32_t from = 0; from < view->ranks; from++) {
    const struct f32x4 v =
        ld_global_f32x4(peer_at(view, from, shared_row(&args->team, epoch, token)));
    struct row_state part;
    part.m = v.x;
    part.s = v.y;
    part.t = v.z;
    sum = merge(sum, part);
    z += v.w;
  }
  write_loss(args, token, read_target(args, token), sum, z);
}

/* Half a token tile, by a warp, once it is announced. */
DEV void merge_half(const struct forward_args *args, uint32_t half) {
  wait_for_rows(args, half);
  warp_sync();
  for (uint32_t row = lane_index(); row < FORWARD_HALF_TOKENS; row += 32) {
    const uint32_t token = half * FORWARD_HALF_TOKENS + row;
    if (token < args->tokens) merge_row(args, token);
  }
}

/* A warp's part of the exchange is over: of `parties` warps the last one moves the epoch on. */
DEV void leave_exchange(const struct forward_args *args, uint32_t parties) {
  warp_sync(); /* no lane reads the epoch any more */
  if (lane_index() == 0) epoch_end(args->team.epoch, epoch_read(args->team.epoch), parties);
}

DEV uint32_t halves_of(const struct forward_args *args) {
  return args->tokens / FORWARD_HALF_TOKENS + (args->tokens % FORWARD_HALF_TOKENS != 0);
}

#endif
