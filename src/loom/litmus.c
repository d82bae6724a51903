/* The host side of the litmus programs: memory, launches and the verdicts of docs/loom.md. */
#include "device/litmus/litmus.h"

#include <stdio.h>
#include <weft/loom.h>

/* How a program is launched. */
struct scene {
  const struct loom_kernel *kernel;
  uint32_t ctas, smem_bytes;
};

#define SMEM_BYTES 16384u
/* More than half an SM's: one CTA an SM. */
#define SMEM_ALONE 200u * 1024u

static void run(const struct loom_protocol *protocol, const struct loom_options *options) {
  const struct scene *scene = protocol->context;
  (void)options;
  struct litmus_args args;
  args.data.a = loom_alloc(0, LITMUS_BYTES);
  args.out.a = loom_alloc(0, LITMUS_BYTES);
  args.flag.a = loom_alloc(0, 64);
  args.error.a = loom_alloc(0, 64);
  args.alias.a = loom_alias(args.data.a);
  loom_fill(args.data.a, 0, LITMUS_BYTES);
  loom_fill(args.flag.a, 0, 64);
  loom_fill(args.error.a, 0, 64);
  for (uint32_t rank = 0; rank < (protocol->ranks ? protocol->ranks : 1); rank++) {
    args.rank = rank;
    const struct loom_launch launch = {scene->kernel,     &args, rank, scene->ctas,
                                       scene->smem_bytes, 0};
    if (loom_launch(&launch) != 0) loom_report_wrong("the launch was refused");
  }
  loom_run();
}

/* program, ranks, CTAs, SMs, what the broken form shows, in the two readings */
#define PROGRAMS(X)                                                                                \
  X(hazard_a, "hazard-a", 2, 1, 0, FLAGGED, FLAGGED, PROXY_FENCE,                                  \
    "a peer's data, announced by a flag, read by a bulk load")                                     \
  X(hazard_b, "hazard-b", 1, 1, 0, FLAGGED, FLAGGED, PROXY_FENCE,                                  \
    "a stage read by ordinary loads, filled again by a bulk load")                                 \
  X(same_thread, "same-thread", 1, 1, 0, FLAGGED, FLAGGED, PROXY_FENCE,                            \
    "a thread's store, then its bulk load of it")                                                  \
  X(store_bulk_store, "store-bulk-store", 1, 1, 0, FLAGGED, FLAGGED, PROXY_FENCE,                  \
    "a stage written by ordinary stores, read by a bulk store")                                    \
  X(wrong_lane_wait, "wrong-lane-wait", 1, 1, 0, FLAGGED, FLAGGED, RACE,                           \
    "bulk groups waited for by another thread")                                                    \
  X(wait_read, "wait-read", 1, 2, 0, FLAGGED, FLAGGED, RACE,                                       \
    "wait_group.read taken for completion")                                                        \
  X(narrow_release_cta, "narrow-release-cta", 1, 2, 0, FLAGGED, FLAGGED, RACE,                     \
    "release at CTA scope to another CTA")                                                         \
  X(narrow_release_gpu, "narrow-release-gpu", 2, 1, 0, FLAGGED, FLAGGED, RACE,                     \
    "release at GPU scope to another GPU")                                                         \
  X(nc_load, "nc-load", 2, 1, 0, FLAGGED, FLAGGED, NC_CONFLICT, "ld.global.nc of a peer's data")   \
  X(missing_acquire, "missing-acquire", 1, 2, 0, FLAGGED_ONCE, FLAGGED_ONCE, RACE,                 \
    "a flag looked at once, relaxed")                                                              \
  X(fence_pattern, "fence-pattern", 1, 2, 0, FLAGGED_ONCE, FLAGGED_ONCE, RACE,                     \
    "relaxed accesses that want fence.acq_rel")                                                    \
  X(fence_wrong_cta, "fence-wrong-cta", 1, 2, 0, FLAGGED, CLEAN, PROXY_FENCE,                      \
    "the fence stands in the writer's CTA")                                                        \
  X(async_relay, "async-relay", 1, 2, 0, FLAGGED, FLAGGED, PROXY_FENCE,                            \
    "a bulk store, announced, read by another CTA's bulk load")                                    \
  X(async_overwrite, "async-overwrite", 1, 2, 0, FLAGGED, FLAGGED, PROXY_FENCE,                    \
    "what another CTA's bulk load has read, overwritten by a bulk store")                          \
  X(try_wait_ignored, "try-wait-ignored", 1, 1, 0, FLAGGED_ONCE, FLAGGED_ONCE, RACE,               \
    "try_wait whose answer is not looked at")                                                      \
  X(remote_arrive, "remote-arrive", 1, 2, 0, FLAGGED, FLAGGED, RACE,                               \
    "ordinary reads announced to another CTA at CTA scope")                                        \
  X(short_expect, "short-expect", 1, 1, 0, FLAGGED, FLAGGED, RACE, "expect_tx of too few bytes")   \
  X(elected_arrive, "elected-arrive", 1, 1, 0, FLAGGED, FLAGGED, RACE,                             \
    "one lane arrives for lanes that it has not met")                                              \
  X(init_unpublished, "init-unpublished", 1, 1, 0, FLAGGED, FLAGGED, BARRIER_MISUSE,               \
    "a barrier used before its initialisation is known")                                           \
  X(multicast_alias, "multicast-alias", 1, 1, 0, FLAGGED, FLAGGED, ALIAS_FENCE,                    \
    "one memory through two addresses")                                                            \
  X(wgmma_operand, "wgmma-operand", 1, 1, 0, FLAGGED, FLAGGED, PROXY_FENCE,                        \
    "wgmma operands written by ordinary stores")                                                   \
  X(wgmma_no_wait, "wgmma-no-wait", 1, 1, 0, FLAGGED, FLAGGED, RACE,                               \
    "a stage handed back while wgmma reads it")                                                    \
  X(wgmma_no_fence, "wgmma-no-fence", 1, 1, 0, FLAGGED, FLAGGED, REGISTER_HAZARD,                  \
    "accumulators written, no wgmma.fence")                                                        \
  X(exited_cta, "exited-cta", 1, 2, 0, FLAGGED, FLAGGED, EXITED_CTA,                               \
    "shared memory of a CTA that may have exited")                                                 \
  X(short_barrier, "short-barrier", 1, 1, 0, FLAGGED, FLAGGED, DEADLOCK,                           \
    "bar.sync for more threads than come")                                                         \
  X(over_arrive, "over-arrive", 1, 1, 0, FLAGGED, FLAGGED, BARRIER_MISUSE,                         \
    "one arrival more than the phase counts")                                                      \
  X(parity_alias, "parity-alias", 1, 1, 0, FLAGGED, FLAGGED, PARITY_ALIAS,                         \
    "two phases while a thread waits for the first")                                               \
  X(unwritten, "unwritten", 1, 1, 0, FLAGGED, FLAGGED, UNWRITTEN, "memory that nothing wrote")     \
  X(misaligned_bulk, "misaligned-bulk", 1, 1, 0, FLAGGED, FLAGGED, MISALIGNED,                     \
    "a bulk copy of 24 bytes")                                                                     \
  X(not_coresident, "not-coresident", 1, 3, 2, FLAGGED, FLAGGED, NOT_CORESIDENT,                   \
    "a grid barrier over more CTAs than fit")                                                      \
  X(no_signal, "no-signal", 1, 2, 0, FLAGGED, FLAGGED, TIMEOUT, "a flag that nobody sets")

#define DECLARE(name, ...)                                                                         \
  extern const struct loom_kernel litmus_##name##_broken, litmus_##name##_mended;
PROGRAMS(DECLARE)

/* The one program whose forms differ in the launch: three CTAs on two SMs, or two. */
#define MENDED_CTAS(ctas, sms) ((sms) && (ctas) > (sms) ? (sms) : (ctas))

#define PROTOCOL(id, form, label_, text, ranks_, sms_, once, strict_, lenient_, kind_)             \
  static const struct loom_protocol form##_##id = {.name = label_,                                 \
                                                   .summary = text,                                \
                                                   .run = run,                                     \
                                                   .context = &scene_##id##_##form,                \
                                                   .ranks = ranks_,                                \
                                                   .sms = sms_,                                    \
                                                   .looks_once = once,                             \
                                                   .strict = strict_,                              \
                                                   .lenient = lenient_,                            \
                                                   .kind = kind_};

#define DEFINE(id, label, ranks, ctas, sms, strict, lenient, kind, text)                           \
  static const struct scene scene_##id##_broken = {&litmus_##id##_broken, ctas,                    \
                                                   (sms) ? SMEM_ALONE : SMEM_BYTES};               \
  static const struct scene scene_##id##_mended = {&litmus_##id##_mended, MENDED_CTAS(ctas, sms),  \
                                                   (sms) ? SMEM_ALONE : SMEM_BYTES};               \
  PROTOCOL(id, broken, "litmus-" label "-broken", text, ranks, sms,                                \
           LOOM_##strict == LOOM_FLAGGED_ONCE, LOOM_##strict, LOOM_##lenient, LOOM_##kind)         \
  PROTOCOL(id, mended, "litmus-" label, text, ranks, sms, LOOM_##strict == LOOM_FLAGGED_ONCE,      \
           LOOM_CLEAN, LOOM_CLEAN, LOOM_##kind)
PROGRAMS(DEFINE)

void loom_litmus_register(void) {
#define REGISTER(id, ...)                                                                          \
  loom_protocol_register(&broken_##id);                                                            \
  loom_protocol_register(&mended_##id);
  PROGRAMS(REGISTER)
}
