/* Launches the forward kernel: its workspace, tensor maps and arguments. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "cuda/ce.h"

enum { ALIGNMENT = 256 };

/* Parts of forward's scratch, from its start. */
typedef struct parts {
  uint64_t control, target_logits, partials, end;
} parts;

static parts parts_of(const struct forward_schedule *s) {
  const uint64_t halves = 2 * (uint64_t)s->group;
  parts p;
  p.control = 0;
  p.target_logits = (sizeof(struct forward_control) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  p.partials = p.target_logits + halves * FORWARD_HALF_TOKENS * 4;
  p.end = p.partials + halves * s->segments * FORWARD_CLUSTER * FORWARD_PARTIAL_BYTES;
  return p;
}

static struct forward_schedule schedule_of(const weft__sm90_layout *layout, int64_t tokens,
                                           int64_t rows) {
  struct forward_schedule s = forward_schedule_make(
      (uint32_t)tokens, (uint32_t)rows, layout->forward_segments, layout->forward_group);
  if (s.token_tiles < s.group) s.group = s.token_tiles;
  return s;
}

void weft__sm90_forward_layout(const weft_ce_config *c, weft__sm90_layout *layout) {
  layout->forward_segments = FORWARD_SEGMENTS_MAX;
  layout->forward_group = FORWARD_GROUP_TILES;
  layout->forward_pace = FORWARD_PACE_STEPS;
  if (c->max_tokens == 0) return;
  const struct forward_schedule s =
      schedule_of(layout, c->max_tokens, c->vocab_local < c->vocab ? c->vocab_local : c->vocab);
  layout->forward_bytes = (int64_t)parts_of(&s).end;
}

/* Whether tensor copies can read the rows, of 2-byte elements. */
static bool is_aligned(const void *address, int64_t stride) {
  return (uintptr_t)address % 16 == 0 && stride * 2 % 16 == 0;
}

weft_status weft__sm90_operand(const weft_ce_plan *plan, const char *name, const void *address,
                               int64_t rows, int64_t stride, uint32_t box_rows,
                               struct cuda_tensor *out) {
  const int64_t hidden = plan->config.hidden, row = weft__stride(stride, hidden);
  if (!is_aligned(address, row))
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "args.%s is %p with rows %" PRId64
                      " elements apart, expected 16-byte aligned rows on a GPU",
                      name, address, row);
  *out = (struct cuda_tensor){
      .address = (cuda_address)(uintptr_t)address,
      .element = plan->config.dtype == WEFT_F16 ? CUDA_F16 : CUDA_BF16,
      .swizzle = CUDA_SWIZZLE_128,
      .rank = 2,
      .dims = {(uint64_t)hidden, (uint64_t)rows},
      .strides = {(uint64_t)row * 2},
      .box = {FORWARD_DEPTH_STEP, box_rows},
  };
  return WEFT_OK;
}

static struct cuda_launch launch_of(uint32_t clusters) {
  return (struct cuda_launch){.ctas = clusters * FORWARD_CLUSTER,
                              .threads = FORWARD_THREADS,
                              .cluster = FORWARD_CLUSTER,
                              .shared_bytes = FORWARD_SHARED_BYTES};
}

weft_status weft__sm90_forward_load(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  const char *name =
      plan->config.dtype == WEFT_F16 ? "sm90_ce_forward_f16" : "sm90_ce_forward_bf16";
  const struct cuda_launch launch = launch_of(1024); /* more than fit anywhere */
  int clusters = 0;
  WEFT__TRY(weft__cuda_kernel_load(&weft__device_images, name, name, s->device,
                                   FORWARD_SHARED_BYTES, &s->forward));
  WEFT__TRY(weft__cuda_max_clusters(&s->forward, &launch, &clusters));
  if (clusters < 1)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "%s: no cluster of it fits on this device", name);
  s->clusters = (uint32_t)clusters;
  if (s->clusters > s->layout.sms / 2) s->clusters = (uint32_t)(s->layout.sms / 2);
  return WEFT_OK;
}

static void fill(const weft_ce_plan *plan, const weft_ce_args *args, const parts *at,
                 struct forward_args *a) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  const weft_ce_config *c = &plan->config;
  a->depth_steps = (uint32_t)((c->hidden - 1) / FORWARD_DEPTH_STEP + 1);
  if (a->depth_steps < FORWARD_DEPTH_STEPS_LEAST) a->depth_steps = FORWARD_DEPTH_STEPS_LEAST;
  /* One tile of tokens shares no row of W with another. */
  if (a->schedule.token_tiles > 1)
    a->pace_steps =
        s->layout.forward_pace < a->depth_steps ? s->layout.forward_pace : a->depth_steps;
  a->hidden = (uint32_t)c->hidden;
  a->x_rows.a = (uint64_t)(uintptr_t)args->x;
  a->w_rows.a = (uint64_t)(uintptr_t)args->w;
  a->x_stride_bytes = (uint64_t)weft__stride(args->x_stride, c->hidden) * 2;
  a->w_stride_bytes = (uint64_t)weft__stride(args->w_stride, c->hidden) * 2;
  a->tokens = (uint32_t)args->tokens;
  a->rows = (uint32_t)plan->rows;
  a->target_is_i32 = c->target_dtype == WEFT_I32;
  a->vocab_start = c->vocab_start;
  a->vocab = c->vocab;
  a->ignore_index = c->ignore_index;
  a->target.a = (uint64_t)(uintptr_t)args->target;
  a->temperature.a = (uint64_t)(uintptr_t)args->temperature_ptr;
  a->inverse_temperature = 1.0f / args->temperature;
  a->softcap = c->softcap;
  a->wants_entropy = (c->wants & WEFT_CE_ENTROPY) != 0;
  a->nll.a = (uint64_t)(uintptr_t)args->nll;
  a->lse.a = (uint64_t)(uintptr_t)args->lse;
  a->entropy.a = (uint64_t)(uintptr_t)args->entropy;
  a->stats.a = (uint64_t)(uintptr_t)args->stats;
  a->control.a = s->scratch + at->control;
  a->target_logits.a = s->scratch + at->target_logits;
  a->partials.a = s->scratch + at->partials;
  a->errors.a = s->errors;
  a->host_errors.a = (uint64_t)(uintptr_t)s->host_errors;
  a->timeout_ns = s->timeout_ns;
  weft__sm90_team_fill(s, a);
}

weft_status weft__sm90_forward_prepare(const weft_ce_plan *plan, const weft_ce_args *args,
                                       struct cuda_tensor tensors[2], struct forward_args *out) {
  memset(out, 0, sizeof *out);
  out->schedule =
      schedule_of(&((const weft__sm90_ce *)plan->state)->layout, args->tokens, plan->rows);
  const parts at = parts_of(&out->schedule);
  out->by_hand = args->tokens == 0 || plan->rows == 0 ||
                 !is_aligned(args->x, weft__stride(args->x_stride, plan->config.hidden)) ||
                 !is_aligned(args->w, weft__stride(args->w_stride, plan->config.hidden));
  if (!out->by_hand) {
    WEFT__TRY(weft__sm90_operand(plan, "x", args->x, args->tokens, args->x_stride,
                                 FORWARD_TILE_TOKENS / FORWARD_CLUSTER, &tensors[0]));
    WEFT__TRY(weft__sm90_operand(plan, "w", args->w, plan->rows, args->w_stride, FORWARD_TILE_COLS,
                                 &tensors[1]));
  }
  fill(plan, args, &at, out);
  return WEFT_OK;
}

weft_status weft__sm90_forward(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream) {
  const struct cuda_driver *driver = weft__cuda_driver();
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  struct forward_args a;
  struct cuda_tensor tensors[2];
  if (args->tokens == 0 && s->team.comm == NULL) return WEFT_OK;
  WEFT__TRY(weft__sm90_forward_prepare(plan, args, tensors, &a));
  if (args->tokens == 0 || plan->rows == 0) return weft__sm90_forward_absent(plan, &a, stream);
  if (!a.by_hand) {
    WEFT__TRY(weft__cuda_tensor_map_encode(&tensors[0], &a.x));
    WEFT__TRY(weft__cuda_tensor_map_encode(&tensors[1], &a.w));
  }
  WEFT__TRY(weft__cuda_check(
      driver->cuMemsetD8Async(a.control.a, 0, sizeof(struct forward_control), stream),
      "cuMemsetD8Async"));
  const uint32_t units = forward_schedule_count(&a.schedule);
  struct cuda_launch launch = launch_of(units < s->clusters ? units : s->clusters);
  launch.stream = stream;
  /* Clusters wait for each other: to keep pace, and for what the group before has left in the
   * workspace. So the grid must not be split by another kernel. */
  launch.cooperative = a.schedule.token_tiles > 1 || s->team.comm != NULL;
  return weft__cuda_launch(&s->forward, &launch, &a);
}
