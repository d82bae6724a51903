/* Making and ending the common part of a rank's view. */
#include "comm/base.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "comm/topology.h"
#include "core/device.h"
#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/structs.h"

enum { DEFAULT_TIMEOUT_MS = 600000 };

int32_t weft__world_gpu(const weft_world_config *world) {
  if (world->device != WEFT_DEVICE_CUDA) return -1;
  return world->gpus != NULL ? world->gpus[0] : 0;
}

weft_status weft__world_read(const weft_world_config *config, int64_t max_ranks, const char *call,
                             weft_world_config *out) {
  const weft_world_config defaults = WEFT_WORLD_CONFIG_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, config, WEFT__FIRST(weft_world_config, gpus),
                              "weft_world_config"));
  if (out->ranks < 1 || out->ranks > max_ranks)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: ranks is %lld, expected 1 to %lld", call,
                      (long long)out->ranks, (long long)max_ranks);
  if (out->hosts < 1 || out->ranks % out->hosts != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: hosts is %lld, expected a divisor of ranks = %lld",
                      call, (long long)out->hosts, (long long)out->ranks);
  if (out->arena_bytes < 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: arena_bytes is %lld, expected at least 0", call,
                      (long long)out->arena_bytes);
  if (out->timeout_ms < 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: timeout_ms is %lld, expected at least 0", call,
                      (long long)out->timeout_ms);
  if (out->device < WEFT_DEVICE_AUTO || out->device > WEFT_DEVICE_CUDA)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: device is %d, expected 0 (auto), 1 (CPU) or 2 (CUDA)",
                      call, (int)out->device);
  if (out->reserved != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: reserved is %d, expected 0", call,
                      (int)out->reserved);
  if (out->device == WEFT_DEVICE_CUDA) {
    const weft_status status = weft__gpu_check(weft__world_gpu(out));
    if (status != WEFT_OK) {
      char why[256];
      snprintf(why, sizeof why, "%s", weft_last_error());
      return weft__fail(status, "%s: device is CUDA: %s", call, why);
    }
  } else {
    out->device = WEFT_DEVICE_CPU;
  }
  if (out->timeout_ms == 0)
    out->timeout_ms = weft__env_int("WEFT_TIMEOUT_MS", INT64_MAX, DEFAULT_TIMEOUT_MS);
  return WEFT_OK;
}

struct weft__arena {
  atomic_llong references;
  atomic_llong used;
};

weft_status weft__arena_create(weft__arena **out) {
  void *memory = NULL;
  WEFT__TRY(weft__alloc(&memory, sizeof(weft__arena), "symmetric arena"));
  *out = (weft__arena *)memory;
  atomic_init(&(*out)->references, 1);
  atomic_init(&(*out)->used, 0);
  return WEFT_OK;
}

weft__arena *weft__arena_share(weft__arena *arena) {
  atomic_fetch_add(&arena->references, 1);
  return arena;
}

void weft__arena_drop(weft__arena *arena) {
  if (arena != NULL && atomic_fetch_sub(&arena->references, 1) == 1) weft__free(arena);
}

weft_status weft__comm_arena_take(weft_comm *comm, int64_t bytes) {
  long long used = atomic_load(&comm->arena->used);
  do {
    /* the difference cannot overflow: 0 <= used <= limit */
    const int64_t limit = comm->arena_bytes > 0 ? comm->arena_bytes : INT64_MAX;
    if (bytes > limit - used)
      return weft__fail(WEFT_ERR_MEMORY,
                        "symmetric arena: %lld bytes asked for, %lld of %lld are in use: give the "
                        "world a larger arena_bytes",
                        (long long)bytes, used, (long long)limit);
  } while (!atomic_compare_exchange_weak(&comm->arena->used, &used, used + bytes));
  comm->arena_used += bytes;
  return WEFT_OK;
}

weft_status weft__comm_new(const weft__view *view, size_t bytes, weft__arena *arena,
                           weft_comm **out) {
  weft_status status = WEFT_OK;
  weft_comm *comm = NULL;
  void *memory = NULL;
  *out = NULL;
  WEFT__TRY(weft__alloc(&memory, bytes, "team view"));
  comm = (weft_comm *)memory;
  WEFT__TRY_CLEANUP(weft__alloc(&memory, (size_t)view->ranks * sizeof(int64_t), "team hosts"));
  comm->hosts_of = (int64_t *)memory;
  WEFT__TRY_CLEANUP(
      weft__alloc(&comm->scratch, (size_t)(view->ranks + 1) * WEFT__MESSAGE, "team messages"));
  if (arena != NULL)
    comm->arena = weft__arena_share(arena);
  else
    WEFT__TRY_CLEANUP(weft__arena_create(&comm->arena));
  const weft__place place = weft__topology(view->members, view->ranks, view->world_ranks,
                                           view->world_hosts, view->rank, comm->hosts_of);
  comm->transport = view->transport;
  comm->call = "comm";
  comm->arena_bytes = view->arena_bytes;
  comm->cpu_ranks = view->cpu_ranks;
  comm->gpu_rank = weft__gpu_rank_share(view->gpu_rank);
  comm->info = (weft_comm_info){
      .size = sizeof(weft_comm_info),
      .rank = view->rank,
      .ranks = view->ranks,
      .world_rank = view->members[view->rank],
      .world_ranks = view->world_ranks,
      .host = place.host,
      .hosts = place.hosts,
      .local_rank = place.local_rank,
      .local_ranks = place.local_ranks,
      .ranks_per_host = place.ranks_per_host,
      .timeout_ms = view->timeout_ms,
      .device = view->device,
      .gpu = view->gpu,
      .transport = view->transport->name,
  };
  *out = comm;
  return WEFT_OK;
cleanup:
  weft__comm_free(comm);
  return status;
}

void weft__comm_free(weft_comm *comm) {
  if (comm == NULL) return;
  weft__gpu_rank_drop(comm->gpu_rank);
  weft__arena_drop(comm->arena);
  weft__free(comm->scratch);
  weft__free(comm->hosts_of);
  weft__free(comm);
}

bool weft__is_sticky(weft_status status) {
  return status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_ABORTED || status == WEFT_ERR_PEER ||
         status == WEFT_ERR_SYSTEM;
}

void weft__error_keep(weft_async_error *error, weft_status status, int64_t rank, int64_t peer,
                      int64_t count, const char *message) {
  if (error->status == (int32_t)status && error->rank == rank) {
    error->count += count;
    return;
  }
  if (error->status != WEFT_OK &&
      (weft__is_sticky((weft_status)error->status) || !weft__is_sticky(status)))
    return;
  error->status = (int32_t)status;
  error->rank = rank;
  error->peer = peer;
  error->count = count;
  snprintf(error->message, sizeof error->message, "%s", message);
}
