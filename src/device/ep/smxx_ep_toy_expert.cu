/* The experts of loom's protocols (toy.h). */
#include "device/ep/toy.h"
#include "device/ptx/ptx.h"

DEV uint32_t toy_pair(const struct ep_toy_args *a, uint64_t at, uint32_t expert) {
  if (a->fp8) {
    const uint32_t codes = ld_global_u16(gmem_add(a->recv_x, at));
    return ep_toy_of_code(codes & 0xff, expert) | ep_toy_of_code(codes >> 8, expert) << 16;
  }
  const uint32_t pair = ld_global_u32(gmem_add(a->recv_x, at * 2));
  return ep_toy_of_bf16(pair & 0xffff, expert) | ep_toy_of_bf16(pair >> 16, expert) << 16;
}

WEFT_KERNEL(smxx_ep_toy_expert, EP_TOY_THREADS, struct ep_toy_args, args) {
  for (uint32_t l = 0; l < args.experts_local; l++) {
    const uint32_t expert = args.first_expert + l;
    const uint64_t first = ld_global_u64(gmem_add(args.offsets, l * 8));
    const uint64_t count = ld_global_u64(gmem_add(args.counts, l * 8));
    for (uint64_t row = first; row < first + count; row++) {
      for (uint32_t i = 2 * thread_index(); i < args.hidden; i += 2 * thread_count()) {
        const uint64_t at = row * args.hidden + i;
        st_global_u32(gmem_add(args.y, at * 2), toy_pair(&args, at, expert));
      }
      if (thread_index() == 0)
        st_global_f32(gmem_add(args.row_gradient, row * 4),
                      ep_toy_gradient(ld_global_f32(gmem_add(args.recv_weights, row * 4)), expert));
    }
  }
}
