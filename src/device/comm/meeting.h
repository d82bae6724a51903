/* What host and device of the meeting kernel agree on: the smallest kernel in which ranks exchange
 * data through their arenas, for loom and for tests on GPUs. In each round every rank stores a word
 * a thread into every peer's inbox, meets the others, and adds up its own inbox. Knows no
 * instructions. */
#ifndef WEFT_DEVICE_COMM_MEETING_H
#define WEFT_DEVICE_COMM_MEETING_H

#include "device/comm/peers.h"

enum { MEETING_THREADS = 64 };

struct meeting_args {
  struct peer_view view;
  uint64_t signals; /* offset of [ctas][2][ranks] u32: before and after the reading */
  uint64_t inbox;   /* offset of [ranks][ctas][MEETING_THREADS] u32 */
  struct gmem epoch;
  struct gmem out; /* [rounds][ctas][MEETING_THREADS] u32 of the latest launch */
  uint32_t rounds;
};

/* What rank `from` sends to `to`. */
HOST_DEVICE uint32_t meeting_value(uint32_t from, uint32_t to, uint32_t round, uint32_t place) {
  return from * 1000003u + to * 10007u + round * 101u + place;
}

#endif
