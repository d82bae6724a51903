/* Litmus programs: the smallest device code in which a rule of the PTX memory model shows. Each
 * comes in a broken and a mended form, chosen by LITMUS_MENDED; docs/loom.md has their verdicts.
 * This file gives their arguments, also to the host. */
#ifndef WEFT_DEVICE_LITMUS_LITMUS_H
#define WEFT_DEVICE_LITMUS_LITMUS_H

#include "device/ptx/address.h"

/* All memory belongs to rank 0 and is zero at the start. */
struct litmus_args {
  struct gmem data, out; /* LITMUS_BYTES each */
  struct gmem alias;     /* a second address of data */
  struct gmem flag, error;
  uint32_t rank;
};

#define LITMUS_BYTES      8192
#define LITMUS_TIMEOUT_NS 1000000000ull

#endif
