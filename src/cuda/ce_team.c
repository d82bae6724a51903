/* A plan's part of a team of GPU ranks: what it keeps in the symmetric arena, forward's share of
 * it, and the sum of dX behind backward. */
#include "core/env.h"
#include "core/error.h"
#include "cuda/ce.h"
#include "device/ce/dx_reduce.h"

enum {
  ALIGNMENT = 256,
  /* of cuda_team's words */
  FORWARD_EPOCH = 0,
  DX_EPOCH = 2,
  DX_COUNTER = 4,
};

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void weft__sm90_team_layout(const weft_ce_config *config, int64_t ranks,
                            weft__sm90_layout *layout) {
  if (ranks < 2) return;
  const int64_t tiles = (config->max_tokens + FORWARD_TILE_TOKENS - 1) / FORWARD_TILE_TOKENS;
  layout->halves = tiles > 0 ? (uint32_t)(2 * tiles) : 2; /* a call without tokens has a word too */
  layout->dx_words = 2 * (int64_t)layout->halves * ranks * 8;
  layout->signal_bytes = aligned(layout->dx_words + 2 * ranks * 8);
  layout->statistics = layout->signal_bytes;
  layout->symmetric_bytes =
      layout->statistics + 2 * (int64_t)layout->halves * FORWARD_HALF_TOKENS * 16;
  if (!(config->wants & WEFT_CE_DX) || config->dx_mode == WEFT_DX_NONE) return;
  const int64_t shard_rows = (config->max_tokens + ranks - 1) / ranks;
  layout->part_stride = (uint32_t)((config->hidden + 3) / 4 * 4);
  layout->shard_stride = (uint32_t)((config->hidden + 7) / 8 * 8);
  layout->dx_part = layout->symmetric_bytes;
  layout->dx_shard = layout->dx_part + aligned(config->max_tokens * layout->part_stride * 4);
  layout->symmetric_bytes = layout->dx_shard;
  if (config->dx_mode == WEFT_DX_ALL_REDUCE)
    layout->symmetric_bytes +=
        aligned(shard_rows * layout->shard_stride * weft__dtype_bytes(config->dx_dtype));
}

void weft__sm90_team_fill(const weft__sm90_ce *s, struct forward_args *args) {
  if (s->team.comm == NULL) return;
  args->team = (struct forward_team){.view = s->team.view,
                                     .arrived = 0,
                                     .statistics = (uint64_t)s->layout.statistics,
                                     .halves = s->layout.halves,
                                     .epoch = {s->team.epoch + FORWARD_EPOCH * 4}};
}

/* Loads a kernel and launches it once with arguments of no ranks, for which it returns at once: the
 * driver loads code at its first launch, which waits for the device, where a peer's kernel may
 * already wait for this one. */
static weft_status load(const char *name, int device, unsigned shared_bytes, void *no_ranks,
                        cuda_stream stream, struct cuda_kernel *out) {
  const struct cuda_launch launch = {
      .ctas = 1, .threads = 32, .cluster = 1, .shared_bytes = shared_bytes, .stream = stream};
  WEFT__TRY(weft__cuda_kernel_load(&weft__device_images, name, name, device, shared_bytes, out));
  WEFT__TRY(weft__cuda_launch(out, &launch, no_ranks));
  return weft__cuda_check(weft__cuda_driver()->cuStreamSynchronize(stream), name);
}

weft_status weft__sm90_team_load(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  const cuda_stream stream = (cuda_stream)weft__gpu_rank_stream(plan->comm->gpu_rank);
  s->dx_apart = weft__env_int("WEFT_DX_APART", 1, 0) != 0;
  struct forward_args forward = {0};
  struct dx_reduce_args reduce = {0};
  WEFT__TRY(load("sm90_ce_forward_absent", s->device, 0, &forward, stream, &s->absent));
  return load("smxx_ce_dx_reduce", s->device, DX_REDUCE_SHARED_BYTES, &reduce, stream,
              &s->dx_reduce);
}

void weft__sm90_team_part(const weft__sm90_ce *s, struct ce_backward_problem *problem) {
  if (s->layout.dx_part == 0) return;
  problem->dx = s->team.block + (cuda_address)s->layout.dx_part;
  problem->dx_stride = s->layout.part_stride;
  problem->dx_f32 = 1;
}

/* The exchange of a call whose dX is summed over the team. */
static struct dx_reduce_args exchange_of(const weft_ce_plan *plan, const weft_ce_args *args) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  const weft__sm90_layout *l = &s->layout;
  const weft_ce_config *c = &plan->config;
  const int64_t stride = weft__stride(args->dx_stride, c->hidden);
  const int64_t bytes = weft__dtype_bytes(c->dx_dtype);
  return (struct dx_reduce_args){
      .view = s->team.view,
      .ready = (uint64_t)l->dx_words,
      .summed = (uint64_t)l->dx_words + s->team.view.ranks * 8,
      .part = (uint64_t)l->dx_part,
      .shard = (uint64_t)l->dx_shard,
      .part_stride = l->part_stride,
      .shard_stride = l->shard_stride,
      .tokens = (uint32_t)args->tokens,
      .hidden = (uint32_t)c->hidden,
      .format = c->dx_dtype == WEFT_F32    ? DX_F32
                : c->dx_dtype == WEFT_BF16 ? DX_BF16
                                           : DX_F16,
      .scatter = c->dx_mode == WEFT_DX_REDUCE_SCATTER,
      .dx_aligned = (uintptr_t)args->dx % (4 * (uintptr_t)bytes) == 0 && stride % 4 == 0,
      .dx = {(uint64_t)(uintptr_t)args->dx},
      .dx_stride = stride,
      .epoch = {s->team.epoch + DX_EPOCH * 4},
      .counter = {s->team.epoch + DX_COUNTER * 4},
  };
}

bool weft__sm90_team_tiles(const weft_ce_plan *plan, const weft_ce_args *args,
                           struct ce_backward_launch *launch) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  if (s->layout.dx_part == 0 || s->dx_apart) return false;
  const struct backward_schedule *const schedule = &launch->args.schedule;
  const uint32_t cols = backward_wave_cols(schedule, backward_waves(schedule) - 1);
  const uint32_t dw_tiles = schedule->dw * cols * schedule->h_tiles;
  launch->args.exchange = exchange_of(plan, args);
  launch->args.team = backward_team_make(dx_shard_rows((uint32_t)args->tokens, s->team.view.ranks),
                                         s->team.view.ranks, launch->args.exchange.scatter,
                                         launch->args.end - dw_tiles, dw_tiles,
                                         launch->launch.ctas / BACKWARD_CLUSTER);
  return true;
}

weft_status weft__sm90_team_reduce(weft_ce_plan *plan, const weft_ce_args *args,
                                   cuda_stream stream) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  if (s->layout.dx_part == 0) return WEFT_OK;
  struct dx_reduce_args a = exchange_of(plan, args);
  /* A row at a time; no more than have a few each. */
  const int64_t rows = dx_shard_rows(a.tokens, a.view.ranks) / 2 + 1;
  const struct cuda_launch launch = {.ctas =
                                         (unsigned)(rows < s->layout.sms ? rows : s->layout.sms),
                                     .threads = DX_REDUCE_THREADS,
                                     .cluster = 1,
                                     .shared_bytes = DX_REDUCE_SHARED_BYTES,
                                     .stream = stream};
  return weft__cuda_launch(&s->dx_reduce, &launch, &a);
}

weft_status weft__sm90_forward_absent(weft_ce_plan *plan, struct forward_args *args,
                                      cuda_stream stream) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  const int64_t halves = ((int64_t)args->tokens + FORWARD_HALF_TOKENS - 1) / FORWARD_HALF_TOKENS;
  const struct cuda_launch launch = {.ctas = (unsigned)(halves < 1               ? 1
                                                        : halves < s->layout.sms ? halves
                                                                                 : s->layout.sms),
                                     .threads = FORWARD_ABSENT_THREADS,
                                     .cluster = 1,
                                     .stream = stream};
  return weft__cuda_launch(&s->absent, &launch, args);
}
