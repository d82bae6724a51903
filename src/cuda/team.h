/* What a plan of a team of GPU ranks has in common with its peers: its block of the symmetric
 * arena, the peer view that its kernels take, the epoch of its launches, and the bracket around a
 * call's launches that keeps a rank's team kernels in one order. It knows teams and the driver, and
 * no operation. */
#ifndef WEFT_CUDA_TEAM_H
#define WEFT_CUDA_TEAM_H

#include "comm/comm.h"
#include "cuda/rank.h"
#include "device/comm/peers.h"

enum { CUDA_TEAM_WORDS = 16 };

struct cuda_team {
  weft_comm *comm;
  cuda_address block; /* of this rank, GPU_RANK_ALIGNMENT aligned; base[rank] of the view */
  int64_t bytes,
      zeroed;         /* all is 0 when the plan is made; after a reset, the first `zeroed` bytes */
  cuda_address words; /* local memory: [ranks] bases, then those of `epoch` */
  struct peer_view view; /* of the kernels' arguments */
  cuda_address epoch; /* u32 [CUDA_TEAM_WORDS], 0 then too: pairs of words that kernels keep epochs
                         in (device/comm/team.h), and what else is to be 0 */
};

/* Whether the team's kernels may have peers: a plan of any other team needs none of this. */
static inline bool weft__cuda_team_has_peers(const weft_comm *comm) {
  return comm != NULL && comm->gpu_rank != NULL && comm->info.ranks > 1;
}

/* Takes `bytes` of this rank's arena. Not collective; the device's context is current. */
weft_status weft__cuda_team_create(struct cuda_team *team, weft_comm *comm, int64_t bytes,
                                   int64_t zeroed);
/* Learns where the peers' blocks are. Collective; after it, kernels may use the view. */
weft_status weft__cuda_team_connect(struct cuda_team *team);
/* Zeroes signals and epoch again: a plan's part of weft_comm_reset(). */
weft_status weft__cuda_team_reset(struct cuda_team *team);
void weft__cuda_team_destroy(struct cuda_team *team);

/* Around the launches of one call, on any rank of a world of several GPU ranks (`rank` NULL:
 * nothing happens). begin() waits for no device: it makes the stream wait for the rank's kernels so
 * far, captured or not, and gives the rank's own stream where *stream is NULL. Every begin() that
 * answered WEFT_OK needs its end(), whatever became of the launches. */
weft_status weft__cuda_chain_begin(weft__gpu_rank *rank, cuda_stream *stream);
weft_status weft__cuda_chain_end(weft__gpu_rank *rank, cuda_stream stream);

#endif
