/* Data for the benchmark: normal random operands, a softmax gradient, and a comparison of two
 * results. Plain kernels; the time they take is not measured. */
#include "bench_kernels.h"
#include "device/ptx/ptx.h"

DEV uint32_t hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

/* Sum of twelve uniform values less six: mean 0, variance 1, normal to three digits. */
DEV float normal(uint32_t seed, uint64_t i) {
  uint32_t h = hash(seed ^ hash((uint32_t)i ^ hash((uint32_t)(i >> 32) + 0x9e3779b9u)));
  float sum = -6.0f + 12 * 0.5f / 65536.0f;
  UNROLL for (int k = 0; k < 6; k++) {
    sum += (float)(h & 0xffffu) * (1.0f / 65536.0f) + (float)(h >> 16) * (1.0f / 65536.0f);
    h = hash(h + 0x85ebca6bu);
  }
  return sum;
}

WEFT_KERNEL(bench_fill, BENCH_THREADS, struct fill_args, args) {
  const uint64_t stride = (uint64_t)cta_count() * BENCH_THREADS * 8;
  for (uint64_t i = ((uint64_t)cta_index() * BENCH_THREADS + thread_index()) * 8; i < args.count;
       i += stride) {
    uint32_t pair[4];
    UNROLL for (uint32_t k = 0; k < 4; k++) pair[k] = pack_bf16x2(
        args.scale * normal(args.seed, i + 2 * k), args.scale * normal(args.seed, i + 2 * k + 1));
    struct u32x4 v;
    v.x = pair[0];
    v.y = pair[1];
    v.z = pair[2];
    v.w = pair[3];
    st_global_u32x4(gmem_add(args.to, i * 2), v);
  }
}

WEFT_KERNEL(bench_softmax_gradient, BENCH_THREADS, struct softmax_args, args) {
  const float log2e = 1.44269504f;
  const uint32_t thread = thread_index();
  const struct gmem row = gmem_add(args.rows, (uint64_t)cta_index() * args.cols * 2);
  const struct smem base = smem_base();
  const uint32_t target = hash(args.seed ^ hash(cta_index())) % args.cols;
  float most = -3.0e38f, sum = 0.0f;
  for (uint32_t i = thread * 2; i < args.cols; i += BENCH_THREADS * 2) {
    const uint32_t pair = ld_global_u32(gmem_add(row, (uint64_t)i * 2));
    const float lo = bf16x2_lo(pair), hi = bf16x2_hi(pair);
    const float next = max_f32(most, max_f32(lo, hi));
    sum = sum * ex2((most - next) * log2e) + ex2((lo - next) * log2e) + ex2((hi - next) * log2e);
    most = next;
  }
  st_shared_f32(smem_add(base, thread * 8), most);
  st_shared_f32(smem_add(base, thread * 8 + 4), sum);
  bar_sync(0, BENCH_THREADS);
  float row_most = -3.0e38f, row_sum = 0.0f;
  for (uint32_t t = 0; t < BENCH_THREADS; t++)
    row_most = max_f32(row_most, ld_shared_f32(smem_add(base, t * 8)));
  for (uint32_t t = 0; t < BENCH_THREADS; t++)
    row_sum += ld_shared_f32(smem_add(base, t * 8 + 4)) *
               ex2((ld_shared_f32(smem_add(base, t * 8)) - row_most) * log2e);
  const float unit = args.scale / row_sum;
  for (uint32_t i = thread * 2; i < args.cols; i += BENCH_THREADS * 2) {
    const struct gmem at = gmem_add(row, (uint64_t)i * 2);
    const uint32_t pair = ld_global_u32(at);
    float lo = unit * ex2((bf16x2_lo(pair) - row_most) * log2e);
    float hi = unit * ex2((bf16x2_hi(pair) - row_most) * log2e);
    if (i == target) lo -= args.scale;
    if (i + 1 == target) hi -= args.scale;
    st_global_u32(at, pack_bf16x2(lo, hi));
  }
}

DEV uint32_t far_apart(float a, float b, float relative, float absolute) {
  const float distance = max_f32(a - b, b - a);
  const float size = max_f32(max_f32(a, -a), max_f32(b, -b));
  return !(distance <= relative * size + absolute);
}

WEFT_KERNEL(bench_compare, BENCH_THREADS, struct compare_args, args) {
  uint64_t count = 0;
  const uint64_t stride = (uint64_t)cta_count() * BENCH_THREADS * 2;
  for (uint64_t i = ((uint64_t)cta_index() * BENCH_THREADS + thread_index()) * 2; i < args.count;
       i += stride) {
    const uint32_t left = ld_global_u32(gmem_add(args.left, i * 2));
    const uint32_t right = ld_global_u32(gmem_add(args.right, i * 2));
    count += far_apart(bf16x2_lo(left), bf16x2_lo(right), args.relative, args.absolute);
    count += far_apart(bf16x2_hi(left), bf16x2_hi(right), args.relative, args.absolute);
  }
  if (count != 0) atom_add_u64(relaxed, gpu, args.differ, count);
}
