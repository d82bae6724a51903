/* Plans and launches the GEMM kernels; see gemm.h. */
#include "cuda/gemm.h"

#include <string.h>

#include "core/error.h"

static weft_status check_matrix(const char *name, const struct gemm_matrix *m, int64_t row,
                                int64_t element_bytes) {
  if (m->stride < row || m->stride * element_bytes % 16 != 0 || m->address % 16 != 0)
    return weft__fail(
        WEFT_ERR_ARGUMENT,
        "gemm: %s at %#llx with rows of %lld elements and a stride of %lld: expected a "
        "stride of at least a row, and 16-byte aligned rows",
        name, (unsigned long long)m->address, (long long)row, (long long)m->stride);
  return WEFT_OK;
}

/* An operand's tensor; `lines` rows (columns of B) of it are loaded by one CTA. */
static struct cuda_tensor operand_tensor(const struct gemm_matrix *m, uint64_t rows, uint64_t depth,
                                         int mn_major, int wide, uint32_t lines) {
  const uint64_t stride = (uint64_t)m->stride * 2;
  struct cuda_tensor t = {.address = m->address, .element = CUDA_BF16, .swizzle = CUDA_SWIZZLE_128};
  if (!mn_major) {
    t.rank = 2;
    t.dims[0] = depth, t.dims[1] = rows, t.strides[0] = stride;
    t.box[0] = GEMM_DEPTH_STEP, t.box[1] = lines;
  } else if (wide) {
    t.rank = 3;
    t.dims[0] = 64, t.dims[1] = depth, t.dims[2] = rows / 64;
    t.strides[0] = stride, t.strides[1] = 128;
    t.box[0] = 64, t.box[1] = GEMM_DEPTH_STEP, t.box[2] = lines / 64;
  } else {
    t.rank = 2;
    t.dims[0] = rows, t.dims[1] = depth, t.strides[0] = stride;
    t.box[0] = 64, t.box[1] = GEMM_DEPTH_STEP;
  }
  return t;
}

static struct gemm_result result_of(const struct gemm_shape *shape, const struct gemm_problem *p) {
  const uint32_t element = p->f32_out ? 4 : 2, piece = 16 / element;
  struct gemm_result r = {.address = {p->c.address},
                          .stride_bytes = (uint64_t)p->c.stride * element};
  r.lines = (uint32_t)(shape->transposed ? p->cols : p->rows);
  r.end = (uint32_t)(shape->transposed ? p->rows : p->cols);
  r.whole = r.end / piece * piece;
  return r;
}

static struct cuda_tensor result_tensor(const struct gemm_shape *shape,
                                        const struct gemm_problem *p, const struct gemm_result *r) {
  const uint32_t element = p->f32_out ? 4 : 2;
  return (struct cuda_tensor){.address = p->c.address,
                              .element = p->f32_out ? CUDA_F32 : CUDA_BF16,
                              .swizzle = CUDA_SWIZZLE_128,
                              .rank = 2,
                              /* no piece is whole: a map must have a size, and is not used */
                              .dims = {r->whole ? r->whole : 1, r->lines},
                              .strides = {r->stride_bytes},
                              /* one staging block; a transposed f32 one is stored as two halves */
                              .box = {128 / element, shape->transposed && p->f32_out ? 32 : 64}};
}

weft_status weft__gemm_plan(const struct gemm_shape *shape, const struct gemm_problem *p,
                            struct cuda_tensor tensors[3], struct gemm_args *args) {
  const int64_t limit = (INT64_C(1) << 31) - (1 << 16); /* coordinates are int32, tiles overhang */
  if (p->rows < 1 || p->cols < 1 || p->depth < 1 || p->rows > limit || p->cols > limit ||
      p->depth > limit)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "gemm: %lld x %lld over %lld, expected sizes from 1 to 2^31 - 2^16",
                      (long long)p->rows, (long long)p->cols, (long long)p->depth);
  WEFT__TRY(check_matrix("A", &p->a, shape->a_mn ? p->rows : p->depth, 2));
  WEFT__TRY(check_matrix("B", &p->b, shape->b_mn ? p->cols : p->depth, 2));
  WEFT__TRY(check_matrix("C", &p->c, shape->transposed ? p->rows : p->cols, p->f32_out ? 4 : 2));

  memset(args, 0, sizeof *args);
  const uint32_t cta_rows = 128 * shape->blocks, cta_cols = shape->cols;
  const uint32_t rows = (uint32_t)p->rows, cols = (uint32_t)p->cols, depth = (uint32_t)p->depth;
  args->schedule = gemm_schedule_make(
      rows, cols, shape->share_a ? cta_rows : cta_rows * GEMM_CLUSTER,
      shape->share_a ? cta_cols * GEMM_CLUSTER : cta_cols, (uint32_t)p->group_rows);
  if ((uint64_t)args->schedule.row_tiles * args->schedule.col_tiles > INT32_MAX)
    return weft__fail(WEFT_ERR_ARGUMENT, "gemm: %u x %u is more than 2^31 tiles", rows, cols);
  args->depth_steps = (depth - 1) / GEMM_DEPTH_STEP + 1;
  args->a_wide = rows % 64 == 0;
  args->b_wide = cols % 64 == 0;
  args->f32_out = p->f32_out != 0;
  tensors[0] = operand_tensor(&p->a, rows, depth, shape->a_mn != 0, args->a_wide != 0,
                              shape->share_a ? cta_rows / 2 : cta_rows);
  tensors[1] = operand_tensor(&p->b, cols, depth, shape->b_mn != 0, args->b_wide != 0,
                              shape->share_a ? cta_cols : cta_cols / 2);
  args->result = result_of(shape, p);
  tensors[2] = result_tensor(shape, p, &args->result);
  return WEFT_OK;
}

static struct cuda_launch launch_of(const struct gemm_shape *shape, uint32_t clusters) {
  return (struct cuda_launch){.ctas = clusters * GEMM_CLUSTER,
                              .threads = GEMM_THREADS,
                              .cluster = GEMM_CLUSTER,
                              .shared_bytes =
                                  GEMM_SHARED_BYTES(shape->blocks, shape->cols, shape->stages)};
}

weft_status weft__gemm_load(struct device_images *images, const char *name,
                            const struct gemm_shape *shape, int device, struct gemm_kernel *out) {
  const struct cuda_launch launch = launch_of(shape, 1024); /* more than fit anywhere */
  out->shape = *shape;
  WEFT__TRY(weft__cuda_kernel_load(images, name, name, device, launch.shared_bytes, &out->kernel));
  int clusters = 0;
  WEFT__TRY(weft__cuda_max_clusters(&out->kernel, &launch, &clusters));
  if (clusters < 1)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "%s: no cluster of it fits on this device", name);
  out->clusters_max = (uint32_t)clusters;
  return WEFT_OK;
}

weft_status weft__gemm_prepare(const struct gemm_kernel *kernel, const struct gemm_problem *problem,
                               struct gemm_launch *out) {
  struct cuda_tensor tensors[3];
  WEFT__TRY(weft__gemm_plan(&kernel->shape, problem, tensors, &out->args));
  struct tensor_map *maps[3] = {&out->args.a, &out->args.b, &out->args.c};
  for (int i = 0; i < 3; i++)
    WEFT__TRY(weft__cuda_tensor_map_encode(&tensors[i], maps[i]));
  const uint32_t tiles = gemm_schedule_count(&out->args.schedule);
  out->launch =
      launch_of(&kernel->shape, tiles < kernel->clusters_max ? tiles : kernel->clusters_max);
  return WEFT_OK;
}

weft_status weft__gemm_run(const struct gemm_kernel *kernel, struct gemm_launch *launch,
                           cuda_stream stream) {
  launch->launch.stream = stream;
  return weft__cuda_launch(&kernel->kernel, &launch->launch, &launch->args);
}
