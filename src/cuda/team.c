/* See team.h. */
#include "cuda/team.h"

#include <string.h>

#include "core/error.h"
#include "core/memory.h"

enum {
  EXTERNAL = 1, /* CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL: of a captured graph */
};

/* Of the block's first `bytes` and the local words. */
static weft_status put_zeroes(const struct cuda_team *team, int64_t bytes) {
  const struct cuda_driver *driver = weft__cuda_driver();
  const cuda_stream stream = team->comm->gpu_rank->stream;
  if (bytes > 0)
    WEFT__TRY(weft__cuda_check(driver->cuMemsetD8Async(team->block, 0, (size_t)bytes, stream),
                               "cuMemsetD8Async"));
  WEFT__TRY(weft__cuda_check(driver->cuMemsetD8Async(team->epoch, 0, CUDA_TEAM_WORDS * 4, stream),
                             "cuMemsetD8Async"));
  return weft__cuda_check(driver->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

weft_status weft__cuda_team_create(struct cuda_team *team, weft_comm *comm, int64_t bytes,
                                   int64_t zeroed) {
  const struct cuda_driver *driver = weft__cuda_driver();
  const int64_t ranks = comm->info.ranks;
  memset(team, 0, sizeof *team);
  team->comm = comm;
  team->bytes = bytes;
  team->zeroed = zeroed;
  WEFT__TRY(weft__comm_arena_take(comm, bytes));
  weft_status status = weft__gpu_rank_take(comm->gpu_rank, bytes, &team->block);
  if (status == WEFT_OK &&
      driver->cuMemAlloc(&team->words, (size_t)ranks * 8 + CUDA_TEAM_WORDS * 4) != 0) {
    team->words = 0;
    status = weft__fail(WEFT_ERR_MEMORY, "no GPU memory for a team's peer view");
  }
  if (status == WEFT_OK) {
    team->epoch = team->words + (cuda_address)ranks * 8;
    team->view = (struct peer_view){
        .rank = (uint32_t)comm->info.rank,
        .ranks = (uint32_t)ranks,
        .host = (uint32_t)comm->info.host,
        .hosts = (uint32_t)comm->info.hosts,
        .local_rank = (uint32_t)comm->info.local_rank,
        .local_ranks = (uint32_t)comm->info.local_ranks,
        .bases = {team->words},
        .error = {(uint64_t)(uintptr_t)comm->gpu_word},
        .timeout_ns = 1000000 * (uint64_t)comm->info.timeout_ms,
    };
    status = put_zeroes(team, bytes);
  }
  if (status != WEFT_OK) weft__cuda_team_destroy(team);
  return status;
}

weft_status weft__cuda_team_connect(struct cuda_team *team) {
  const struct cuda_driver *driver = weft__cuda_driver();
  const size_t bytes = (size_t)team->view.ranks * sizeof(cuda_address);
  cuda_address *bases = NULL;
  cuda_context before = NULL;
  void *memory = NULL;
  weft__gpu_rank *const rank = team->comm->gpu_rank;
  weft_status status = weft__alloc(&memory, bytes, "peer view");
  bases = (cuda_address *)memory;
  status = weft__comm_agree(team->comm, status, NULL, 0, NULL, 0, "peer view");
  if (status != WEFT_OK) goto cleanup;
  WEFT__TRY_CLEANUP(weft__comm_allgather(team->comm, &team->block, bases, sizeof team->block));
  status = weft__cuda_enter(rank->device, &before);
  if (status == WEFT_OK)
    status = weft__cuda_check(
        driver->cuMemcpyAsync(team->words, (cuda_address)(uintptr_t)bases, bytes, rank->stream),
        "cuMemcpyAsync");
  if (status == WEFT_OK)
    status = weft__cuda_check(driver->cuStreamSynchronize(rank->stream), "cuStreamSynchronize");
  weft__cuda_leave(rank->device, before);
  status = weft__comm_agree(team->comm, status, NULL, 0, NULL, 0, "peer view");
cleanup:
  weft__free(memory);
  return status;
}

weft_status weft__cuda_team_reset(struct cuda_team *team) {
  weft__gpu_rank *const rank = team->comm->gpu_rank;
  cuda_context before = NULL;
  weft_status status = weft__cuda_enter(rank->device, &before);
  if (status == WEFT_OK) status = put_zeroes(team, team->zeroed);
  weft__cuda_leave(rank->device, before);
  return status;
}

void weft__cuda_team_destroy(struct cuda_team *team) {
  if (team->comm == NULL) return;
  if (team->words != 0) weft__cuda_driver()->cuMemFree(team->words);
  weft__gpu_rank_give(team->comm->gpu_rank, team->block);
  weft__comm_arena_take(team->comm, -team->bytes);
  memset(team, 0, sizeof *team);
}

/* ---- The chain of a rank's kernels ---------------------------------------------------------- */

/* Under capture the event is waited for and recorded by nodes of the graph, so that replays take
 * their place in the chain too. Calls that follow each other in one capture and stream are in order
 * as it is: the first waits. Each records by a node beside the stream, so that the next kernel does
 * not wait for it; of a graph's records the last comes last. */
struct capture {
  uint64_t id; /* 0: the stream is not being captured */
  cuda_graph graph;
  const cuda_graph_node *last;
  size_t count;
};

enum { LAST_MOST = 15 };

static weft_status capture_of(cuda_stream stream, struct capture *c) {
  int status = 0;
  memset(c, 0, sizeof *c);
  WEFT__TRY(weft__cuda_check(weft__cuda_driver()->cuStreamGetCaptureInfo(
                                 stream, &status, &c->id, &c->graph, &c->last, &c->count),
                             "cuStreamGetCaptureInfo"));
  if (status == 0) c->id = 0;
  return WEFT_OK;
}

weft_status weft__cuda_chain_begin(weft__gpu_rank *rank, cuda_stream *stream) {
  struct capture c;
  if (rank == NULL) return WEFT_OK;
  if (*stream == NULL) *stream = rank->stream;
  WEFT__TRY(capture_of(*stream, &c));
  pthread_mutex_lock(&rank->lock);
  weft_status status = WEFT_OK;
  if (c.id == 0 || rank->capture != c.id || rank->captured != *stream)
    status = weft__cuda_check(
        weft__cuda_driver()->cuStreamWaitEvent(*stream, rank->chain, c.id != 0 ? EXTERNAL : 0),
        "cuStreamWaitEvent");
  if (status != WEFT_OK) pthread_mutex_unlock(&rank->lock);
  return status;
}

static weft_status record_in_graph(weft__gpu_rank *rank, cuda_stream stream,
                                   const struct capture *c) {
  cuda_graph_node after[LAST_MOST + 1];
  size_t count = c->count;
  if (count > LAST_MOST)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "the captured stream depends on %zu nodes, expected at most %d", count,
                      LAST_MOST);
  memcpy(after, c->last, count * sizeof *after);
  if (rank->capture == c->id && rank->record != NULL) after[count++] = rank->record;
  WEFT__TRY(weft__cuda_check(weft__cuda_driver()->cuGraphAddEventRecordNode(
                                 &rank->record, c->graph, after, count, rank->chain),
                             "cuGraphAddEventRecordNode"));
  rank->capture = c->id;
  rank->captured = stream;
  return WEFT_OK;
}

weft_status weft__cuda_chain_end(weft__gpu_rank *rank, cuda_stream stream) {
  struct capture c;
  if (rank == NULL) return WEFT_OK;
  weft_status status = capture_of(stream, &c);
  if (status == WEFT_OK && c.id != 0) {
    status = record_in_graph(rank, stream, &c);
  } else if (status == WEFT_OK) {
    rank->capture = 0;
    status = weft__cuda_check(weft__cuda_driver()->cuEventRecordWithFlags(rank->chain, stream, 0),
                              "cuEventRecord");
  }
  pthread_mutex_unlock(&rank->lock);
  return status;
}
