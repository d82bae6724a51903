/* The barrier of a cooperative grid, built of the other wrappers. `counter` is u32, zero before the
 * first barrier of its life and never reset; the n-th barrier (from 1) of a grid of c CTAs passes
 * at n * c. All threads of the CTA call it. That a wait ran out is in the error word alone. */
#ifndef WEFT_DEVICE_PTX_GRID_H
#define WEFT_DEVICE_PTX_GRID_H

#include "sync.h"
#include "wait.h"

#define grid_barrier(counter, n, limit, code)                                                      \
  do {                                                                                             \
    const uint32_t grid_target_ = (n)*cta_count();                                                 \
    bar_sync(0, thread_count());                                                                   \
    if (thread_index() == 0) {                                                                     \
      red_add_u32(release, gpu, counter, 1);                                                       \
      wait_u32_ge(gpu, counter, grid_target_, limit, code);                                        \
    }                                                                                              \
    bar_sync(0, thread_count());                                                                   \
  } while (0)

#endif
