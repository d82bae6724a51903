/* Makes the ranks of an in-process world on their GPUs: peer access, each rank's share of the SMs,
 * its arena and its place in an order. It knows the driver, and nothing of teams or operations.
 *
 * Kernels of a team wait for each other, so all of them must be able to run at once: a rank's
 * kernels take at most its share of the SMs, and its team kernels run one after the other. */
#include "cuda/rank.h"

#include <stdbool.h>
#include <string.h>

#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"

enum {
  NON_BLOCKING = 1,             /* flag of cuStreamCreate */
  DISABLE_TIMING = 2,           /* flag of cuEventCreate */
  HOST_PORTABLE_MAPPED = 1 | 2, /* flags of cuMemHostAlloc */
  PEER_ACCESS_ALREADY = 704,    /* CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED */
  CONNECTIONS_DEFAULT = 8,      /* hardware queues of a context, where the environment is silent */
  CLUSTER = 2,                  /* SMs are shared out in pairs */
};

static int32_t gpu_of(const weft_world_config *world, int64_t rank, int count) {
  return world->gpus != NULL ? world->gpus[rank] : (int32_t)(rank % count);
}

/* More streams than hardware queues share queues, where a kernel that waits holds up the one that
 * it waits for. */
static weft_status check_share(const weft_world_config *world, int32_t gpu, int count,
                               int64_t *sms) {
  struct cuda_device_info info;
  int64_t here = 0;
  for (int64_t r = 0; r < world->ranks; r++)
    here += gpu_of(world, r, count) == gpu;
  const int64_t queues = weft__env_int("CUDA_DEVICE_MAX_CONNECTIONS", 4096, CONNECTIONS_DEFAULT);
  if (here > queues)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "%lld ranks on GPU %d, whose context has %lld hardware queues: set "
                      "CUDA_DEVICE_MAX_CONNECTIONS to %lld or more (at most 32) before the "
                      "process's first use of CUDA",
                      (long long)here, gpu, (long long)queues, (long long)here);
  WEFT__TRY(weft__cuda_device_query(gpu, &info));
  *sms = info.sm_count / here / CLUSTER * CLUSTER;
  if (*sms < CLUSTER)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "%lld ranks on GPU %d with %d SMs: expected at most %d, so that all of them "
                      "run at once",
                      (long long)here, gpu, info.sm_count, info.sm_count / CLUSTER);
  return WEFT_OK;
}

/* Lets kernels of GPU `from` address memory of GPU `to`. */
static weft_status reach(int32_t from, int32_t to) {
  const struct cuda_driver *driver = weft__cuda_driver();
  cuda_context before = NULL, target = NULL, ignored = NULL;
  int can = 0, from_device = 0, to_device = 0;
  WEFT__TRY(weft__cuda_check(driver->cuDeviceGet(&from_device, from), "cuDeviceGet"));
  WEFT__TRY(weft__cuda_check(driver->cuDeviceGet(&to_device, to), "cuDeviceGet"));
  WEFT__TRY(weft__cuda_check(driver->cuDeviceCanAccessPeer(&can, from_device, to_device),
                             "cuDeviceCanAccessPeer"));
  if (!can)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "GPU %d cannot address the memory of GPU %d: ranks of one process on both "
                      "need peer access",
                      from, to);
  weft_status status = weft__cuda_enter(to, &before);
  if (status == WEFT_OK) status = weft__cuda_check(driver->cuCtxGetCurrent(&target), "context");
  weft__cuda_leave(to, before);
  if (status != WEFT_OK) return status;
  status = weft__cuda_enter(from, &ignored);
  if (status == WEFT_OK) {
    const int result = driver->cuCtxEnablePeerAccess(target, 0);
    if (result != PEER_ACCESS_ALREADY) status = weft__cuda_check(result, "cuCtxEnablePeerAccess");
  }
  weft__cuda_leave(from, ignored);
  return status;
}

static weft_status reach_all(const weft_world_config *world, int count) {
  for (int64_t a = 0; a < world->ranks; a++)
    for (int64_t b = 0; b < world->ranks; b++) {
      const int32_t from = gpu_of(world, a, count), to = gpu_of(world, b, count);
      bool seen = from == to;
      for (int64_t p = 0; p < a && !seen; p++) /* once a pair of GPUs */
        seen = gpu_of(world, p, count) == from;
      for (int64_t q = 0; q < b && !seen; q++)
        seen = gpu_of(world, q, count) == to;
      if (!seen) WEFT__TRY(reach(from, to));
    }
  return WEFT_OK;
}

static weft_status make_here(weft__gpu_rank *rank, int64_t arena_bytes) {
  const struct cuda_driver *driver = weft__cuda_driver();
  WEFT__TRY(
      weft__cuda_check(driver->cuStreamCreate(&rank->stream, NON_BLOCKING), "cuStreamCreate"));
  WEFT__TRY(weft__cuda_check(driver->cuEventCreate(&rank->chain, DISABLE_TIMING), "cuEventCreate"));
  if (arena_bytes > 0 && driver->cuMemAlloc(&rank->arena, (size_t)arena_bytes) != 0) {
    rank->arena = 0;
    return weft__fail(WEFT_ERR_MEMORY, "GPU %d has no %lld bytes for a rank's symmetric arena",
                      rank->device, (long long)arena_bytes);
  }
  rank->arena_bytes = arena_bytes;
  return WEFT_OK;
}

static weft_status make(int32_t gpu, int64_t sms, int64_t arena_bytes, weft__gpu_rank **out) {
  weft__gpu_rank *rank = NULL;
  void *memory = NULL;
  cuda_context before = NULL;
  *out = NULL;
  WEFT__TRY(weft__alloc(&memory, sizeof *rank, "rank of a GPU"));
  rank = (weft__gpu_rank *)memory;
  weft_status status = weft__alloc(&memory, GPU_RANK_BLOCKS_MAX * sizeof *rank->blocks, "arena");
  if (status != WEFT_OK) {
    weft__free(rank);
    return status;
  }
  rank->blocks = (struct arena_block *)memory;
  atomic_init(&rank->references, 1);
  rank->device = gpu;
  rank->sms = sms;
  pthread_mutex_init(&rank->lock, NULL);
  status = weft__cuda_enter(gpu, &before);
  if (status == WEFT_OK) status = make_here(rank, arena_bytes);
  weft__cuda_leave(gpu, before);
  if (status != WEFT_OK) {
    weft__gpu_rank_drop(rank);
    return status;
  }
  *out = rank;
  return WEFT_OK;
}

weft_status weft__gpu_world_create(const weft_world_config *world, weft__gpu_rank **ranks) {
  weft_status status = WEFT_OK;
  const int count = weft__cuda_device_count();
  memset(ranks, 0, (size_t)world->ranks * sizeof(weft__gpu_rank *));
  for (int64_t r = 0; r < world->ranks; r++)
    WEFT__TRY(weft__gpu_check(gpu_of(world, r, count > 0 ? count : 1)));
  WEFT__TRY(reach_all(world, count));
  for (int64_t r = 0; r < world->ranks; r++) {
    int64_t sms = 0;
    const int32_t gpu = gpu_of(world, r, count);
    WEFT__TRY_CLEANUP(check_share(world, gpu, count, &sms));
    WEFT__TRY_CLEANUP(make(gpu, sms, world->arena_bytes, &ranks[r]));
  }
  return WEFT_OK;
cleanup:
  for (int64_t r = 0; r < world->ranks; r++) {
    weft__gpu_rank_drop(ranks[r]);
    ranks[r] = NULL;
  }
  return status;
}

weft__gpu_rank *weft__gpu_rank_share(weft__gpu_rank *rank) {
  if (rank != NULL) atomic_fetch_add(&rank->references, 1);
  return rank;
}

void weft__gpu_rank_drop(weft__gpu_rank *rank) {
  const struct cuda_driver *driver = weft__cuda_driver();
  cuda_context before = NULL;
  if (rank == NULL || atomic_fetch_sub(&rank->references, 1) != 1) return;
  if (weft__cuda_enter(rank->device, &before) == WEFT_OK) {
    if (rank->stream != NULL) driver->cuStreamDestroy(rank->stream);
    if (rank->chain != NULL) driver->cuEventDestroy(rank->chain);
    if (rank->arena != 0) driver->cuMemFree(rank->arena);
  }
  weft__cuda_leave(rank->device, before);
  pthread_mutex_destroy(&rank->lock);
  weft__free(rank->blocks);
  weft__free(rank);
}

int32_t weft__gpu_rank_device(const weft__gpu_rank *rank) {
  return rank != NULL ? rank->device : -1;
}

int64_t weft__gpu_rank_sms(const weft__gpu_rank *rank) {
  return rank != NULL ? rank->sms : 0;
}

void *weft__gpu_rank_stream(const weft__gpu_rank *rank) {
  return rank != NULL ? rank->stream : NULL;
}

weft_status weft__gpu_rank_wait(weft__gpu_rank *rank) {
  const struct cuda_driver *driver = weft__cuda_driver();
  cuda_context before = NULL;
  if (rank == NULL) return WEFT_OK;
  weft_status status = weft__cuda_enter(rank->device, &before);
  if (status == WEFT_OK)
    status = weft__cuda_check(driver->cuEventSynchronize(rank->chain), "cuEventSynchronize");
  weft__cuda_leave(rank->device, before);
  return status;
}

/* ---- Arena ---------------------------------------------------------------------------------- */

/* First fit; the lock is held. */
static cuda_address place(weft__gpu_rank *rank, int64_t bytes) {
  int64_t at = 0, i = 0;
  for (; i < rank->blocks_count && rank->blocks[i].offset - at < bytes; i++)
    at = rank->blocks[i].offset + rank->blocks[i].bytes;
  if (rank->arena_bytes - at < bytes || rank->blocks_count == GPU_RANK_BLOCKS_MAX) return 0;
  memmove(&rank->blocks[i + 1], &rank->blocks[i],
          (size_t)(rank->blocks_count - i) * sizeof *rank->blocks);
  rank->blocks[i] = (struct arena_block){at, bytes};
  rank->blocks_count++;
  return rank->arena + (cuda_address)at;
}

weft_status weft__gpu_rank_take(weft__gpu_rank *rank, int64_t bytes, cuda_address *block) {
  const struct cuda_driver *driver = weft__cuda_driver();
  cuda_context before = NULL;
  bytes = (bytes + GPU_RANK_ALIGNMENT - 1) / GPU_RANK_ALIGNMENT * GPU_RANK_ALIGNMENT;
  *block = 0;
  if (rank->arena != 0) {
    pthread_mutex_lock(&rank->lock);
    *block = place(rank, bytes);
    pthread_mutex_unlock(&rank->lock);
  } else {
    WEFT__TRY(weft__cuda_enter(rank->device, &before));
    if (driver->cuMemAlloc(block, (size_t)bytes) != 0) *block = 0;
    weft__cuda_leave(rank->device, before);
  }
  if (*block == 0)
    return weft__fail(WEFT_ERR_MEMORY, "no %lld bytes of symmetric memory on GPU %d%s",
                      (long long)bytes, rank->device,
                      rank->arena != 0 ? ": give the world a larger arena_bytes" : "");
  return WEFT_OK;
}

void weft__gpu_rank_give(weft__gpu_rank *rank, cuda_address block) {
  cuda_context before = NULL;
  if (block == 0) return;
  if (rank->arena == 0) {
    if (weft__cuda_enter(rank->device, &before) == WEFT_OK) weft__cuda_driver()->cuMemFree(block);
    weft__cuda_leave(rank->device, before);
    return;
  }
  pthread_mutex_lock(&rank->lock);
  for (int64_t i = 0; i < rank->blocks_count; i++) {
    if (rank->arena + (cuda_address)rank->blocks[i].offset != block) continue;
    rank->blocks_count--;
    memmove(&rank->blocks[i], &rank->blocks[i + 1],
            (size_t)(rank->blocks_count - i) * sizeof *rank->blocks);
    break;
  }
  pthread_mutex_unlock(&rank->lock);
}

/* ---- Words of the host's -------------------------------------------------------------------- */

weft_status weft__gpu_words_alloc(int32_t gpu, size_t bytes, uint32_t **words) {
  const struct cuda_driver *driver = weft__cuda_driver();
  cuda_context before = NULL;
  void *memory = NULL;
  *words = NULL;
  weft_status status = weft__cuda_enter(gpu, &before);
  if (status == WEFT_OK && driver->cuMemHostAlloc(&memory, bytes, HOST_PORTABLE_MAPPED) != 0)
    status = weft__fail(WEFT_ERR_MEMORY, "no %zu bytes of pinned host memory", bytes);
  weft__cuda_leave(gpu, before);
  if (status != WEFT_OK) return status;
  memset(memory, 0, bytes);
  *words = (uint32_t *)memory;
  return WEFT_OK;
}

void weft__gpu_words_free(int32_t gpu, uint32_t *words) {
  cuda_context before = NULL;
  if (words == NULL) return;
  if (weft__cuda_enter(gpu, &before) == WEFT_OK) weft__cuda_driver()->cuMemFreeHost(words);
  weft__cuda_leave(gpu, before);
}
