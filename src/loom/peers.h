/* A team of ranks in a loom world: one GPU a rank, each with a symmetric arena, and the peer views
 * that kernels take. For protocols; knows the device's peer view. */
#ifndef WEFT_LOOM_PEERS_H
#define WEFT_LOOM_PEERS_H

#include "device/comm/peers.h"

#include <stddef.h>

enum { LOOM_PEERS_MAX = 64 };

struct loom_peers {
  uint32_t ranks;
  uint64_t arena[LOOM_PEERS_MAX]; /* device address, on GPU `rank` */
  struct peer_view view[LOOM_PEERS_MAX];
};

/* Makes the arenas of ranks 0 to ranks - 1, on the GPUs of these numbers, in the world that has
 * begun, on `hosts` hosts in blocks (loom_config's gpus_per_host must say the same). Their content
 * counts as unwritten but for the first `zeroed` bytes, where signals belong. Ranks of other hosts
 * have base 0. Returns 0, or -1 where the world has not that many GPUs. */
int loom_peers_make(struct loom_peers *peers, uint32_t ranks, uint32_t hosts, size_t arena_bytes,
                    size_t zeroed, uint64_t timeout_ns);

/* The error word of a rank, after a run. */
uint32_t loom_peers_error(const struct loom_peers *peers, uint32_t rank);

#endif
