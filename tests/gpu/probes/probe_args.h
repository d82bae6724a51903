/* Arguments of the probe kernels, for host and device, and the ring that a courier serves. */
#ifndef WEFT_TESTS_GPU_PROBES_PROBE_ARGS_H
#define WEFT_TESTS_GPU_PROBES_PROBE_ARGS_H

#include "device/gemm/gemm.h"

enum {
  COURIER_SLOTS = 64,
  COURIER_THREADS = 512,       /* of the one that copies by loads and stores */
  COURIER_BUFFERS = 4,         /* of the one that copies by bulk copies, in shared memory */
  COURIER_HEADER_BYTES = 1024, /* barriers, before the buffers */
};

/* One request: copy `bytes`, a multiple of 16, then set `signal` to `value`. Zero bytes: go home.
 */
struct courier_slot {
  uint64_t source, destination, bytes, signal, value;
  uint64_t unused[3];
};

/* A ring of COURIER_SLOTS, and its words. The n-th request, from 1, is in slot n % COURIER_SLOTS
 * once `posted` is n. */
struct courier_ring {
  struct gmem slots, posted;
};

struct courier_args {
  struct courier_ring ring;
  struct gmem error;
  uint64_t timeout_ns;
  uint32_t buffer_bytes; /* of the bulk courier */
};

/* Two players post in turn, each through its own courier, `rounds` times. Or, without a partner,
 * player 0 posts `rounds` requests at once and waits for the last. The nanoseconds that it took go
 * to `ns`. */
struct player_args {
  struct courier_ring ring;
  struct gmem source, destination, signal_there, signal_here, ns, error;
  uint64_t bytes, timeout_ns;
  uint32_t rounds, second, alone;
};

/* The GEMM, once every CTA of all ranks has come to one barrier: `counter` reaches `expected`. */
struct meeting_args {
  struct gemm_args gemm;
  struct gmem counter, error;
  uint64_t timeout_ns;
  uint32_t expected;
};

enum { PROBE_LATE = 1 }; /* what a wait that ran out leaves in the error word */

#define PROBE_GEMM_SHAPE SM90_GEMM_LOGITS

#endif
