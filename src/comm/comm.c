/* The public functions on teams, and what the operations use of them: arguments are checked here,
 * the transport does the rest. Knows base and core, and no transport. */
#include "comm/comm.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "comm/group.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/structs.h"

static weft_status check(const weft_comm *comm, const char *name, const char *call) {
  if (comm == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: %s is NULL, expected a team", call, name);
  return WEFT_OK;
}

weft_status weft_comm_info_get(const weft_comm *comm, weft_comm_info *info) {
  WEFT__TRY(check(comm, "comm", "comm_info_get"));
  return weft__struct_write(info, &comm->info, sizeof comm->info,
                            WEFT__FIRST(weft_comm_info, transport), "weft_comm_info");
}

/* Of calls that a group keeps: the arguments are the team. */
static weft_status barrier_later(void *comm) {
  return weft_comm_barrier(*(weft_comm **)comm);
}
static weft_status reset_later(void *comm) {
  return weft_comm_reset(*(weft_comm **)comm);
}

weft_status weft_comm_barrier(weft_comm *comm) {
  WEFT__TRY(check(comm, "comm", "comm_barrier"));
  if (weft__group_open(comm)) return weft__group_keep(comm, barrier_later, &comm, sizeof comm);
  comm->call = "comm_barrier";
  return comm->transport->barrier(comm);
}

weft_status weft_comm_stream_get(const weft_comm *comm, void **stream) {
  WEFT__TRY(check(comm, "comm", "comm_stream_get"));
  if (stream == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "comm_stream_get: stream is NULL, expected room for one");
  *stream = weft__gpu_rank_stream(comm->gpu_rank);
  return WEFT_OK;
}

weft_status weft_comm_allgather(weft_comm *comm, const void *send, void *recv, size_t bytes) {
  WEFT__TRY(check(comm, "comm", "comm_allgather"));
  comm->call = "comm_allgather";
  if (bytes > 0 && (send == NULL || recv == NULL))
    return weft__fail(WEFT_ERR_ARGUMENT, "comm_allgather: %s is NULL, expected %zu bytes",
                      send == NULL ? "send" : "recv", bytes);
  if (bytes > PTRDIFF_MAX / (size_t)comm->info.ranks)
    return weft__fail(WEFT_ERR_ARGUMENT, "comm_allgather: bytes is %zu, more than memory holds",
                      bytes);
  return comm->transport->allgather(comm, send, recv, bytes);
}

weft_status weft_comm_async_error(weft_comm *comm, weft_async_error *error) {
  WEFT__TRY(check(comm, "comm", "comm_async_error"));
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  for (weft__watch *watch = comm->watches; watch != NULL; watch = watch->next)
    if (watch->ask != NULL) watch->ask(watch->user);
  comm->transport->async_error(comm, &found);
  return weft__struct_write(error, &found, sizeof found, WEFT__FIRST(weft_async_error, message),
                            "weft_async_error");
}

weft_status weft_comm_abort(weft_comm *comm) {
  WEFT__TRY(check(comm, "comm", "comm_abort"));
  return comm->transport->abort(comm);
}

weft_status weft_comm_reset(weft_comm *comm) {
  WEFT__TRY(check(comm, "comm", "comm_reset"));
  if (weft__group_open(comm)) return weft__group_keep(comm, reset_later, &comm, sizeof comm);
  /* Kernels end soon after a wait of theirs gave up: then no kernel of any rank touches the team's
   * memory, once all ranks have met; and none may start before every rank has put its own in order.
   */
  WEFT__TRY(weft__gpu_rank_wait(comm->gpu_rank));
  /* What kernels found is told now, to be cleared with the rest. */
  for (weft__watch *watch = comm->watches; watch != NULL; watch = watch->next)
    if (watch->ask != NULL) watch->ask(watch->user);
  WEFT__TRY(comm->transport->reset(comm));
  if (comm->gpu_rank == NULL) return WEFT_OK;
  weft_status status = WEFT_OK;
  for (weft__watch *watch = comm->watches; watch != NULL && status == WEFT_OK; watch = watch->next)
    if (watch->reset != NULL) status = watch->reset(watch->user);
  return weft__comm_agree(comm, status, NULL, 0, NULL, 0, "comm_reset");
}

weft_status weft_comm_destroy(weft_comm *comm) {
  if (comm == NULL) return WEFT_OK;
  if (comm->plans > 0)
    return weft__fail(WEFT_ERR_BUSY, "comm_destroy: %lld plans of this team are alive, expected 0",
                      (long long)comm->plans);
  comm->transport->destroy(comm);
  return WEFT_OK;
}

/* ---- Sub-teams ------------------------------------------------------------------------------ */

static weft_status check_ranks(const weft_comm *parent, int64_t ranks, const char *call) {
  if (ranks < 1 || ranks > parent->info.ranks)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: ranks is %lld, expected 1 to the parent's %lld", call,
                      (long long)ranks, (long long)parent->info.ranks);
  return WEFT_OK;
}

/* A split that a group keeps. */
typedef struct split_call {
  weft_comm *parent, **team;
  int64_t ranks;
  int64_t members[];
} split_call;

static weft_status split_later(void *arguments) {
  const split_call *const c = (const split_call *)arguments;
  return c->parent->transport->split(c->parent, c->members, c->ranks, c->team);
}

/* The list is checked. */
static weft_status split(weft_comm *parent, const int64_t *members, int64_t ranks,
                         weft_comm **team) {
  void *memory = NULL;
  if (!weft__group_open(parent)) return parent->transport->split(parent, members, ranks, team);
  const size_t bytes = sizeof(split_call) + (size_t)ranks * sizeof *members;
  WEFT__TRY(weft__alloc(&memory, bytes, "split of a group"));
  split_call *const c = (split_call *)memory;
  c->parent = parent;
  c->team = team;
  c->ranks = ranks;
  memcpy(c->members, members, (size_t)ranks * sizeof *members);
  const weft_status status = weft__group_keep(parent, split_later, c, bytes);
  weft__free(memory);
  return status;
}

weft_status weft_comm_split_list(weft_comm *parent, const int64_t *members, int64_t ranks,
                                 weft_comm **team) {
  static const char *const call = "comm_split_list";
  if (team != NULL) *team = NULL;
  WEFT__TRY(check(parent, "parent", call));
  WEFT__TRY(check_ranks(parent, ranks, call));
  if (members == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: members is NULL, expected %lld parent ranks", call,
                      (long long)ranks);
  bool inside = false;
  for (int64_t i = 0; i < ranks; i++) {
    if (members[i] < 0 || members[i] >= parent->info.ranks)
      return weft__fail(WEFT_ERR_ARGUMENT, "%s: members[%lld] is %lld, expected 0 to %lld", call,
                        (long long)i, (long long)members[i], (long long)parent->info.ranks - 1);
    for (int64_t j = 0; j < i; j++)
      if (members[j] == members[i])
        return weft__fail(WEFT_ERR_ARGUMENT,
                          "%s: members[%lld] and members[%lld] are both %lld, expected no rank "
                          "twice",
                          call, (long long)j, (long long)i, (long long)members[i]);
    inside = inside || members[i] == parent->info.rank;
  }
  if (!inside)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "%s: members do not hold the calling rank %lld: ranks outside do not call",
                      call, (long long)parent->info.rank);
  return split(parent, members, ranks, team);
}

weft_status weft_comm_split_stride(weft_comm *parent, int64_t start, int64_t stride, int64_t ranks,
                                   weft_comm **team) {
  static const char *const call = "comm_split_stride";
  if (team != NULL) *team = NULL;
  WEFT__TRY(check(parent, "parent", call));
  WEFT__TRY(check_ranks(parent, ranks, call));
  const int64_t size = parent->info.ranks;
  if (start < 0 || start >= size)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: start is %lld, expected 0 to %lld", call,
                      (long long)start, (long long)size - 1);
  if (stride < 1)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: stride is %lld, expected at least 1", call,
                      (long long)stride);
  if (ranks > 1 && stride > (size - 1 - start) / (ranks - 1))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "%s: start %lld, stride %lld, ranks %lld reach past the parent's last rank "
                      "%lld",
                      call, (long long)start, (long long)stride, (long long)ranks,
                      (long long)size - 1);
  const int64_t offset = parent->info.rank - start;
  if (offset < 0 || offset % stride != 0 || offset / stride >= ranks)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "%s: start %lld, stride %lld, ranks %lld do not hold the calling rank %lld: "
                      "ranks outside do not call",
                      call, (long long)start, (long long)stride, (long long)ranks,
                      (long long)parent->info.rank);
  /* the list is written into the scratch, which has more room than one int64 for each rank */
  int64_t *const members = (int64_t *)parent->scratch;
  for (int64_t i = 0; i < ranks; i++)
    members[i] = start + i * stride;
  return split(parent, members, ranks, team);
}

/* ---- For the operations --------------------------------------------------------------------- */

weft_status weft__comm_allgather(weft_comm *comm, const void *send, void *recv, size_t bytes) {
  return comm->transport->allgather(comm, send, recv, bytes);
}

void weft__comm_report(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                       const char *message) {
  comm->transport->report(comm, status, peer, count, message);
}

weft_status weft__comm_device(const weft_comm *comm, int32_t wanted, int32_t *device) {
  const int32_t team = comm != NULL ? comm->info.device : WEFT_DEVICE_AUTO;
  *device = team != WEFT_DEVICE_AUTO ? team : wanted;
  if (wanted == WEFT_DEVICE_AUTO || wanted == *device) return WEFT_OK;
  return weft__fail(WEFT_ERR_ARGUMENT, "config.device is %d, expected 0 or that of the team, %d",
                    wanted, team);
}

/* What a rank says in one round of an agreement. A rank that refuses sends its message in place of
 * data. Zeroed before it is filled. */
typedef struct message {
  int32_t status;
  int32_t size; /* of the data or text in this round */
  int64_t bytes;
  char what[40];
  unsigned char data[200];
} message;

static_assert(sizeof(message) == WEFT__MESSAGE, "base.h tells how much room a message takes");

static int64_t read_signed(const unsigned char *at, size_t bytes) {
  int64_t wide = 0;
  int32_t narrow = 0;
  if (bytes == sizeof wide) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&narrow, at, sizeof narrow);
  return narrow;
}

/* All ranks hold the same messages and come to the same answer, but for a rank's own refusal.
 * `offset` is where this round's data starts. */
static weft_status judge(const weft_comm *comm, const message *all, size_t offset,
                         const weft__field *fields, int count) {
  const int64_t ranks = comm->info.ranks;
  for (int64_t i = 0; i < ranks; i++)
    if (all[i].status != WEFT_OK)
      return weft__fail(WEFT_ERR_PEER, "%s: rank %lld refused the call (%s): %.*s", all[i].what,
                        (long long)i, weft_status_string((weft_status)all[i].status),
                        (int)all[i].size, (const char *)all[i].data);
  for (int64_t i = 1; i < ranks; i++)
    if (strcmp(all[0].what, all[i].what) != 0)
      return weft__fail(WEFT_ERR_MISMATCH, "rank 0 calls %s, rank %lld calls %s", all[0].what,
                        (long long)i, all[i].what);
  for (int64_t i = 1; i < ranks; i++)
    if (all[0].bytes != all[i].bytes)
      return weft__fail(WEFT_ERR_MISMATCH,
                        "%s: rank 0 compares %lld bytes, rank %lld compares %lld: different "
                        "versions of weft",
                        all[0].what, (long long)all[0].bytes, (long long)i,
                        (long long)all[i].bytes);
  const size_t size = (size_t)all[0].size;
  for (int64_t i = 1; i < ranks; i++) {
    if (memcmp(all[0].data, all[i].data, size) == 0) continue;
    for (int f = 0; f < count; f++) {
      const weft__field *const field = &fields[f];
      if (field->offset < offset || field->offset + field->bytes > offset + size) continue;
      const unsigned char *const a = all[0].data + (field->offset - offset);
      const unsigned char *const b = all[i].data + (field->offset - offset);
      if (memcmp(a, b, field->bytes) == 0) continue;
      return weft__fail(WEFT_ERR_MISMATCH, "%s: %s is %lld on rank 0 and %lld on rank %lld",
                        all[0].what, field->name, (long long)read_signed(a, field->bytes),
                        (long long)read_signed(b, field->bytes), (long long)i);
    }
    size_t at = 0;
    while (all[0].data[at] == all[i].data[at])
      at++;
    return weft__fail(WEFT_ERR_MISMATCH, "%s: byte %zu is %d on rank 0 and %d on rank %lld",
                      all[0].what, offset + at, all[0].data[at], all[i].data[at], (long long)i);
  }
  return WEFT_OK;
}

weft_status weft__comm_agree(weft_comm *comm, weft_status own, const void *data, size_t bytes,
                             const weft__field *fields, int count, const char *what) {
  if (comm == NULL) return own;
  comm->call = what;
  message *const all = (message *)comm->scratch;
  message *const mine = all + comm->info.ranks;
  char own_text[512] = "";
  if (own != WEFT_OK) snprintf(own_text, sizeof own_text, "%s", weft_last_error());
  size_t offset = 0;
  do {
    memset(mine, 0, sizeof *mine);
    mine->status = (int32_t)own;
    mine->bytes = (int64_t)bytes;
    snprintf(mine->what, sizeof mine->what, "%s", what);
    if (own != WEFT_OK) {
      snprintf((char *)mine->data, sizeof mine->data, "%s", own_text);
      mine->size = (int32_t)strlen((const char *)mine->data);
    } else if (bytes > 0) {
      const size_t left = bytes - offset;
      mine->size = (int32_t)(left < sizeof mine->data ? left : sizeof mine->data);
      memcpy(mine->data, (const unsigned char *)data + offset, (size_t)mine->size);
    }
    const weft_status met = weft__comm_allgather(comm, mine, all, sizeof *mine);
    if (own != WEFT_OK) return weft__fail(own, "%s", own_text);
    WEFT__TRY(met);
    WEFT__TRY(judge(comm, all, offset, fields, count));
    offset += (size_t)mine->size;
  } while (offset < bytes);
  return WEFT_OK;
}

/* ---- Not here ------------------------------------------------------------------------------- */

weft_status weft_unique_id_create(weft_unique_id *id) {
  (void)id;
  return weft__fail(WEFT_ERR_UNSUPPORTED,
                    "unique_id_create: this build of weft has no NVSHMEM transport");
}

weft_status weft_comm_create_nvshmem(const weft_world_config *config, const weft_unique_id *id,
                                     int64_t rank, weft_comm **comm) {
  (void)config;
  (void)id;
  (void)rank;
  if (comm != NULL) *comm = NULL;
  return weft__fail(WEFT_ERR_UNSUPPORTED,
                    "comm_create_nvshmem: this build of weft has no NVSHMEM transport");
}

void weft__comm_watch(weft_comm *comm, weft__watch *watch) {
  watch->next = comm->watches;
  comm->watches = watch;
}

void weft__comm_unwatch(weft_comm *comm, weft__watch *watch) {
  for (weft__watch **at = &comm->watches; *at != NULL; at = &(*at)->next)
    if (*at == watch) {
      *at = watch->next;
      return;
    }
}
