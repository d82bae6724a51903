/* A kernel whose proxy fence orders nothing, for the test of --drop-each. */
#include "device/litmus/litmus.h"
#include "device/ptx/ptx.h"

WEFT_KERNEL(test_spare, 32, struct litmus_args, args) {
  if (thread_index() == 0) {
    st_global_u32(args.out, 1);
    fence_proxy_async(spare_fence); /* own store -> nothing */
  }
}
