/* The reduction of dX over a team, as a kernel of its own behind backward (dx_reduce.h). */
#include "device/ce/dx_reduce_parts.h"

WEFT_KERNEL(smxx_ce_dx_reduce, DX_REDUCE_THREADS, struct dx_reduce_args, args) {
  const struct peer_view *const view = &args.view;
  if (view->ranks < 2) return; /* a launch that only loads the kernel */
  const uint32_t thread = thread_index(), epoch = epoch_read(args.epoch);
  const uint32_t rows = dx_shard_rows(args.tokens, view->ranks);
  const struct smem last = smem_base();
  /* Backward has ended before this kernel began: its part of dX is there. */
  if (cta_index() == 0) dx_announce(&args, args.ready, epoch, thread, DX_REDUCE_THREADS);
  dx_wait_parts(&args, epoch, thread, DX_REDUCE_THREADS);
  bar_sync(0, DX_REDUCE_THREADS);
  for (uint32_t row = cta_index(); row < rows; row += cta_count())
    dx_reduce_rows(&args, row, row + 1, thread, DX_REDUCE_THREADS);
  bar_sync(0, DX_REDUCE_THREADS);
  if (thread == 0) {
    const uint32_t before = atom_add_u32(acq_rel, gpu, args.counter, 1);
    st_shared_u32(last, before + 1 == cta_count());
    if (before + 1 == cta_count()) st_global_u32(args.counter, 0);
  }
  bar_sync(0, DX_REDUCE_THREADS);
  if (ld_shared_u32(last)) dx_announce(&args, args.summed, epoch, thread, DX_REDUCE_THREADS);
  for (uint32_t i = 1; i < view->ranks; i++) {
    const uint32_t peer = (view->rank + i) % view->ranks;
    if (thread == 0) dx_wait_sum(&args, epoch, peer);
    if (args.scatter) continue; /* that the peer reads no part any more is all there is to know */
    bar_sync(0, DX_REDUCE_THREADS);
    for (uint32_t row = cta_index(); row < rows; row += cta_count())
      dx_copy_rows(&args, peer, row, row + 1, thread, DX_REDUCE_THREADS);
  }
  if (thread == 0) epoch_end(args.epoch, epoch, cta_count());
}
