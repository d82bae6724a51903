/* The host side of the loss head's kernels in loom: the instances that the library ships, on small
 * problems, against plain loops in f64. Backward's arguments are those of the GPU side's planner.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

#include "cuda/backward.h"
#include "device/ce/forward.h"

struct scene {
  uint32_t tokens, hidden, rows, clusters;
  uint32_t pitch;   /* elements of a row of X and W */
  int spoiled;      /* rows that do not count hold NaN */
  int32_t wants_dx; /* backward */
  int keeps;        /* a step */
};

#define IGNORED    (-100)
#define TIMEOUT_NS 1000000000u

/* What a scene's problem is and what is right for it. */
struct problem {
  uint16_t *x, *w;
  int64_t *target;
  float *g;
  double *z, *dx, *dw;
  float *stats; /* [tokens][4] */
};

static float value(uint32_t seed, uint32_t i) { /* in [-1, 1), in steps that bf16 holds */
  uint32_t h = (i + 1) * 2654435761u ^ seed * 40503u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  return (float)(int32_t)(h >> 25) / 64.0f - 1.0f;
}

static uint16_t bf16_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float of_bf16(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static void *need(size_t count, size_t size) {
  void *p = calloc(count, size);
  if (!p) abort();
  return p;
}

static void problem_free(struct problem *p) {
  void *all[] = {p->x, p->w, p->target, p->g, p->z, p->dx, p->dw, p->stats};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
}

/* Statistics of a row in the form that forward hands to backward. */
static void statistics(const double *z, uint32_t rows, int64_t target, float *out) {
  double most = z[0], sum = 0, t = 0;
  for (uint32_t v = 1; v < rows; v++)
    if (z[v] > most) most = z[v];
  for (uint32_t v = 0; v < rows; v++) {
    sum += exp(z[v] - most);
    t += exp(z[v] - most) * (z[v] - most);
  }
  out[0] = (float)most, out[1] = (float)sum, out[3] = (float)t;
  out[2] = target >= 0 ? (float)z[target] : 0;
}

static void problem_make(const struct scene *s, struct problem *p) {
  const uint32_t m = s->tokens, h = s->hidden, n = s->rows;
  p->x = need((size_t)m * s->pitch, 2);
  p->w = need((size_t)n * s->pitch, 2);
  p->target = need(m, 8);
  p->g = need(m, 4);
  p->z = need((size_t)m * n, 8);
  p->dx = need((size_t)m * h, 8);
  p->dw = need((size_t)n * h, 8);
  p->stats = need((size_t)m * 4, 4);
  const float scale = 4.0f / sqrtf((float)h);
  for (uint32_t i = 0; i < m * s->pitch; i++)
    p->x[i] = i % s->pitch < h ? bf16_of(value(1, i)) : 0x7fff;
  for (uint32_t i = 0; i < n * s->pitch; i++)
    p->w[i] = i % s->pitch < h ? bf16_of(scale * value(2, i)) : 0x7fff;
  for (uint32_t i = 0; i < m; i++) {
    const int live = i % 3 != 1;
    p->target[i] = live ? (int64_t)((i * 37 + 11) % n) : IGNORED;
    p->g[i] = live ? 0.75f + 0.25f * value(3, i) : NAN;
    double *z = p->z + (size_t)i * n;
    for (uint32_t v = 0; v < n; v++)
      for (uint32_t k = 0; k < h; k++)
        z[v] += (double)of_bf16(p->x[i * s->pitch + k]) * of_bf16(p->w[v * s->pitch + k]);
    statistics(z, n, p->target[i], p->stats + i * 4);
    if (live) continue;
    if (s->spoiled && i % 2 == 0) p->x[i * s->pitch + i % h] = 0x7fff;
  }
}

static void gradients(const struct scene *s, struct problem *p) {
  const uint32_t h = s->hidden, n = s->rows;
  for (uint32_t i = 0; i < s->tokens; i++) {
    const float *stats = p->stats + i * 4;
    for (uint32_t v = 0; v < n && p->target[i] >= 0; v++) {
      const double z = p->z[(size_t)i * n + v];
      const double dz = p->g[i] * (exp(z - stats[0]) / stats[1] - ((int64_t)v == p->target[i]));
      for (uint32_t k = 0; k < h; k++) {
        p->dx[(size_t)i * h + k] += dz * of_bf16(p->w[v * s->pitch + k]);
        p->dw[(size_t)v * h + k] += dz * of_bf16(p->x[i * s->pitch + k]);
      }
    }
  }
}

static uint64_t upload(const void *from, size_t bytes) {
  const uint64_t at = loom_alloc(0, bytes);
  if (at) loom_write(at, from, bytes);
  return at;
}

static uint64_t zeros(size_t bytes) {
  const uint64_t at = loom_alloc(0, bytes);
  if (at) loom_fill(at, 0, bytes);
  return at;
}

static int operand(struct tensor_map *map, uint64_t address, uint32_t rows, const struct scene *s,
                   uint32_t box_rows) {
  const uint64_t dims[2] = {s->hidden, rows}, stride = (uint64_t)s->pitch * 2;
  const uint32_t box[2] = {FORWARD_DEPTH_STEP, box_rows};
  return loom_tensor_map_encode(map, LOOM_BF16, 2, address, dims, &stride, box, LOOM_SWIZZLE_128B);
}

extern const struct loom_kernel sm90_ce_forward_bf16, sm90_ce_backward_bf16;
extern const struct loom_kernel sm90_ce_backward_bf16_begin;
extern const struct loom_kernel sm90_ce_step_bf16, sm90_ce_step_bf16_begin;

/* nll, lse and entropy within the contract. */
static void compare_loss(const struct scene *s, const struct problem *p, uint64_t nll, uint64_t lse,
                         uint64_t entropy) {
  char text[160];
  for (uint32_t i = 0; i < s->tokens; i++) {
    float got[3];
    loom_read(nll + i * 4, &got[0], 4);
    loom_read(lse + i * 4, &got[1], 4);
    loom_read(entropy + i * 4, &got[2], 4);
    const float *st = p->stats + i * 4;
    const int live = p->target[i] >= 0;
    const double sum = st[0] + log(st[1]), bound = 2e-5 * (1 + fabs(sum) + 8);
    const double right[3] = {live ? sum - st[2] : 0, sum, live ? log(st[1]) - st[3] / st[1] : 0};
    for (int k = 0; k < 3; k++) {
      if (k == 1 && !live && s->spoiled) continue; /* of a row with NaN */
      if (fabs(got[k] - right[k]) <= bound) continue;
      snprintf(text, sizeof text, "token %u, result %d: %g, expected %g", i, k, (double)got[k],
               right[k]);
      loom_report_wrong(text);
      return;
    }
  }
}

static void run_forward(const struct loom_protocol *protocol, const struct loom_options *options) {
  (void)options;
  const struct scene *s = protocol->context;
  const size_t row_bytes = (size_t)s->tokens * 4;
  struct problem p;
  struct forward_args a;
  problem_make(s, &p);
  memset(&a, 0, sizeof a);
  /* Small enough to have several segments, and several groups. */
  a.schedule = forward_schedule_make(s->tokens, s->rows, 2, 1);
  a.depth_steps = (s->hidden - 1) / FORWARD_DEPTH_STEP + 1;
  if (a.depth_steps < FORWARD_DEPTH_STEPS_LEAST) a.depth_steps = FORWARD_DEPTH_STEPS_LEAST;
  a.hidden = s->hidden;
  a.tokens = s->tokens;
  a.rows = s->rows;
  a.vocab = s->rows;
  a.ignore_index = IGNORED;
  a.inverse_temperature = 1;
  a.wants_entropy = 1;
  a.x_rows.a = upload(p.x, (size_t)s->tokens * s->pitch * 2);
  a.w_rows.a = upload(p.w, (size_t)s->rows * s->pitch * 2);
  a.x_stride_bytes = a.w_stride_bytes = (uint64_t)s->pitch * 2;
  a.by_hand = s->pitch % 8 != 0;
  a.target.a = upload(p.target, (size_t)s->tokens * 8);
  a.nll.a = loom_alloc(0, row_bytes);
  a.lse.a = loom_alloc(0, row_bytes);
  a.entropy.a = loom_alloc(0, row_bytes);
  a.stats.a = loom_alloc(0, row_bytes * 4);
  a.partials.a =
      loom_alloc(0, (size_t)2 * a.schedule.segments * FORWARD_CLUSTER * FORWARD_PARTIAL_BYTES);
  a.target_logits.a = loom_alloc(0, 2 * FORWARD_HALF_TOKENS * 4);
  a.control.a = zeros(sizeof(struct forward_control));
  a.errors.a = zeros(sizeof(struct forward_errors));
  a.host_errors.a = zeros(sizeof(struct forward_errors));
  a.timeout_ns = TIMEOUT_NS;
  const struct loom_launch launch = {&sm90_ce_forward_bf16, &a, 0, s->clusters * FORWARD_CLUSTER,
                                     FORWARD_SHARED_BYTES,  1};
  if ((!a.by_hand && (operand(&a.x, a.x_rows.a, s->tokens, s, FORWARD_HALF_TOKENS) ||
                      operand(&a.w, a.w_rows.a, s->rows, s, FORWARD_TILE_COLS))) ||
      loom_launch(&launch) != 0)
    loom_report_wrong("the scene could not be set");
  else if (loom_run() == 0)
    compare_loss(s, &p, a.nll.a, a.lse.a, a.entropy.a);
  problem_free(&p);
}

/* Frobenius error of a bf16 result, which is at most the contract's; and exact zeros where the row
 * does not count. */
static void compare_gradient(const char *name, const double *right, uint64_t at, uint32_t rows,
                             uint32_t hidden, const int64_t *target) {
  uint16_t *got = need((size_t)rows * hidden, 2);
  double error = 0, norm = 0;
  int64_t not_zero = 0;
  loom_read(at, got, (size_t)rows * hidden * 2);
  for (size_t i = 0; i < (size_t)rows * hidden; i++) {
    const double e = of_bf16(got[i]) - right[i];
    error += e * e, norm += right[i] * right[i];
    not_zero += target && target[i / hidden] < 0 && got[i] != 0;
  }
  if (!(sqrt(error / norm) <= 0.0025) || not_zero) {
    char text[160];
    snprintf(text, sizeof text, "%s is off by %.3f%%, and %lld elements are not 0", name,
             100 * sqrt(error / norm), (long long)not_zero);
    loom_report_wrong(text);
  }
  free(got);
}

static int encode_all(const struct cuda_tensor *tensors, struct backward_args *args) {
  for (int i = 0; i < CE_BACKWARD_MAPS; i++) {
    const struct cuda_tensor *t = &tensors[i];
    if (t->rank != 0 &&
        loom_tensor_map_encode(weft__ce_backward_map(args, i),
                               t->element == CUDA_F32 ? LOOM_F32 : LOOM_BF16, t->rank, t->address,
                               t->dims, t->strides, t->box, LOOM_SWIZZLE_128B))
      return -1;
  }
  return 0;
}

static void run_backward(const struct loom_protocol *protocol, const struct loom_options *options) {
  (void)options;
  const struct scene *s = protocol->context;
  struct problem p;
  struct ce_backward_layout layout;
  struct backward_args args;
  struct cuda_tensor tensors[CE_BACKWARD_MAPS];
  const size_t row_bytes = (size_t)s->tokens * 4;
  const size_t dx_bytes = (size_t)s->tokens * s->hidden * 2;
  const size_t dw_bytes = (size_t)s->rows * s->hidden * 2;
  problem_make(s, &p);
  gradients(s, &p);
  int bad = 0;
  if (s->keeps)
    weft__ce_step_layout(s->tokens, s->hidden, s->rows, &layout);
  else /* dZ of one column of tiles: more waves than one */
    bad = weft__ce_backward_cut(s->tokens, s->hidden, s->rows,
                                (int64_t)s->tokens * BACKWARD_TILE_COLS * 2, &layout) != 0;
  const struct ce_backward_problem problem = {.tokens = s->tokens,
                                              .hidden = s->hidden,
                                              .rows = s->rows,
                                              .vocab = s->rows,
                                              .ignore_index = IGNORED,
                                              .x = upload(p.x, (size_t)s->tokens * s->pitch * 2),
                                              .w = upload(p.w, (size_t)s->rows * s->pitch * 2),
                                              .target = upload(p.target, (size_t)s->tokens * 8),
                                              .stats = upload(p.stats, (size_t)s->tokens * 16),
                                              .g_nll = upload(p.g, (size_t)s->tokens * 4),
                                              .dx = s->wants_dx ? loom_alloc(0, dx_bytes) : 0,
                                              .dw = loom_alloc(0, dw_bytes),
                                              .x_stride = s->pitch,
                                              .w_stride = s->pitch,
                                              .dx_stride = s->hidden,
                                              .dw_stride = s->hidden,
                                              .temperature = 1,
                                              .target_i64 = 1,
                                              .count_targets = 1,
                                              .keeps = s->keeps,
                                              .wants_entropy = 1,
                                              .nll = loom_alloc(0, row_bytes),
                                              .lse = loom_alloc(0, row_bytes),
                                              .entropy = loom_alloc(0, row_bytes),
                                              .errors = zeros(sizeof(struct forward_errors)),
                                              .host_errors = zeros(sizeof(struct forward_errors)),
                                              .timeout_ns = TIMEOUT_NS};
  if (!bad) {
    const uint64_t workspace = loom_alloc(0, (size_t)layout.bytes);
    weft__ce_backward_fill(&problem, &layout, workspace, tensors, &args);
    bad = workspace == 0 || encode_all(tensors, &args) != 0;
  }
  const struct loom_launch begin = {
      s->keeps ? &sm90_ce_step_bf16_begin : &sm90_ce_backward_bf16_begin,
      &args,
      0,
      bad ? 1 : args.schedule.row_tiles * (BACKWARD_TILE / BACKWARD_DEPTH_STEP),
      BACKWARD_BEGIN_SHARED_BYTES,
      0};
  const struct loom_launch launch = {s->keeps ? &sm90_ce_step_bf16 : &sm90_ce_backward_bf16,
                                     &args,
                                     0,
                                     s->clusters * BACKWARD_CLUSTER,
                                     s->keeps ? STEP_SHARED_BYTES : BACKWARD_SHARED_BYTES,
                                     1};
  if (bad || loom_launch(&begin) != 0 || loom_launch(&launch) != 0) {
    loom_report_wrong("the scene could not be set");
  } else if (loom_run() == 0) {
    if (problem.dx) compare_gradient("dX", p.dx, problem.dx, s->tokens, s->hidden, p.target);
    compare_gradient("dW", p.dw, problem.dw, s->rows, s->hidden, NULL);
    if (s->keeps) compare_loss(s, &p, problem.nll, problem.lse, problem.entropy);
  }
  problem_free(&p);
}

/* id, name, run, tokens, hidden, rows, clusters, pitch, spoiled, dX, keeps, text. Between them:
 * ragged tiles in every dimension, two waves, tiles of one kind after each other, groups of tokens.
 */
#define SCENES(X)                                                                                  \
  X(forward, "ce-forward", run_forward, 300, 72, 500, 3, 80, 0, 0, 0,                              \
    "forward of the loss head, several segments and groups of tokens")                             \
  X(forward_by_hand, "ce-forward-unaligned", run_forward, 260, 67, 400, 1, 67, 1, 0, 0,            \
    "the same, rows without alignment")                                                            \
  X(backward, "ce-backward", run_backward, 300, 72, 500, 2, 80, 0, 1, 0,                           \
    "backward of the loss head, two waves")                                                        \
  X(backward_deep, "ce-backward-deep", run_backward, 100, 1096, 390, 1, 1096, 0, 1, 0,             \
    "the same, more steps than stages")                                                            \
  X(backward_by_hand, "ce-backward-unaligned", run_backward, 130, 328, 400, 1, 329, 1, 1, 0,       \
    "the same, rows without alignment")                                                            \
  X(backward_spoiled, "ce-backward-unclean", run_backward, 580, 264, 400, 3, 264, 1, 0, 0,         \
    "dW alone, rows that do not count hold NaN")                                                   \
  X(step, "ce-step", run_backward, 300, 72, 500, 2, 80, 0, 1, 1,                                   \
    "loss and gradients in one pass, conversions behind other tiles")                              \
  X(step_groups, "ce-step-groups", run_backward, 560, 8, 1100, 2, 8, 0, 1, 1,                      \
    "the same, a last group of one row of tiles")                                                  \
  X(step_deep, "ce-step-deep", run_backward, 100, 1096, 390, 1, 1096, 0, 1, 1,                     \
    "the same, more steps than stages")

#define DEFINE(id, name_, run_, tokens, hidden, rows, clusters, pitch, spoiled, dx, keeps, text)   \
  static const struct scene scene_##id = {tokens, hidden,  rows, clusters,                         \
                                          pitch,  spoiled, dx,   keeps};                           \
  static const struct loom_protocol id = {.name = name_,                                           \
                                          .summary = text,                                         \
                                          .run = run_,                                             \
                                          .context = &scene_##id,                                  \
                                          .ranks = 1,                                              \
                                          .strict = LOOM_CLEAN,                                    \
                                          .lenient = LOOM_CLEAN};
SCENES(DEFINE)

void loom_ce_register(void) {
#define REGISTER(id, ...) loom_protocol_register(&id);
  SCENES(REGISTER)
}
