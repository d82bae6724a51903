/* The making of MPI worlds and sub-teams. Every rank takes part to the end, with its own refusal if
 * need be. Knows rounds of messages, not how they travel. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "comm/mpi_comm.h"
#include "core/error.h"
#include "core/memory.h"

/* A view without a communicator yet: all that needs memory. */
static weft_status make(const weft__view *view, const weft__mpi_engine *engine, weft__arena *arena,
                        mpi_comm **out) {
  weft_comm *comm = NULL;
  weft_status status = WEFT_OK;
  const size_t n = (size_t)view->ranks;
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  WEFT__TRY(weft__comm_new(view, sizeof(mpi_comm), arena, &comm));
  mpi_comm *const self = (mpi_comm *)comm;
  self->engine = engine;
  self->error = none;
  pthread_mutex_init(&self->lock, NULL);
  WEFT__TRY_CLEANUP(weft__alloc((void **)&self->world_of, n * 8, "team members"));
  WEFT__TRY_CLEANUP(weft__alloc((void **)&self->self, n * 8, "team members"));
  WEFT__TRY_CLEANUP(
      weft__alloc((void **)&self->in, (n + 1) * sizeof(round_message), "team messages"));
  WEFT__TRY_CLEANUP(weft__alloc((void **)&self->sends, n * sizeof(weft__mpi_request), "requests"));
  WEFT__TRY_CLEANUP(
      weft__alloc((void **)&self->receives, n * sizeof(weft__mpi_request), "requests"));
  memcpy(self->world_of, view->members, n * 8);
  for (int64_t i = 0; i < view->ranks; i++)
    self->self[i] = i;
  *out = self;
  return WEFT_OK;
cleanup:
  weft__mpi_destroy(comm);
  return status;
}

/* What every rank says first. */
typedef struct hello {
  int64_t version, hosts, arena_bytes;
} hello;

static const weft__field hello_fields[] = {{"the version of weft", offsetof(hello, version), 8},
                                           {"hosts", offsetof(hello, hosts), 8},
                                           {"arena_bytes", offsetof(hello, arena_bytes), 8}};

/* The config as this rank has it; ranks 0 stands for the communicator's size. */
static weft_status read_config(const weft_world_config *config, int64_t ranks, const char *call,
                               weft_world_config *out) {
  weft_world_config given = WEFT_WORLD_CONFIG_INIT;
  if (config == NULL || config->size < WEFT__FIRST(weft_world_config, ranks))
    return weft__world_read(config, WEFT_RANKS_MAX, call, out);
  memcpy(&given, config, config->size < sizeof given ? config->size : sizeof given);
  given.size = config->size;
  if (given.ranks == 0) given.ranks = ranks;
  if (config->size <= sizeof given) config = &given; /* a longer one is read as it is */
  WEFT__TRY(weft__world_read(config, WEFT_RANKS_MAX, call, out));
  if (out->ranks != ranks)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "%s: config.ranks is %lld, expected 0 or the communicator's %lld", call,
                      (long long)out->ranks, (long long)ranks);
  if (out->device != WEFT_DEVICE_CPU)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "%s: the MPI transport is for CPUs, device is %d", call,
                      out->device);
  return WEFT_OK;
}

weft_status weft_comm_create_mpi(const weft_world_config *config, const void *mpi_comm_of_caller,
                                 weft_comm **comm) {
  static const char *const call = "comm_create_mpi";
  const weft__mpi_engine *engine = NULL;
  weft__mpi_world world = {0};
  weft_world_config mine = WEFT_WORLD_CONFIG_INIT;
  mpi_comm *self = NULL;
  int64_t *members = NULL;
  char why[256] = "";
  if (comm != NULL) *comm = NULL;
  WEFT__TRY(weft__mpi_open(&engine));
  /* a rank whose config is wrong must still come, to say so: the wait here is not its own */
  weft_world_config fallback = WEFT_WORLD_CONFIG_INIT;
  const weft_world_config plain = WEFT_WORLD_CONFIG_INIT;
  WEFT__TRY(weft__world_read(&plain, WEFT_RANKS_MAX, call, &fallback));
  if (engine->open(mpi_comm_of_caller, fallback.timeout_ms, &world, why, sizeof why) != 0)
    return weft__fail(WEFT_ERR_SYSTEM, "%s: %s", call, why);

  weft_status status = comm != NULL ? read_config(config, world.ranks, call, &mine)
                                    : weft__fail(WEFT_ERR_ARGUMENT, "%s: comm is NULL", call);
  char own_text[512] = "";
  if (status != WEFT_OK) snprintf(own_text, sizeof own_text, "%s", weft_last_error());
  const bool good = status == WEFT_OK;
  WEFT__TRY(weft__alloc((void **)&members, (size_t)world.ranks * 8, "MPI world"));
  for (int64_t i = 0; i < world.ranks; i++)
    members[i] = i;
  const weft__view view = {
      .transport = &weft__mpi_transport,
      .members = members,
      .ranks = world.ranks,
      .rank = world.rank,
      .world_ranks = world.ranks,
      .world_hosts = good ? mine.hosts : 1,
      .timeout_ms = good ? mine.timeout_ms : fallback.timeout_ms,
      .arena_bytes = good ? mine.arena_bytes : 0,
      .cpu_ranks = world.local_ranks,
      .device = WEFT_DEVICE_CPU,
      .gpu = -1,
  };
  const weft_status made = make(&view, engine, NULL, &self);
  weft__free(members);
  WEFT__TRY(made); /* without memory for a view, a rank can't even refuse: the others time out */
  self->handle = world.handle;
  self->world_hosts = view.world_hosts;
  const hello word = {weft_version(), mine.hosts, mine.arena_bytes};
  if (!good) status = weft__fail(status, "%s", own_text);
  status = weft__comm_agree(&self->base, status, &word, sizeof word, hello_fields,
                            sizeof hello_fields / sizeof *hello_fields, call);
  if (status != WEFT_OK)
    weft__mpi_destroy(&self->base);
  else
    *comm = &self->base;
  return status;
}

/* ---- Sub-teams ------------------------------------------------------------------------------ */

static uint64_t hash_of(const int64_t *members, int64_t ranks) {
  uint64_t hash = (uint64_t)ranks;
  for (int64_t i = 0; i < ranks; i++) {
    hash = (hash ^ (uint64_t)members[i]) * UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 33;
  }
  return hash;
}

/* One round among the members; all see the same and come to the same answer, but for a rank's own
 * refusal. Messages between two ranks keep their order, so that the k-th making of a list meets the
 * k-th. */
static weft_status split_round(mpi_comm *self, const int64_t *members, int64_t ranks, int64_t own,
                               int kind, weft_status status, uint64_t hash, const char *call) {
  char text[512] = "";
  if (status != WEFT_OK) snprintf(text, sizeof text, "%s", weft_last_error());
  const int tag = SPLIT_TAGS + (int)((hash + (uint64_t)self->epoch * 7919) % SPLIT_TAGS);
  self->in[self->base.info.ranks] =
      (round_message){.kind = kind, .status = (int32_t)status, .bytes = (int64_t)hash};
  WEFT__TRY(weft__mpi_meet(self, members, ranks, own, tag, false, call));
  if (status != WEFT_OK) return weft__fail(status, "%s", text);
  for (int64_t i = 0; i < ranks; i++) {
    const round_message *const in = &self->in[i];
    if (in->kind != kind || in->bytes != (int64_t)hash)
      return weft__fail(WEFT_ERR_MISMATCH, "%s: rank %lld of the parent makes another team", call,
                        (long long)members[i]);
    if (in->status != WEFT_OK)
      return weft__fail(WEFT_ERR_PEER, "%s: rank %lld of the parent failed (%s)", call,
                        (long long)members[i], weft_status_string((weft_status)in->status));
  }
  return WEFT_OK;
}

weft_status weft__mpi_split(weft_comm *parent, const int64_t *members, int64_t ranks,
                            weft_comm **out) {
  static const char *const call = "comm_split";
  mpi_comm *const self = (mpi_comm *)parent;
  mpi_comm *team = NULL;
  int64_t *list = NULL, *world_of = NULL;
  char why[256] = "";
  int64_t own = 0;
  weft__mpi_listen(self);
  if (atomic_load(&self->stopped) != WEFT_OK) return weft__mpi_stopped(self, call);
  while (members[own] != parent->info.rank)
    own++;
  weft_status status =
      out != NULL
          ? WEFT_OK
          : weft__fail(WEFT_ERR_ARGUMENT, "%s: team is NULL, expected room for a handle", call);
  /* `members` may lie in the parent's scratch */
  if (status == WEFT_OK) status = weft__alloc((void **)&list, (size_t)ranks * 8, "sub-team");
  if (status == WEFT_OK) status = weft__alloc((void **)&world_of, (size_t)ranks * 8, "sub-team");
  if (status == WEFT_OK) {
    for (int64_t i = 0; i < ranks; i++) {
      list[i] = members[i];
      world_of[i] = self->world_of[members[i]];
    }
    const weft__view view = {
        .transport = &weft__mpi_transport,
        .members = world_of,
        .ranks = ranks,
        .rank = own,
        .world_ranks = parent->info.world_ranks,
        .world_hosts = self->world_hosts,
        .timeout_ms = parent->info.timeout_ms,
        .arena_bytes = parent->arena_bytes,
        .cpu_ranks = parent->cpu_ranks,
        .device = parent->info.device,
        .gpu = -1,
    };
    status = make(&view, self->engine, parent->arena, &team);
  }
  const uint64_t hash = hash_of(members, ranks);
  /* twice: after the second round every member has seen every other inside, and MPI's own call,
   * which has no time limit, can begin */
  status = split_round(self, members, ranks, own, SPLIT_HELLO, status, hash, call);
  if (status == WEFT_OK)
    status = split_round(self, members, ranks, own, SPLIT_READY, WEFT_OK, hash, call);
  if (status == WEFT_OK &&
      self->engine->open_group(self->handle, list, ranks, (int)(hash % SPLIT_TAGS), &team->handle,
                               why, sizeof why) != 0)
    status = weft__fail(WEFT_ERR_SYSTEM, "%s: %s", call, why);
  weft__free(list);
  weft__free(world_of);
  if (status != WEFT_OK && team != NULL) weft__mpi_destroy(&team->base);
  if (status == WEFT_OK) {
    team->world_hosts = self->world_hosts;
    *out = &team->base;
  }
  return status;
}
