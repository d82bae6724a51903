/* Bulk copies of the async proxy (PTX "cp.async.bulk", "cp.reduce.async.bulk"): addresses and sizes
 * are multiples of 16 bytes. Loads complete on an mbarrier, stores and reductions by the executing
 * thread's bulk groups: commit, then wait_group (writes done) or wait_group_read (sources read). */
#ifndef WEFT_DEVICE_PTX_BULK_H
#define WEFT_DEVICE_PTX_BULK_H

#include "types.h"

#ifdef __CUDACC__

DEV void bulk_load(struct smem dst, struct gmem src, uint32_t bytes, struct smem bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" ::"r"(dst.a),
               "l"(src.a), "r"(bytes), "r"(bar.a)
               : "memory");
}

/* To the same offset in each CTA of the cluster whose bit is set, signalling the barrier at the
 * same offset there. */
DEV void bulk_load_multicast(struct smem dst, struct gmem src, uint32_t bytes, struct smem bar,
                             uint32_t mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(dst.a),
               "l"(src.a), "r"(bytes), "r"(bar.a), "h"((uint16_t)mask)
               : "memory");
}

/* From own shared memory to another CTA's, signalling a barrier there. */
DEV void bulk_push(struct dsmem dst, struct smem src, uint32_t bytes, struct dsmem bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" ::"r"(dst.a),
               "r"(src.a), "r"(bytes), "r"(bar.a)
               : "memory");
}

DEV void bulk_store(struct gmem dst, struct smem src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst.a),
               "r"(src.a), "r"(bytes)
               : "memory");
}

/* dst[i] += src[i]; each addition is relaxed at gpu scope. */
DEV void bulk_reduce_add_f32(struct gmem dst, struct smem src, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst.a),
      "r"(src.a), "r"(bytes)
      : "memory");
}

DEV void bulk_reduce_add_bf16(struct gmem dst, struct smem src, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(
          dst.a),
      "r"(src.a), "r"(bytes)
      : "memory");
}

#define bulk_commit() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
/* At most n (a literal) of this thread's groups are left with writes, or with reads, to do. */
#define bulk_wait_group(n) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(n) : "memory")
#define bulk_wait_group_read(n)                                                                    \
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")

#else

#define bulk_load(dst, src, bytes, bar)                                                            \
  loom_bulk_load(LOOM_SITE(plain, "cp.async.bulk.shared.global", ""), dst, src, bytes, bar, 0)
#define bulk_load_multicast(dst, src, bytes, bar, mask)                                            \
  loom_bulk_load(LOOM_SITE(plain, "cp.async.bulk.shared.global.multicast", ""), dst, src, bytes,   \
                 bar, mask)
#define bulk_push(dst, src, bytes, bar)                                                            \
  loom_bulk_push(LOOM_SITE(plain, "cp.async.bulk.shared::cluster.shared::cta", ""), dst, src,      \
                 bytes, bar)
#define bulk_store(dst, src, bytes)                                                                \
  loom_bulk_store(LOOM_SITE(plain, "cp.async.bulk.global.shared", ""), dst, src, bytes,            \
                  LOOM_REDUCE_NONE)
#define bulk_reduce_add_f32(dst, src, bytes)                                                       \
  loom_bulk_store(LOOM_SITE(plain, "cp.reduce.async.bulk.add.f32", ""), dst, src, bytes,           \
                  LOOM_REDUCE_F32)
#define bulk_reduce_add_bf16(dst, src, bytes)                                                      \
  loom_bulk_store(LOOM_SITE(plain, "cp.reduce.async.bulk.add.bf16", ""), dst, src, bytes,          \
                  LOOM_REDUCE_BF16)
#define bulk_commit()      loom_bulk_commit(LOOM_SITE(plain, "cp.async.bulk.commit_group", ""))
#define bulk_wait_group(n) loom_bulk_wait(LOOM_SITE(wait, "cp.async.bulk.wait_group", ""), n, 0)
#define bulk_wait_group_read(n)                                                                    \
  loom_bulk_wait(LOOM_SITE(wait, "cp.async.bulk.wait_group.read", ""), n, 1)

#endif
#endif
