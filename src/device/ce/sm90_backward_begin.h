/* What goes before the backward kernel: a small kernel that sets its counters to zero and looks for
 * rows of X that do not count and are not finite, whose product with a gradient of 0 would be NaN.
 * It reads nothing of the rows that count. One CTA takes 64 tokens, a step of dW's depth. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_BEGIN_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_BEGIN_H

#include "device/ce/backward.h"
#include "device/ce/sm90_gradient.h"
#include "device/ptx/ptx.h"

enum { BEGIN_LOADS = 8 }; /* of 16 bytes that a lane has on their way */

/* Whether one of two elements is not finite. */
DEV uint32_t is_unclean(uint32_t pair) {
#ifdef BACKWARD_F16
  const uint32_t most = 0x7c00u;
#else
  const uint32_t most = 0x7f80u;
#endif
  return (pair & most) == most || (pair >> 16 & most) == most;
}

/* A warp. Rows are 16-byte aligned. */
DEV uint32_t row_is_unclean(const struct backward_args *args, uint32_t row) {
  const struct gmem x = gmem_add(args->x_rows, (uint64_t)row * args->x_stride_bytes);
  const uint32_t whole = args->hidden / 8 * 8, lane = lane_index();
  uint32_t unclean = 0;
  for (uint32_t k = lane * 8; k < whole; k += BEGIN_LOADS * 256) {
    struct u32x4 v[BEGIN_LOADS];
    UNROLL for (uint32_t i = 0; i < BEGIN_LOADS; i++) {
      v[i].x = v[i].y = v[i].z = v[i].w = 0;
      if (k + i * 256 < whole) v[i] = ld_global_u32x4(gmem_add(x, (uint64_t)(k + i * 256) * 2));
    }
    UNROLL for (uint32_t i = 0; i < BEGIN_LOADS; i++) unclean |=
        is_unclean(v[i].x) | is_unclean(v[i].y) | is_unclean(v[i].z) | is_unclean(v[i].w);
  }
  if (whole + lane < args->hidden)
    unclean |= is_unclean(ld_global_u16(gmem_add(x, (uint64_t)(whole + lane) * 2)));
  return warp_ballot(unclean) != 0;
}

/* A CTA of BACKWARD_BEGIN_THREADS; its shared memory is a word. */
DEV void backward_begin(const struct backward_args *args) {
  const uint32_t counters = backward_counters(&args->schedule);
  for (uint32_t i = cta_index() * BACKWARD_BEGIN_THREADS + thread_index(); i < counters;
       i += cta_count() * BACKWARD_BEGIN_THREADS)
    st_global_u32(gmem_add(args->counters, (uint64_t)i * 4), 0);
  const struct smem found = smem_base();
  if (thread_index() == 0) st_shared_u32(found, 0);
  bar_sync(0, BACKWARD_BEGIN_THREADS);
  /* Only dW multiplies with X, and by hand it leaves such rows out anyway. */
  if (args->schedule.dw && !args->by_hand) {
    const uint32_t first = cta_index() * 64 + warp_index() * BACKWARD_BEGIN_ROWS;
    const uint32_t row = first + lane_index() % BACKWARD_BEGIN_ROWS;
    const uint32_t dead =
        warp_ballot(row < args->tokens && row_target(args, row, 0) == GRADIENT_DEAD);
    uint32_t unclean = 0;
    for (uint32_t i = 0; i < BACKWARD_BEGIN_ROWS && !unclean; i++)
      if (dead >> i & 1) unclean = row_is_unclean(args, first + i);
    if (unclean && lane_index() == 0) st_shared_order_u32(relaxed, cta, found, 1);
  }
  bar_sync(0, BACKWARD_BEGIN_THREADS);
  if (thread_index() == 0)
    st_global_u32(
        gmem_add(args->counters, (uint64_t)backward_unclean(&args->schedule, cta_index()) * 4),
        ld_shared_u32(found));
}

#endif
