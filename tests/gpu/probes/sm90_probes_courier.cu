/* Couriers, and players that post to them. A courier is one CTA that turns requests in a ring into
 * copies between ranks of one process, each followed by a signal. Two kinds: many threads with
 * loads and stores, and one warp that keeps bulk copies running through shared memory and is small
 * enough to live beside a GEMM's CTA. */
#include "device/ptx/ptx.h"
#include "probe_args.h"

DEV struct gmem slot_of(struct courier_ring ring, uint32_t n) {
  return gmem_add(ring.slots, n % COURIER_SLOTS * (uint32_t)sizeof(struct courier_slot));
}

DEV struct gmem address(uint64_t a) {
  struct gmem p;
  p.a = a;
  return p;
}

DEV struct wait_limit limit_of(struct gmem error, uint64_t timeout_ns) {
  struct wait_limit limit;
  limit.error = error;
  limit.timeout_ns = timeout_ns;
  return limit;
}

WEFT_KERNEL(probe_courier_plain, COURIER_THREADS, struct courier_args, args) {
  const uint32_t t = thread_index();
  const struct smem came = smem_base();
  for (uint32_t n = 1;; n++) {
    if (t == 0)
      st_shared_u32(came, wait_u32_ge(sys, args.ring.posted, n,
                                      limit_of(args.error, args.timeout_ns), PROBE_LATE));
    bar_sync(0, COURIER_THREADS);
    if (!ld_shared_u32(came)) return;
    const struct gmem slot = slot_of(args.ring, n);
    const struct gmem source = address(ld_global_u64(slot));
    const struct gmem destination = address(ld_global_u64(gmem_add(slot, 8)));
    const uint64_t bytes = ld_global_u64(gmem_add(slot, 16));
    if (bytes == 0) return;
    for (uint64_t at = t * 16; at < bytes; at += COURIER_THREADS * 16)
      st_global_u32x4(gmem_add(destination, at), ld_global_u32x4(gmem_add(source, at)));
    bar_sync(0, COURIER_THREADS);
    if (t == 0)
      st_u32(release, sys, address(ld_global_u64(gmem_add(slot, 24))),
             (uint32_t)ld_global_u64(gmem_add(slot, 32)));
  }
}

WEFT_KERNEL(probe_courier_bulk, 32, struct courier_args, args) {
  const struct smem buffers = smem_add(smem_base(), COURIER_HEADER_BYTES);
  if (!elect_one()) return;
  for (uint32_t b = 0; b < COURIER_BUFFERS; b++)
    mbarrier_init(smem_add(smem_base(), b * 8), 1);
  uint32_t load = 0, store = 0; /* chunks so far; chunk c uses buffer c % COURIER_BUFFERS */
  for (uint32_t n = 1;; n++) {
    if (!wait_u32_ge(sys, args.ring.posted, n, limit_of(args.error, args.timeout_ns), PROBE_LATE))
      return;
    const struct gmem slot = slot_of(args.ring, n);
    struct gmem from = address(ld_global_u64(slot));
    struct gmem to = address(ld_global_u64(gmem_add(slot, 8)));
    uint64_t to_load = ld_global_u64(gmem_add(slot, 16)), to_store = to_load;
    if (to_load == 0) return;
    /* The poster's writes of the source, acquired with `posted`, before the bulk loads of them. */
    fence_proxy_async_global(courier_source);
    while (to_store != 0) {
      while (to_load != 0 && load - store < COURIER_BUFFERS - 1) {
        const uint32_t b = load % COURIER_BUFFERS;
        const uint32_t bytes = to_load < args.buffer_bytes ? (uint32_t)to_load : args.buffer_bytes;
        const struct smem bar = smem_add(smem_base(), b * 8);
        /* This buffer's last store is not the latest one, so it has read when one is left. */
        bulk_wait_group_read(1);
        mbarrier_arrive_expect_tx(bar, bytes);
        bulk_load(smem_add(buffers, b * args.buffer_bytes), from, bytes, bar);
        from = gmem_add(from, bytes);
        to_load -= bytes;
        load++;
      }
      const uint32_t b = store % COURIER_BUFFERS;
      const uint32_t bytes = to_store < args.buffer_bytes ? (uint32_t)to_store : args.buffer_bytes;
      mbarrier_wait(smem_add(smem_base(), b * 8), store / COURIER_BUFFERS & 1);
      bulk_store(to, smem_add(buffers, b * args.buffer_bytes), bytes);
      bulk_commit();
      to = gmem_add(to, bytes);
      to_store -= bytes;
      store++;
    }
    bulk_wait_group(0);
    st_u32(release, sys, address(ld_global_u64(gmem_add(slot, 24))),
           (uint32_t)ld_global_u64(gmem_add(slot, 32)));
  }
}

/* Writes the n-th request and announces it. */
DEV void post(const struct player_args *args, uint32_t n) {
  const struct gmem slot = slot_of(args->ring, n);
  st_global_u64(slot, args->source.a);
  st_global_u64(gmem_add(slot, 8), args->destination.a);
  st_global_u64(gmem_add(slot, 16), args->bytes);
  st_global_u64(gmem_add(slot, 24), args->signal_there.a);
  st_global_u64(gmem_add(slot, 32), n);
  st_u32(release, sys, args->ring.posted, n);
}

WEFT_KERNEL(probe_player, 32, struct player_args, args) {
  if (thread_index() != 0) return;
  const struct wait_limit limit = limit_of(args.error, args.timeout_ns);
  /* round 1 is not timed: it waits for the partner to be there */
  uint64_t start = globaltimer();
  uint32_t came = 1;
  for (uint32_t n = 1; n <= args.rounds && came; n++) {
    if (args.second) came = wait_u32_ge(sys, args.signal_here, n, limit, PROBE_LATE);
    post(&args, n);
    if (!args.second && (!args.alone || n == args.rounds || n >= COURIER_SLOTS / 2))
      came = wait_u32_ge(sys, args.signal_here,
                         args.alone && n < args.rounds ? n - COURIER_SLOTS / 2 + 1 : n, limit,
                         PROBE_LATE);
    if (n == 1 && !args.alone) start = globaltimer();
  }
  st_global_u64(args.ns, globaltimer() - start);
}
