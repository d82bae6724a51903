/* The memory of in-process teams: the shared half, its ranks' views, and the making of a world. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "comm/inproc.h"
#include "core/env.h"
#include "core/error.h"
#include "core/memory.h"

enum { POLLS = 2000 }; /* some ten microseconds, about what blocking and waking costs */

static void *carve(unsigned char *base, size_t *offset, size_t bytes) {
  void *part = base != NULL ? base + *offset : NULL;
  *offset = weft__align(*offset + bytes);
  return part;
}

/* Lays the team's arrays out in one block; with base NULL it only tells the size. */
static size_t lay_out(inproc_team *team, unsigned char *base, int64_t ranks) {
  const size_t n = (size_t)ranks;
  size_t offset = weft__align(sizeof *team);
  int64_t *const members = carve(base, &offset, n * sizeof(int64_t));
  unsigned char *const here = carve(base, &offset, n);
  unsigned char *const gone = carve(base, &offset, n);
  unsigned char *const in_reset = carve(base, &offset, n);
  arrival *const arrivals = carve(base, &offset, 2 * n * sizeof(arrival));
  unsigned char *const slots = carve(base, &offset, 2 * n * INPROC_SLOT);
  int64_t *const own_members = carve(base, &offset, n * sizeof(int64_t));
  unsigned char *const own_joined = carve(base, &offset, n);
  gathering *const spares = carve(base, &offset, n * sizeof(gathering));
  int64_t *const spare_members = carve(base, &offset, n * n * sizeof(int64_t));
  unsigned char *const spare_joined = carve(base, &offset, n * n);
  if (base == NULL) return offset;
  team->members = members;
  team->here = here;
  team->gone = gone;
  team->in_reset = in_reset;
  team->arrivals = arrivals;
  team->slots = slots;
  team->own.members = own_members;
  team->own.joined = own_joined;
  team->own.team = team;
  team->spares = spares;
  for (size_t i = 0; i < n; i++) {
    spares[i].members = spare_members + i * n;
    spares[i].joined = spare_joined + i * n;
  }
  return offset;
}

weft_status weft__inproc_team_new(const inproc_team *like, int64_t ranks, inproc_team **out) {
  *out = NULL;
  void *memory = NULL;
  WEFT__TRY(weft__alloc(&memory, lay_out(NULL, NULL, ranks), "in-process team"));
  inproc_team *team = (inproc_team *)memory;
  lay_out(team, (unsigned char *)memory, ranks);
  team->ranks = ranks;
  team->references = 1;
  team->world_ranks = like->world_ranks;
  team->world_hosts = like->world_hosts;
  team->timeout_ms = like->timeout_ms;
  team->arena_bytes = like->arena_bytes;
  team->device = like->device;
  team->gpu = like->gpu;
  team->spins = weft__cores() >= like->world_ranks ? POLLS : 0;
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  team->error = none;
  atomic_init(&team->meeting, 0);
  atomic_init(&team->readers, 0);
  pthread_condattr_t monotonic;
  int failed = pthread_condattr_init(&monotonic);
  if (failed == 0) {
    failed = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (failed == 0) failed = pthread_cond_init(&team->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
  }
  if (failed == 0) {
    failed = pthread_mutex_init(&team->lock, NULL);
    if (failed != 0) pthread_cond_destroy(&team->wake);
  }
  if (failed != 0) {
    weft__free(team);
    return weft__fail(WEFT_ERR_SYSTEM, "in-process team: mutex or condition variable: %s",
                      strerror(failed));
  }
  if (team->device == WEFT_DEVICE_CUDA && team->world_ranks > 1) {
    const weft_status status = weft__gpu_words_alloc(
        team->gpu, (size_t)ranks * INPROC_WORD_STRIDE * sizeof *team->words, &team->words);
    if (status != WEFT_OK) {
      weft__inproc_team_drop(team);
      return status;
    }
  }
  *out = team;
  return WEFT_OK;
}

void weft__inproc_team_drop(inproc_team *team) {
  if (team == NULL) return;
  pthread_mutex_lock(&team->lock);
  const int64_t left = --team->references;
  pthread_mutex_unlock(&team->lock);
  if (left > 0) return;
  weft__inproc_forget(team);
  weft__gpu_words_free(team->gpu, team->words);
  pthread_mutex_destroy(&team->lock);
  pthread_cond_destroy(&team->wake);
  weft__free(team);
}

void weft__inproc_view_join(weft_comm *view, inproc_team *team) {
  ((inproc_comm *)view)->team = team;
  if (team->words != NULL) view->gpu_word = team->words + view->info.rank * INPROC_WORD_STRIDE;
}

weft_status weft__inproc_view_new(inproc_team *team, int64_t rank, const weft_comm *like,
                                  weft__gpu_rank *gpu_rank, weft_comm **out) {
  const weft__view view = {
      .transport = &weft__inproc,
      .members = team->members,
      .ranks = team->ranks,
      .rank = rank,
      .world_ranks = team->world_ranks,
      .world_hosts = team->world_hosts,
      .timeout_ms = team->timeout_ms,
      .arena_bytes = team->arena_bytes,
      .cpu_ranks = team->world_ranks,
      .device = team->device,
      .gpu = gpu_rank != NULL ? weft__gpu_rank_device(gpu_rank) : team->gpu,
      .gpu_rank = gpu_rank,
  };
  WEFT__TRY(weft__comm_new(&view, sizeof(inproc_comm), like != NULL ? like->arena : NULL, out));
  weft__inproc_view_join(*out, team);
  return WEFT_OK;
}

weft_status weft_comm_create_inproc(const weft_world_config *config, weft_comm **comms) {
  static const char *const call = "comm_create_inproc";
  weft_status status = WEFT_OK;
  weft_world_config world;
  inproc_team *team = NULL;
  weft__gpu_rank **gpu_ranks = NULL;
  if (comms == NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "%s: comms is NULL, expected room for ranks handles",
                      call);
  WEFT__TRY(weft__world_read(config, WEFT_INPROC_RANKS_MAX, call, &world));
  for (int64_t i = 0; i < world.ranks; i++)
    comms[i] = NULL;
  const inproc_team like = {.world_ranks = world.ranks,
                            .world_hosts = world.hosts,
                            .timeout_ms = world.timeout_ms,
                            .arena_bytes = world.arena_bytes,
                            .device = world.device,
                            .gpu = weft__world_gpu(&world)};
  void *memory = NULL;
  WEFT__TRY(weft__alloc(&memory, (size_t)world.ranks * sizeof *gpu_ranks, "ranks of GPUs"));
  gpu_ranks = (weft__gpu_rank **)memory; /* zeroed: none */
  if (world.device == WEFT_DEVICE_CUDA && world.ranks > 1)
    WEFT__TRY_CLEANUP(weft__gpu_world_create(&world, gpu_ranks));
  WEFT__TRY_CLEANUP(weft__inproc_team_new(&like, world.ranks, &team));
  for (int64_t i = 0; i < world.ranks; i++)
    team->members[i] = i;
  for (int64_t i = 0; i < world.ranks; i++)
    WEFT__TRY_CLEANUP(weft__inproc_view_new(team, i, NULL, gpu_ranks[i], &comms[i]));
  team->references = world.ranks;
cleanup:
  for (int64_t i = 0; i < world.ranks; i++) {
    weft__gpu_rank_drop(gpu_ranks[i]); /* the views share them */
    if (status == WEFT_OK) continue;
    weft__comm_free(comms[i]);
    comms[i] = NULL;
  }
  if (status != WEFT_OK) weft__inproc_team_drop(team);
  weft__free(gpu_ranks);
  return status;
}
