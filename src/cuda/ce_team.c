/* A plan's part of a team of GPU ranks: what it keeps in the symmetric arena, and forward's share
 * of it. */
#include "core/error.h"
#include "cuda/ce.h"

enum { ALIGNMENT = 256 };

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void weft__sm90_team_layout(const weft_ce_config *config, int64_t ranks,
                            weft__sm90_layout *layout) {
  if (ranks < 2) return;
  const int64_t tiles = (config->max_tokens + FORWARD_TILE_TOKENS - 1) / FORWARD_TILE_TOKENS;
  layout->halves = tiles > 0 ? (uint32_t)(2 * tiles) : 2; /* a call without tokens has a word too */
  layout->signal_bytes = aligned(2 * (int64_t)layout->halves * ranks * 8);
  layout->statistics = layout->signal_bytes;
  layout->symmetric_bytes =
      layout->statistics + 2 * (int64_t)layout->halves * FORWARD_HALF_TOKENS * 16;
}

void weft__sm90_team_fill(const weft__sm90_ce *s, struct forward_args *args) {
  if (s->team.comm == NULL) return;
  args->team = (struct forward_team){.view = s->team.view,
                                     .arrived = 0,
                                     .statistics = (uint64_t)s->layout.statistics,
                                     .halves = s->layout.halves,
                                     .epoch = {s->team.epoch}};
}

weft_status weft__sm90_team_load(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  static const char *const name = "sm90_ce_forward_absent";
  return weft__cuda_kernel_load(&weft__device_images, name, name, s->device, 0, &s->absent);
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
