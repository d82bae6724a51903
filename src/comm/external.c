/* A world on the caller's own all-gather and barrier, one process a rank. Nothing here can end a
 * wait inside the caller's functions: their time limits are the caller's, and an error that they
 * return stops this rank until a reset. Knows base and core. */
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/structs.h"

typedef struct external_comm {
  weft_comm base; /* first */
  weft_exchange exchange;
  weft_status stopped; /* sticky: every call fails by this until a reset */
  weft_async_error error;
} external_comm;

static weft_status stopped(const external_comm *self, const char *call) {
  return weft__fail(self->stopped,
                    "%s: the team is stopped (%s) until weft_comm_reset(); the cause: %s", call,
                    weft_status_string(self->stopped), self->error.message);
}

/* The caller's function failed. */
static weft_status stop(external_comm *self, const char *call, int code) {
  char message[128];
  snprintf(message, sizeof message, "%s: the caller's exchange function returned %d, expected 0",
           call, code);
  self->stopped = WEFT_ERR_SYSTEM;
  weft__error_keep(&self->error, WEFT_ERR_SYSTEM, self->base.info.rank, -1, 1, message);
  return weft__fail(WEFT_ERR_SYSTEM, "%s", message);
}

static weft_status barrier(weft_comm *comm) {
  external_comm *const self = (external_comm *)comm;
  if (self->stopped != WEFT_OK) return stopped(self, comm->call);
  const int code = self->exchange.barrier(self->exchange.user);
  return code == 0 ? WEFT_OK : stop(self, comm->call, code);
}

static weft_status allgather(weft_comm *comm, const void *send, void *recv, size_t bytes) {
  external_comm *const self = (external_comm *)comm;
  if (bytes == 0) return barrier(comm);
  if (self->stopped != WEFT_OK) return stopped(self, comm->call);
  const int code = self->exchange.allgather(self->exchange.user, send, recv, bytes);
  return code == 0 ? WEFT_OK : stop(self, comm->call, code);
}

static weft_status split(weft_comm *parent, const int64_t *members, int64_t ranks,
                         weft_comm **team) {
  (void)members;
  (void)team;
  return weft__fail(WEFT_ERR_UNSUPPORTED,
                    "comm_split: a team of %lld of %lld ranks cannot be made from an exchange that "
                    "spans the whole world; make a world of its own from an exchange among its "
                    "members",
                    (long long)ranks, (long long)parent->info.ranks);
}

static weft_status abort_team(weft_comm *comm) {
  (void)comm;
  return weft__fail(WEFT_ERR_UNSUPPORTED,
                    "comm_abort: an external world waits inside the caller's exchange functions, "
                    "which weft cannot end; let them return an error instead");
}

static weft_status reset(weft_comm *comm) {
  external_comm *const self = (external_comm *)comm;
  const int code = self->exchange.barrier(self->exchange.user);
  if (code != 0)
    return weft__fail(WEFT_ERR_SYSTEM,
                      "comm_reset: the caller's exchange barrier returned %d, expected 0", code);
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  self->stopped = WEFT_OK;
  self->error = none;
  return WEFT_OK;
}

static void destroy(weft_comm *comm) {
  weft__comm_free(comm);
}

static void report(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                   const char *message) {
  weft__error_keep(&((external_comm *)comm)->error, status, comm->info.rank, peer, count, message);
}

static void async_error(weft_comm *comm, weft_async_error *error) {
  *error = ((external_comm *)comm)->error;
}

static const weft__transport external = {
    .name = "external",
    .loads_peers = false,
    .allgather = allgather,
    .barrier = barrier,
    .split = split,
    .abort = abort_team,
    .reset = reset,
    .destroy = destroy,
    .report = report,
    .async_error = async_error,
};

/* ---- Creation ------------------------------------------------------------------------------- */

/* The first words of a rank. Their buffer has room for the largest world, since a rank whose config
 * is wrong does not know how many will answer. */
typedef struct hello {
  uint64_t magic;
  int64_t status;
  int64_t version, ranks, hosts, arena_bytes; /* must be the same everywhere */
  int64_t rank;
} hello;

static const uint64_t hello_magic = UINT64_C(0x7765667468656c6f);

/* Every rank sees the same words and comes to the same answer. */
static weft_status judge(const hello *all, const char *call) {
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {{"the version of weft", offsetof(hello, version)},
                {"ranks", offsetof(hello, ranks)},
                {"hosts", offsetof(hello, hosts)},
                {"arena_bytes", offsetof(hello, arena_bytes)}};
  int64_t count = 0;
  while (count < WEFT_RANKS_MAX && all[count].magic == hello_magic)
    count++;
  if (count == 0)
    return weft__fail(WEFT_ERR_SYSTEM, "%s: the caller's allgather wrote nothing of rank 0", call);
  for (int64_t i = 0; i < count; i++)
    if (all[i].status != WEFT_OK)
      return weft__fail(WEFT_ERR_PEER, "%s: rank %lld refused the call (%s)", call, (long long)i,
                        weft_status_string((weft_status)all[i].status));
  for (int64_t i = 1; i < count; i++) {
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
      int64_t a = 0, b = 0;
      memcpy(&a, (const char *)&all[0] + fields[f].offset, sizeof a);
      memcpy(&b, (const char *)&all[i] + fields[f].offset, sizeof b);
      if (a != b)
        return weft__fail(WEFT_ERR_MISMATCH, "%s: %s is %lld on rank 0 and %lld on rank %lld", call,
                          fields[f].name, (long long)a, (long long)b, (long long)i);
    }
  }
  if (count != all[0].ranks)
    return weft__fail(WEFT_ERR_MISMATCH,
                      "%s: the config says %lld ranks, the caller's allgather spans %lld", call,
                      (long long)all[0].ranks, (long long)count);
  for (int64_t i = 0; i < count; i++)
    if (all[i].rank != i)
      return weft__fail(WEFT_ERR_MISMATCH,
                        "%s: the caller's allgather puts exchange.rank %lld in place %lld, "
                        "expected rank order",
                        call, (long long)all[i].rank, (long long)i);
  return WEFT_OK;
}

/* This rank's half: all that can fail without the others. */
static weft_status prepare(const weft_world_config *config, const weft_exchange *exchange,
                           const char *call, hello *mine, external_comm **out) {
  weft_status status = WEFT_OK;
  weft_world_config world;
  void *members = NULL;
  weft_comm *comm = NULL;
  WEFT__TRY(weft__world_read(config, WEFT_RANKS_MAX, call, &world));
  if (world.device == WEFT_DEVICE_CUDA && world.ranks > 1)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "%s: device is CUDA and ranks %lld: this version has several ranks on GPUs "
                      "in one process only (weft_comm_create_inproc)",
                      call, (long long)world.ranks);
  if (exchange->rank < 0 || exchange->rank >= world.ranks)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: exchange.rank is %lld, expected 0 to %lld", call,
                      (long long)exchange->rank, (long long)world.ranks - 1);
  WEFT__TRY(weft__alloc(&members, (size_t)world.ranks * sizeof(int64_t), "external world"));
  for (int64_t i = 0; i < world.ranks; i++)
    ((int64_t *)members)[i] = i;
  const weft__view view = {
      .transport = &external,
      .members = (const int64_t *)members,
      .ranks = world.ranks,
      .rank = exchange->rank,
      .world_ranks = world.ranks,
      .world_hosts = world.hosts,
      .timeout_ms = world.timeout_ms,
      .arena_bytes = world.arena_bytes,
      .cpu_ranks = world.ranks / world.hosts,
      .device = world.device,
      .gpu = weft__world_gpu(&world),
  };
  WEFT__TRY_CLEANUP(weft__comm_new(&view, sizeof(external_comm), NULL, &comm));
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  *out = (external_comm *)comm;
  (*out)->exchange = *exchange;
  (*out)->error = none;
  mine->ranks = world.ranks;
  mine->hosts = world.hosts;
  mine->arena_bytes = world.arena_bytes;
  mine->rank = exchange->rank;
cleanup:
  weft__free(members);
  return status;
}

weft_status weft_comm_create_external(const weft_world_config *config,
                                      const weft_exchange *exchange, weft_comm **comm) {
  static const char *const call = "comm_create_external";
  weft_exchange own_exchange = WEFT_EXCHANGE_INIT;
  external_comm *self = NULL;
  void *all = NULL;
  char own_text[512] = "";
  hello mine = {.magic = hello_magic, .version = weft_version()};
  if (comm != NULL) *comm = NULL;
  WEFT__TRY(weft__struct_read(&own_exchange, sizeof own_exchange, exchange,
                              WEFT__FIRST(weft_exchange, barrier), "weft_exchange"));
  if (own_exchange.allgather == NULL || own_exchange.barrier == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: exchange.%s is NULL, expected a function", call,
                      own_exchange.allgather == NULL ? "allgather" : "barrier");
  /* without this buffer a rank cannot even refuse: the others learn of it by their exchange */
  WEFT__TRY(weft__alloc(&all, WEFT_RANKS_MAX * sizeof(hello), "external world's first words"));

  weft_status status = WEFT_OK;
  if (comm == NULL)
    status = weft__fail(WEFT_ERR_ARGUMENT, "%s: comm is NULL, expected room for a handle", call);
  if (status == WEFT_OK) status = prepare(config, &own_exchange, call, &mine, &self);
  if (status != WEFT_OK) snprintf(own_text, sizeof own_text, "%s", weft_last_error());
  mine.status = status;
  const int code = own_exchange.allgather(own_exchange.user, &mine, all, sizeof mine);
  if (status != WEFT_OK)
    status = weft__fail(status, "%s", own_text);
  else if (code != 0)
    status = weft__fail(WEFT_ERR_SYSTEM,
                        "%s: the caller's exchange function returned %d, expected 0", call, code);
  else
    status = judge((const hello *)all, call);
  weft__free(all);
  if (status == WEFT_OK)
    *comm = &self->base;
  else if (self != NULL)
    weft__comm_free(&self->base);
  return status;
}
