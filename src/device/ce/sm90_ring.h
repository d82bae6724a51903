/* The ring of shared memory stages between the producer's tensor loads and the warpgroups that
 * multiply. Knows clusters of two and the wrappers of ptx/. Several rings, one a shape of stages,
 * may overlay the same memory, each with its own barriers; see SHAPE(drain) in sm90_multiply.h. */
#ifndef WEFT_DEVICE_CE_SM90_RING_H
#define WEFT_DEVICE_CE_SM90_RING_H

#include "device/ptx/ptx.h"

/* Arrays over the stages. */
struct ring_barriers {
  struct smem full, empty;
};

/* A position. The parity is that of the phase that is waited for next on `full`. */
struct ring {
  uint32_t stage, parity;
};

DEV struct ring ring_next(struct ring r, uint32_t stages) {
  r.stage++;
  if (r.stage == stages) {
    r.stage = 0;
    r.parity ^= 1;
  }
  return r;
}

/* So many stages further on. */
DEV struct ring ring_skip(struct ring r, uint32_t count, uint32_t stages) {
  r.stage += count;
  r.parity ^= r.stage / stages & 1;
  r.stage %= stages;
  return r;
}

/* Before the cluster's first barrier, by one thread. `readers`: warpgroups of a CTA that read a
 * stage. */
DEV void ring_init(struct ring_barriers b, uint32_t stages, uint32_t readers) {
  for (uint32_t s = 0; s < stages; s++) {
    mbarrier_init(smem_add(b.full, s * 8), 1);            /* the producer */
    mbarrier_init(smem_add(b.empty, s * 8), readers * 2); /* of both CTAs */
  }
}

/* Tells the producers of both CTAs that this warpgroup has read a stage. One arrival of the
 * warpgroup for each, by its first two threads: wgmma is an operation of the whole warpgroup, and
 * each of its threads has waited for it. Arrives with the default semantics (release, CTA scope):
 * what has been done with the stage are reads by wgmma, which its wait has completed; no write of
 * this thread has to be seen over there, and a wider release costs a MEMBAR a stage. */
DEV void ring_release(struct ring_barriers b, uint32_t stage, uint32_t thread) {
  if (thread < 2) mbarrier_arrive_remote(cluster_map(smem_add(b.empty, stage * 8), thread));
}

/* An operand's map and where it is to be read: 64 of depth from `depth`. */
struct operand {
  const struct tensor_map *map;
  uint32_t depth, wide; /* wide: an MN-major operand's map is 3-D, 64 rows a plane */
};

/* Loads `count` rows of an operand (columns of B) from `first`. */
DEV void load_operand(const struct operand *o, struct smem to, struct smem full, uint32_t first,
                      uint32_t count, int mn_major, int multicast) {
  if (!mn_major) {
    if (multicast)
      tensor_load_2d_multicast(to, o->map, full, 3, o->depth, first);
    else
      tensor_load_2d(to, o->map, full, o->depth, first);
  } else if (o->wide) {
    if (multicast)
      tensor_load_3d_multicast(to, o->map, full, 3, 0, o->depth, first / 64);
    else
      tensor_load_3d(to, o->map, full, 0, o->depth, first / 64);
  } else {
    UNROLL for (uint32_t i = 0; i < count / 64; i++) {
      const struct smem block = smem_add(to, i * 8192);
      if (multicast)
        tensor_load_2d_multicast(block, o->map, full, 3, first + i * 64, o->depth);
      else
        tensor_load_2d(block, o->map, full, first + i * 64, o->depth);
    }
  }
}

#endif
