/* The backward pass on Hopper: one persistent kernel of clusters of two that makes dZ, dX and dW,
 * whose tiles chain by counters (backward_schedule.h). It knows the shapes and arguments of
 * backward.h. An instance defines BACKWARD_NAME, BACKWARD_F16 for f16 instead of bf16, and
 * BACKWARD_KEEPS for a step, which makes the loss as well (sm90_step_make.h), and includes this
 * file.
 *
 * Roles of a CTA's warps:
 *   warp 0       producer: loads operands, ahead of the consumers
 *   warps 1, 2   storers of consumer 0 and 1: store results, wait for what they overwrite, and
 *                signal finished tiles
 *   warp 3       dealer: fetches the cluster's next tile
 *   warps 4-11   consumers 0 and 1: multiply, and turn logits into gradients */
#include "device/ce/sm90_backward_begin.h"
#include "device/ce/sm90_backward_load.h"
#include "device/ce/sm90_backward_make.h"
#include "device/ce/sm90_backward_store.h"
#ifndef BACKWARD_KEEPS
#include "device/ce/sm90_backward_team.h"
#else
#include "device/ce/sm90_step_make.h"
#endif

/* A warpgroup. */
DEV void consume(const struct backward_args *args, struct shared s, uint32_t index, uint32_t rank) {
  struct consumer c;
  c.index = index;
  c.thread = thread_index() % 128;
  c.rank = rank;
  c.staging.base = smem_add(s.staging, index * 2 * BACKWARD_BLOCK_BYTES);
  c.staging.consumer = index;
  c.staging.turn = 0;
  struct inbox in = {0, 0};
  struct rings at = {{0, 0}, {0, 0}, {0, 0}};
  for (;;) {
    const uint32_t next = inbox_read(s, in);
#ifndef BACKWARD_KEEPS
    if (next & BACKWARD_TEAM_TILE) {
      team_tile(args, &c, next);
      if (c.thread == 0) inbox_done(s, in);
      in = inbox_next(in);
      continue;
    }
#endif
    if (next >= args->end) return;
    const struct backward_tile t = backward_tile(&args->schedule, next);
    if (t.kind == BACKWARD_PREPARE) prepare(args, &c, &t);
#ifdef BACKWARD_KEEPS
    else if (t.kind == BACKWARD_DZ)
      at.dz = make_exponentials(args, s, &c, in, next - args->schedule.row_tiles, at.dz);
    else if (t.kind == BACKWARD_CONVERT)
      convert_alone(args, &c, next);
#else
    else if (t.kind == BACKWARD_DZ)
      at.dz = make_dz(args, s, &c, in, at.dz);
#endif
    else if (t.kind == BACKWARD_DX)
      at.dx = make_dx(args, s, &c, in, at.dx);
    else
      at.dw = make_dw(args, s, &c, in, at.dw);
    /* All of its threads, and the storer, have met at a block since they read the mailbox. */
    if (c.thread == 0) inbox_done(s, in);
    in = inbox_next(in);
  }
}

/* One thread, when its CTA is done: shows the host what went wrong. All targets have been looked at
 * by then, since dX and dW waited for it. */
DEV void report(const struct backward_args *args) {
  if (args->host_errors.a == 0) return;
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t word = ld_u32(relaxed, gpu, gmem_add(args->errors, i * 4));
    if (word != 0) st_u32(relaxed, sys, gmem_add(args->host_errors, i * 4), word);
  }
}

/* The whole kernel: a cooperative grid of clusters of two. */
DEV void backward_kernel(const struct backward_args *args) {
  const struct shared s = shared_layout();
  const uint32_t warp = warp_index(), rank = cluster_rank();
  if (thread_index() == 0) {
    init_barriers(s);
    /* The barriers' initial state, before the other CTA's arrivals and multicasts. */
    fence_mbarrier_init(backward_barriers);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (warp < 4) {
    setmaxnreg_dec(BACKWARD_OTHER_REGISTERS);
    if (warp == 0) {
      if (args->by_hand)
        produce(args, s, rank, 1);
      else
        produce(args, s, rank, 0);
    } else if (warp == 3) {
      if (elect_one()) deal(args, s, rank);
    } else {
      store_results(args, s, warp - 1, rank);
    }
  } else {
    setmaxnreg_inc(BACKWARD_REGISTERS);
    consume(args, s, warp / 4 - 1, rank);
  }
  /* Neither CTA leaves while the other may still write its memory or arrive on its barriers; what
   * the storers have stored is complete. */
  cluster_sync();
  if (thread_index() == 0) report(args);
}

#ifdef BACKWARD_NAME
#define BACKWARD_BEGIN_(name) name##_begin
#define BACKWARD_BEGIN(name)  BACKWARD_BEGIN_(name)
WEFT_KERNEL(BACKWARD_BEGIN(BACKWARD_NAME), BACKWARD_BEGIN_THREADS, struct backward_args, args) {
  backward_begin(&args);
}
WEFT_KERNEL_CLUSTER(BACKWARD_NAME, BACKWARD_THREADS, BACKWARD_CLUSTER, struct backward_args, args) {
  backward_kernel(&args);
}
#endif
