/* The GEMM kernel with a barrier of all CTAs of all ranks before it: it ends only if all of them
 * are on the GPU at once. */
#include "probe_args.h"

#define GEMM_SHAPE PROBE_GEMM_SHAPE
#include "device/gemm/sm90_gemm.h"

WEFT_KERNEL_CLUSTER(probe_meeting, GEMM_THREADS, GEMM_CLUSTER, struct meeting_args, args) {
  if (thread_index() == 0) {
    struct wait_limit limit;
    limit.error = args.error;
    limit.timeout_ns = args.timeout_ns;
    red_add_u32(release, sys, args.counter, 1);
    wait_u32_ge(sys, args.counter, args.expected, limit, PROBE_LATE);
  }
  bar_sync(0, GEMM_THREADS);
  gemm_kernel(&args.gemm);
}
