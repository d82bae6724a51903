/* What the device side of the litmus programs shares: names of the two forms, and places in shared
 * memory. */
#include "device/ptx/ptx.h"
#include "litmus.h"

#if LITMUS_MENDED
#define LITMUS(name) litmus_##name##_mended
#else
#define LITMUS(name) litmus_##name##_broken
#endif

#ifndef WEFT_DEVICE_LITMUS_BODY_H
#define WEFT_DEVICE_LITMUS_BODY_H

DEV struct wait_limit litmus_limit(struct gmem error) {
  struct wait_limit limit;
  limit.error = error;
  limit.timeout_ns = LITMUS_TIMEOUT_NS;
  return limit;
}

/* Bytes of a stage that one warp reads, 16 a lane. */
#define STAGE_BYTES 512u

DEV struct smem full_barrier(void) {
  return smem_base();
}
DEV struct smem empty_barrier(void) {
  return smem_add(smem_base(), 8);
}
DEV struct smem stage_base(void) {
  return smem_add(smem_base(), 1024);
}

DEV struct u32x4 splat(uint32_t v) {
  struct u32x4 r;
  r.x = r.y = r.z = r.w = v;
  return r;
}

DEV void load_and_wait(struct gmem from, struct gmem out) {
  mbarrier_arrive_expect_tx(full_barrier(), STAGE_BYTES);
  bulk_load(stage_base(), from, STAGE_BYTES, full_barrier());
  mbarrier_wait(full_barrier(), 0);
  st_global_u32(out, ld_shared_u32(stage_base()));
}

#endif
