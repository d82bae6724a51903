/* What the host and the device agree on for ranks that reach each other's memory: the peer view
 * that travels in a kernel's arguments, and the words by which a rank's kernels tell what went
 * wrong. Knows no instructions.
 *
 * Each rank has a symmetric arena. A symmetric object lies at the same offset in the arena of every
 * rank of a team: the peer's copy is at base[peer] + offset. */
#ifndef WEFT_DEVICE_COMM_PEERS_H
#define WEFT_DEVICE_COMM_PEERS_H

#include "device/host_device.h"
#include "device/ptx/address.h"

struct peer_view {
  uint32_t rank, ranks;             /* in the team */
  uint32_t host, hosts;             /* numbered by their first appearance in the team */
  uint32_t local_rank, local_ranks; /* among the team's ranks of this host */
  /* u64 [ranks], in memory of this GPU: where each rank's arena begins as this GPU addresses it,
   * the own one included; 0 where it can't be addressed. Written before any kernel that reads it.
   */
  struct gmem bases;
  /* u32, zero while all is well: this rank's error word in this team, in memory that the host reads
   * and writes while kernels run. Once it is not zero, this rank's waits for peers give up. */
  struct gmem error;
  uint64_t timeout_ns;
};

/* Where a kernel waited: part of an error word, and of the message that the host makes of it. */
#define PEER_PHASES(X)                                                                             \
  X(ENTRY, "entry barrier")                                                                        \
  X(STATISTICS, "statistics exchange")                                                             \
  X(DX_PARTIAL, "dX partials")                                                                     \
  X(DX_GATHER, "dX all-gather")                                                                    \
  X(EXIT, "exit barrier")                                                                          \
  X(EP_COUNTS, "ep counts")                                                                        \
  X(EP_ROWS, "ep rows")                                                                            \
  X(EP_READY, "ep combine input")                                                                  \
  X(EP_DONE, "ep buffers")

enum peer_phase {
  PEER_PHASE_NONE,
#define X(name, text) PEER_PHASE_##name,
  PEER_PHASES(X)
#undef X
      PEER_PHASE_COUNT
};

/* An error word: kind in bits 28 to 31, phase in 16 to 27, peer (a rank of the team) below. */
enum peer_error_kind {
  PEER_ERROR_TIMEOUT = 1, /* the peer did not come in time */
  PEER_ERROR_ABORTED = 2, /* set by the host: weft_comm_abort(), or a stop of the team */
  PEER_ERROR_DIFFERS = 3, /* the peer's arguments differ from this rank's */
  PEER_ERROR_LOCAL = 4,   /* a wait within the rank's own GPU ran out */
  PEER_ERROR_DATA = 5,    /* this rank's own data is wrong: an index out of range, or named twice */
  PEER_ERROR_BUSY = 6,   /* a replayed operation found its slot in use, or its other half missing */
  PEER_ERROR_REFUSED = 7 /* the peer's host refused its arguments */
};

HOST_DEVICE uint32_t peer_error(enum peer_error_kind kind, enum peer_phase phase, uint32_t peer) {
  return (uint32_t)kind << 28 | (uint32_t)phase << 16 | peer;
}
HOST_DEVICE enum peer_error_kind peer_error_kind(uint32_t word) {
  return (enum peer_error_kind)(word >> 28);
}
HOST_DEVICE enum peer_phase peer_error_phase(uint32_t word) {
  return (enum peer_phase)(word >> 16 & 0xfff);
}
HOST_DEVICE uint32_t peer_error_rank(uint32_t word) {
  return word & 0xffff;
}

#endif
