/* Backward and step of the GPU backend: a plan's share of the workspace, and from a call's
 * arguments to the backward kernel's. */
#include <inttypes.h>

#include "core/error.h"
#include "cuda/ce.h"

enum { DEFAULT_DZ_BYTES = 224 << 20, TEAM_DZ_BYTES = 544 << 20 };

/* Below this H a fourth product costs less than what replaces it, an exponential written, read,
 * and written as a gradient: 8 bytes at 4 TB/s, against 2 H multiplications and additions at 700
 * TFLOP/s. */
enum { STEP_KEEPS_FROM = 512 };

static int wants_gradient(const weft_ce_config *c) {
  return (c->wants & (WEFT_CE_DX | WEFT_CE_DW)) != 0;
}

static int64_t real_rows(const weft_ce_config *c) {
  const int64_t left = c->vocab - c->vocab_start;
  return c->vocab_local < left ? c->vocab_local : left;
}

static weft_status load(const weft__sm90_ce *s, const char *name, struct ce_backward_kernel *out) {
  WEFT__TRY(weft__ce_backward_load(&weft__device_images, name, s->device, out));
  if (out->clusters_max > s->layout.sms / 2) out->clusters_max = (uint32_t)(s->layout.sms / 2);
  return WEFT_OK;
}

weft_status weft__sm90_backward_load(weft_ce_plan *plan) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  const int f16 = plan->config.dtype == WEFT_F16;
  WEFT__TRY(load(s, weft__ce_backward_name(f16), &s->backward));
  return s->layout.step_bytes > 0 ? load(s, weft__ce_step_name(f16), &s->step) : WEFT_OK;
}

/* Whether a step is to keep exponentials, which f16 holds too coarsely for the slope of a soft cap;
 * and which have to wait for the statistics of the team where there is one. */
static int may_keep(const weft_ce_config *c, const weft__sm90_layout *layout) {
  return (c->wants & WEFT_CE_STEP) && c->softcap == 0.0f && c->hidden >= STEP_KEEPS_FROM &&
         layout->symmetric_bytes == 0;
}

weft_status weft__sm90_backward_layout(const weft_ce_config *config, int64_t sms, int64_t budget,
                                       weft__sm90_layout *layout, int64_t *least) {
  (void)sms;
  *least = 0;
  if (!wants_gradient(config) || config->max_tokens == 0 || real_rows(config) < 1) return WEFT_OK;
  struct ce_backward_layout l;
  if (may_keep(config, layout)) {
    weft__ce_step_layout(config->max_tokens, config->hidden, real_rows(config), &l);
    if (l.bytes <= budget) {
      layout->step_bytes = l.bytes;
      layout->kept_tokens = config->max_tokens;
    }
  }
  /* By default M * H * 4 bytes of sums of dX and 224 MiB, all of the workspace counted. */
  if (budget == 0)
    budget = config->max_tokens * config->hidden * 4 + DEFAULT_DZ_BYTES - layout->errors_bytes -
             layout->stats_bytes;
  /* In a team dX is exchanged after the last wave: one wave alone, where it is not too large. */
  if (config->workspace_budget == 0 && layout->symmetric_bytes > 0) {
    WEFT__TRY(weft__ce_backward_layout(config->max_tokens, config->hidden, real_rows(config),
                                       INT64_MAX, &l));
    const int64_t dz = (int64_t)l.wave_cols * BACKWARD_TILE_COLS * config->max_tokens * 2;
    if (dz <= TEAM_DZ_BYTES && l.bytes > budget) budget = l.bytes + 256;
  }
  const weft_status status = weft__ce_backward_fit(
      config->max_tokens, config->hidden, real_rows(config), budget / 256 * 256, &l, least);
  /* The caller compares what is there with the least, and names it. */
  if (status == WEFT_ERR_WORKSPACE) {
    layout->backward_bytes = *least;
    return WEFT_OK;
  }
  WEFT__TRY(status);
  layout->backward_bytes = l.bytes;
  layout->waves = l.waves;
  layout->wave_rows = (int64_t)l.wave_cols * BACKWARD_TILE_COLS;
  return WEFT_OK;
}

static cuda_address address(const void *pointer) {
  return (cuda_address)(uintptr_t)pointer;
}

static weft_status zero(cuda_address at, int64_t bytes, cuda_stream stream) {
  if (bytes == 0) return WEFT_OK;
  return weft__cuda_check(weft__cuda_driver()->cuMemsetD8Async(at, 0, (size_t)bytes, stream),
                          "cuMemsetD8Async");
}

/* Rows [first, last) of a matrix of `hidden` columns. */
static weft_status zero_rows(const void *matrix, int64_t first, int64_t last, int64_t hidden,
                             int64_t stride, int dtype, cuda_stream stream) {
  const int64_t bytes = weft__dtype_bytes(dtype);
  const cuda_address at = address(matrix);
  if (first >= last) return WEFT_OK;
  if (stride == hidden)
    return zero(at + (cuda_address)(first * stride * bytes), (last - first) * stride * bytes,
                stream);
  for (int64_t row = first; row < last; row++)
    WEFT__TRY(zero(at + (cuda_address)(row * stride * bytes), hidden * bytes, stream));
  return WEFT_OK;
}

static struct ce_backward_problem problem_of(const weft_ce_plan *plan, const weft_ce_args *a,
                                             const float *stats) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  const weft_ce_config *c = &plan->config;
  return (struct ce_backward_problem){.tokens = a->tokens,
                                      .hidden = c->hidden,
                                      .rows = plan->rows,
                                      .vocab = c->vocab,
                                      .vocab_start = c->vocab_start,
                                      .ignore_index = c->ignore_index,
                                      .x = address(a->x),
                                      .w = address(a->w),
                                      .target = address(a->target),
                                      .stats = address(stats),
                                      .g_nll = address(a->g_nll),
                                      .g_entropy = address(a->g_entropy),
                                      .g_lse = address(a->g_lse),
                                      .temperature_ptr = address(a->temperature_ptr),
                                      .dx = c->wants & WEFT_CE_DX ? address(a->dx) : 0,
                                      .dw = c->wants & WEFT_CE_DW ? address(a->dw) : 0,
                                      .x_stride = weft__stride(a->x_stride, c->hidden),
                                      .w_stride = weft__stride(a->w_stride, c->hidden),
                                      .dx_stride = weft__stride(a->dx_stride, c->hidden),
                                      .dw_stride = weft__stride(a->dw_stride, c->hidden),
                                      .temperature = a->temperature,
                                      .softcap = c->softcap,
                                      .f16 = c->dtype == WEFT_F16,
                                      .target_i64 = c->target_dtype == WEFT_I64,
                                      .dx_f32 = c->dx_dtype == WEFT_F32,
                                      .dw_f32 = c->dw_dtype == WEFT_F32,
                                      .dw_accumulate = a->dw_accumulate,
                                      .errors = s->errors,
                                      .host_errors = address(s->host_errors),
                                      .timeout_ns = s->timeout_ns};
}

/* What no tile writes: rows of padding get a gradient of 0; all rows of dW do where there is no
 * token, and of dX, or of this rank's part of it, where there is no vocabulary. *done where nothing
 * else is to do. */
static weft_status zeros(const weft_ce_plan *plan, const weft_ce_args *args,
                         const struct ce_backward_problem *p, int *done, cuda_stream stream) {
  const weft_ce_config *c = &plan->config;
  const int64_t first = args->tokens > 0 ? plan->rows : 0;
  *done = args->tokens == 0 || plan->rows < 1;
  if ((c->wants & WEFT_CE_DW) && !args->dw_accumulate)
    WEFT__TRY(zero_rows(args->dw, first, c->vocab_local, c->hidden,
                        weft__stride(args->dw_stride, c->hidden), c->dw_dtype, stream));
  if (*done && (c->wants & WEFT_CE_DX))
    return zero_rows((const void *)(uintptr_t)p->dx, 0, args->tokens, c->hidden, p->dx_stride,
                     p->dx_f32 ? WEFT_F32 : c->dx_dtype, stream);
  return WEFT_OK;
}

/* This rank's gradients, from final statistics: dX is its part of the sum over a team, unless
 * *summed says that the kernel makes that too. */
static weft_status own_gradients(weft_ce_plan *plan, const weft_ce_args *args, const float *stats,
                                 int count_targets, bool *summed, cuda_stream stream) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  struct ce_backward_problem problem = problem_of(plan, args, stats);
  int done = 0;
  weft__sm90_team_part(s, &problem);
  WEFT__TRY(zeros(plan, args, &problem, &done, stream));
  if (done) return WEFT_OK;
  int64_t least = 0;
  struct ce_backward_layout layout;
  struct ce_backward_launch launch;
  WEFT__TRY(weft__ce_backward_fit(args->tokens, plan->config.hidden, plan->rows,
                                  s->layout.backward_bytes, &layout, &least));
  problem.count_targets = count_targets;
  WEFT__TRY(weft__ce_backward_prepare(&s->backward, &problem, &layout, s->scratch, &launch));
  *summed = weft__sm90_team_tiles(plan, args, &launch);
  return weft__ce_backward_run(&s->backward, &launch, stream);
}

static weft_status gradients(weft_ce_plan *plan, const weft_ce_args *args, const float *stats,
                             int count_targets, cuda_stream stream) {
  bool summed = false;
  WEFT__TRY(own_gradients(plan, args, stats, count_targets, &summed, stream));
  return summed ? WEFT_OK : weft__sm90_team_reduce(plan, args, stream);
}

weft_status weft__sm90_backward(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream) {
  return gradients(plan, args, args->stats, 1, stream);
}

/* One launch that keeps exponentials of all tokens. */
static weft_status step_that_keeps(weft_ce_plan *plan, const weft_ce_args *args,
                                   cuda_stream stream) {
  weft__sm90_ce *s = (weft__sm90_ce *)plan->state;
  int done = 0;
  struct ce_backward_problem problem = problem_of(plan, args, NULL);
  WEFT__TRY(zeros(plan, args, &problem, &done, stream));
  if (done) return WEFT_OK;
  struct ce_backward_layout layout;
  struct ce_backward_launch launch;
  weft__ce_step_layout(args->tokens, plan->config.hidden, plan->rows, &layout);
  problem.count_targets = 1;
  problem.keeps = 1;
  problem.wants_entropy = (plan->config.wants & WEFT_CE_ENTROPY) != 0;
  problem.nll = address(args->nll);
  problem.lse = address(args->lse);
  problem.entropy = address(args->entropy);
  WEFT__TRY(weft__ce_backward_prepare(&s->step, &problem, &layout, s->scratch, &launch));
  return weft__ce_backward_run(&s->step, &launch, stream);
}

/* Without room for exponentials, or where they are too coarse, the
 * logits are computed twice: a forward, whose statistics stay in the workspace, and a backward. A
 * step that wants no gradient is a forward. An entropy gradient needs the logarithm of p, of which
 * f16 holds 2^-12 alone. */
weft_status weft__sm90_step(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream) {
  const weft__sm90_ce *s = (const weft__sm90_ce *)plan->state;
  weft_ce_args forward = *args;
  if (!wants_gradient(&plan->config)) return weft__sm90_forward(plan, args, stream);
  if (s->layout.step_bytes > 0 && args->g_entropy == NULL)
    return step_that_keeps(plan, args, stream);
  forward.stats = (float *)(uintptr_t)s->stats;
  WEFT__TRY(weft__sm90_forward(plan, &forward, stream));
  return gradients(plan, args, forward.stats, 0, stream);
}
