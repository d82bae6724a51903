/* Data of the loss head's benchmark, made from f32 logits by plain kernels: statistics of the rows,
 * the gradient of the logits, and the distance of two results. Their time is not measured. */
#include "ce_data_kernels.h"
#include "device/ptx/ptx.h"

#define LOG2E 1.44269504f

DEV float cta_sum(struct smem at, float value) {
  const uint32_t thread = thread_index();
  bar_sync(0, CE_DATA_THREADS);
  st_shared_f32(smem_add(at, thread * 4), value);
  bar_sync(0, CE_DATA_THREADS);
  for (uint32_t half = CE_DATA_THREADS / 2; half != 0; half /= 2) {
    if (thread < half)
      st_shared_f32(smem_add(at, thread * 4), ld_shared_f32(smem_add(at, thread * 4)) +
                                                  ld_shared_f32(smem_add(at, (thread + half) * 4)));
    bar_sync(0, CE_DATA_THREADS);
  }
  return ld_shared_f32(at);
}

WEFT_KERNEL(ce_data_stats, CE_DATA_THREADS, struct ce_stats_args, args) {
  const uint32_t thread = thread_index();
  const struct gmem row = gmem_add(args.logits, (uint64_t)cta_index() * args.cols * 4);
  const struct smem base = smem_base();
  float most = -3.0e38f, sum = 0.0f, moment = 0.0f;
  for (uint32_t i = thread; i < args.cols; i += CE_DATA_THREADS)
    most = max_f32(most, ld_global_f32(gmem_add(row, (uint64_t)i * 4)));
  st_shared_f32(smem_add(base, thread * 4), most);
  bar_sync(0, CE_DATA_THREADS);
  for (uint32_t i = 0; i < CE_DATA_THREADS; i++)
    most = max_f32(most, ld_shared_f32(smem_add(base, i * 4)));
  for (uint32_t i = thread; i < args.cols; i += CE_DATA_THREADS) {
    const float z = ld_global_f32(gmem_add(row, (uint64_t)i * 4)) - most, e = ex2(z * LOG2E);
    sum += e;
    moment += e * z;
  }
  sum = cta_sum(base, sum);
  moment = cta_sum(base, moment);
  if (thread == 0) {
    const uint64_t target = ld_global_u64(gmem_add(args.target, (uint64_t)cta_index() * 8));
    struct f32x4 v;
    v.x = most;
    v.y = sum;
    v.z = ld_global_f32(gmem_add(row, target * 4));
    v.w = moment;
    st_global_f32x4(gmem_add(args.stats, (uint64_t)cta_index() * 16), v);
  }
}

WEFT_KERNEL(ce_data_gradient, CE_DATA_THREADS, struct ce_gradient_args, args) {
  const uint64_t row = cta_index(), start = row * args.cols;
  const struct f32x4 s = ld_global_f32x4(gmem_add(args.stats, row * 16));
  const float g = ld_global_f32(gmem_add(args.g, row * 4)), unit = g / s.y;
  const uint64_t target = ld_global_u64(gmem_add(args.target, row * 8));
  for (uint32_t i = thread_index() * 2; i < args.cols; i += CE_DATA_THREADS * 2) {
    float lo = unit * ex2((ld_global_f32(gmem_add(args.logits, (start + i) * 4)) - s.x) * LOG2E);
    float hi =
        unit * ex2((ld_global_f32(gmem_add(args.logits, (start + i + 1) * 4)) - s.x) * LOG2E);
    if (i == target) lo -= g;
    if (i + 1 == target) hi -= g;
    st_global_u32(gmem_add(args.dz, (start + i) * 2), pack_bf16x2(lo, hi));
  }
}

WEFT_KERNEL(ce_data_distance, CE_DATA_THREADS, struct ce_distance_args, args) {
  float distance = 0.0f, size = 0.0f;
  const uint64_t stride = (uint64_t)cta_count() * CE_DATA_THREADS * 2;
  for (uint64_t i = ((uint64_t)cta_index() * CE_DATA_THREADS + thread_index()) * 2; i < args.count;
       i += stride) {
    const uint32_t left = ld_global_u32(gmem_add(args.left, i * 2));
    const uint32_t right = ld_global_u32(gmem_add(args.right, i * 2));
    const float lo = bf16x2_lo(left) - bf16x2_lo(right), hi = bf16x2_hi(left) - bf16x2_hi(right);
    distance += lo * lo + hi * hi;
    size += bf16x2_lo(right) * bf16x2_lo(right) + bf16x2_hi(right) * bf16x2_hi(right);
  }
  distance = cta_sum(smem_base(), distance);
  size = cta_sum(smem_base(), size);
  if (thread_index() == 0) {
    red_add_f32(args.sums, distance);
    red_add_f32(gmem_add(args.sums, 4), size);
  }
}
