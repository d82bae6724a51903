/* Writes a rank's part of dX (dx_fill.h). */
#include "dx_fill.h"

#include "device/ptx/ptx.h"

WEFT_KERNEL(sm90_dx_fill, DX_FILL_THREADS, struct dx_fill_args, args) {
  for (uint32_t row = cta_index(); row < args.tokens; row += cta_count())
    for (uint32_t column = thread_index(); column < args.stride; column += DX_FILL_THREADS)
      st_global_f32(gmem_add(args.part, ((uint64_t)row * args.stride + column) * 4),
                    dx_fill_value(args.rank, args.launch, row, column));
}
