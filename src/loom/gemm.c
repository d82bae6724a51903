/* The host side of the Hopper GEMM in loom: toy instances of the kernel that the library ships, on
 * problems whose sums are exact, so that the right bits are those of a plain product. Writes its
 * tensor maps by itself, apart from the GPU side's planner. */
#include "device/gemm/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

struct shape {
  uint32_t blocks, cols, stages, a_mn, b_mn, share_a, transposed;
};

struct scene {
  const struct loom_kernel *kernel;
  struct shape shape;
  uint32_t rows, cols, depth, f32_out, group_rows, clusters;
};

#define GUARD 0x5a

static int a_value(uint32_t row, uint32_t k) {
  return (int)((row * 13 + k * 7) % 11) - 5;
}
static int b_value(uint32_t col, uint32_t k) {
  return (int)((col * 5 + k * 3) % 9) - 4;
}

static uint16_t bf16_of(int v) {
  const float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* An operand in a GPU's memory: its address, its bytes from one line to the next. */
struct stored {
  uint64_t address, stride;
};

/* `lines` rows of A (columns of B) by depth, padded with NaN. */
static struct stored store(int (*value)(uint32_t, uint32_t), uint32_t lines, uint32_t depth,
                           uint32_t mn_major) {
  const uint32_t outer = mn_major ? depth : lines, inner = mn_major ? lines : depth;
  const uint32_t pitch = (inner + 15) / 8 * 8;
  const size_t bytes = (size_t)outer * pitch * 2;
  struct stored s = {0, 2 * (uint64_t)pitch};
  uint16_t *data = malloc(bytes);
  if (!data) return s;
  memset(data, 0xff, bytes);
  for (uint32_t i = 0; i < lines; i++)
    for (uint32_t k = 0; k < depth; k++)
      data[mn_major ? (size_t)k * pitch + i : (size_t)i * pitch + k] = bf16_of(value(i, k));
  s.address = loom_alloc(0, bytes);
  if (s.address) loom_write(s.address, data, bytes);
  free(data);
  return s;
}

/* As struct gemm_args says; `loaded` is what one CTA loads at a time. */
static int operand_map(struct tensor_map *map, const struct stored *s, uint32_t lines,
                       uint32_t depth, uint32_t mn_major, uint32_t loaded) {
  const uint64_t flat[2] = {mn_major ? lines : depth, mn_major ? depth : lines};
  const uint64_t deep[3] = {64, depth, lines / 64}, strides[2] = {s->stride, 128};
  const uint32_t k_box[2] = {GEMM_DEPTH_STEP, loaded}, mn_box[2] = {64, GEMM_DEPTH_STEP};
  const uint32_t deep_box[3] = {64, GEMM_DEPTH_STEP, loaded / 64};
  if (mn_major && lines % 64 == 0)
    return loom_tensor_map_encode(map, LOOM_BF16, 3, s->address, deep, strides, deep_box,
                                  LOOM_SWIZZLE_128B);
  return loom_tensor_map_encode(map, LOOM_BF16, 2, s->address, flat, strides,
                                mn_major ? mn_box : k_box, LOOM_SWIZZLE_128B);
}

/* Compares all of C, its padding and a line below it included. */
static void compare(const struct scene *p, const struct gemm_result *r, size_t bytes) {
  const uint32_t size = p->f32_out ? 4 : 2;
  unsigned char *got = malloc(bytes), *right = malloc(bytes);
  if (got && right) {
    memset(right, GUARD, bytes);
    for (uint32_t row = 0; row < p->rows; row++)
      for (uint32_t col = 0; col < p->cols; col++) {
        int sum = 0;
        for (uint32_t k = 0; k < p->depth; k++)
          sum += a_value(row, k) * b_value(col, k);
        const float f = (float)sum;
        const uint16_t h = bf16_of(sum);
        const uint64_t line = p->shape.transposed ? col : row, at = p->shape.transposed ? row : col;
        memcpy(right + line * r->stride_bytes + at * size, p->f32_out ? (const void *)&f : &h,
               size);
      }
    loom_read(r->address.a, got, bytes);
    size_t i = 0;
    while (i < bytes && got[i] == right[i])
      i++;
    if (i < bytes) {
      char text[160];
      snprintf(text, sizeof text, "the product differs from line %zu, byte %zu",
               i / (size_t)r->stride_bytes, i % (size_t)r->stride_bytes);
      loom_report_wrong(text);
    }
  } else {
    loom_report_wrong("no memory for the comparison");
  }
  free(got);
  free(right);
}

static void run(const struct loom_protocol *protocol, const struct loom_options *options) {
  (void)options;
  const struct scene *p = protocol->context;
  const struct shape *s = &p->shape;
  const uint32_t cta_rows = 128 * s->blocks, size = p->f32_out ? 4 : 2;
  const uint32_t line = s->transposed ? p->rows : p->cols;
  const struct stored a = store(a_value, p->rows, p->depth, s->a_mn);
  const struct stored b = store(b_value, p->cols, p->depth, s->b_mn);
  struct gemm_args args;
  memset(&args, 0, sizeof args);
  args.schedule =
      gemm_schedule_make(p->rows, p->cols, s->share_a ? cta_rows : cta_rows * GEMM_CLUSTER,
                         s->share_a ? s->cols * GEMM_CLUSTER : s->cols, p->group_rows);
  args.depth_steps = (p->depth + GEMM_DEPTH_STEP - 1) / GEMM_DEPTH_STEP;
  args.a_wide = p->rows % 64 == 0;
  args.b_wide = p->cols % 64 == 0;
  args.f32_out = p->f32_out;
  args.result.stride_bytes = ((uint64_t)line * size + 31) / 16 * 16;
  args.result.lines = s->transposed ? p->cols : p->rows;
  args.result.end = line;
  args.result.whole = line / (16 / size) * (16 / size);
  const size_t bytes = (args.result.lines + 1) * (size_t)args.result.stride_bytes;
  args.result.address.a = loom_alloc(0, bytes);
  const uint64_t dims[2] = {args.result.whole, args.result.lines};
  const uint32_t box[2] = {128 / size, s->transposed && p->f32_out ? 32 : 64};
  if (!a.address || !b.address || !args.result.address.a ||
      operand_map(&args.a, &a, p->rows, p->depth, s->a_mn, s->share_a ? cta_rows / 2 : cta_rows) ||
      operand_map(&args.b, &b, p->cols, p->depth, s->b_mn, s->share_a ? s->cols : s->cols / 2) ||
      loom_tensor_map_encode(&args.c, p->f32_out ? LOOM_F32 : LOOM_BF16, 2, args.result.address.a,
                             dims, &args.result.stride_bytes, box, LOOM_SWIZZLE_128B)) {
    loom_report_wrong("the scene could not be set");
    return;
  }
  loom_fill(args.result.address.a, GUARD, bytes);
  const struct loom_launch launch = {p->kernel,
                                     &args,
                                     0,
                                     p->clusters * GEMM_CLUSTER,
                                     GEMM_SHARED_BYTES(s->blocks, s->cols, s->stages),
                                     0};
  if (loom_launch(&launch) != 0) loom_report_wrong("the launch was refused");
  /* a run that stopped left C as it was */
  if (loom_run() == 0) compare(p, &args.result, bytes);
}

extern const struct loom_kernel sm90_gemm_toy, sm90_gemm_toy_mn;

/* id, name, kernel, shape, rows, cols, depth, f32, rows a group, clusters, text. Between them: more
 * tiles than clusters, more steps than stages, tails in every dimension, groups that do not
 * divide. */
#define SCENES(X)                                                                                  \
  X(full, "gemm", sm90_gemm_toy, SM90_GEMM_TOY, 512, 256, 192, 0, 0, 2,                            \
    "the Hopper GEMM, K-major operands, bf16 out, whole tiles")                                    \
  X(tails, "gemm-tails", sm90_gemm_toy, SM90_GEMM_TOY, 300, 203, 72, 1, 256, 1,                    \
    "the same, f32 out, tails")                                                                    \
  X(turned, "gemm-mn", sm90_gemm_toy_mn, SM90_GEMM_TOY_MN, 512, 256, 192, 1, 0, 2,                 \
    "MN-major operands, C transposed, f32 out, whole tiles")                                       \
  X(turned_tails, "gemm-mn-tails", sm90_gemm_toy_mn, SM90_GEMM_TOY_MN, 301, 131, 72, 0, 0, 1,      \
    "the same, bf16 out, tails")

#define DEFINE(id, name_, kernel, shape, rows, cols, depth, f32, group, clusters, text)            \
  static const struct scene scene_##id = {&kernel, {shape}, rows,  cols,                           \
                                          depth,   f32,     group, clusters};                      \
  static const struct loom_protocol id = {.name = name_,                                           \
                                          .summary = text,                                         \
                                          .run = run,                                              \
                                          .context = &scene_##id,                                  \
                                          .ranks = 1,                                              \
                                          .strict = LOOM_CLEAN,                                    \
                                          .lenient = LOOM_CLEAN};
SCENES(DEFINE)

void loom_gemm_register(void) {
#define REGISTER(id, ...) loom_protocol_register(&id);
  SCENES(REGISTER)
}
