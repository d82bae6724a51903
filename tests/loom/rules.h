/* Arguments of the kernels that exercise loom's rules, for both sides. */
#ifndef WEFT_TESTS_LOOM_RULES_H
#define WEFT_TESTS_LOOM_RULES_H

#include "device/ptx/address.h"

/* good: the form that the rules allow. data, out: 8 KiB; flag, error: zero. */
struct rules_args {
  struct gmem data, out, flag, error, alias; /* alias: another address of data */
  uint32_t good, rank;
};

#endif
