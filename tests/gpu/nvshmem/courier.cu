// The courier that serves a ring (../probes/probe_args.h) by NVSHMEM: each request becomes a put
// with signal. A kernel of its own, linked with NVSHMEM's device library, so that no other kernel
// has to be.
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include "../probes/probe_args.h"

extern "C" __global__ void __launch_bounds__(COURIER_THREADS, 1)
    probe_courier_nvshmem(const __grid_constant__ courier_args args) {
  __shared__ unsigned came;
  const unsigned *posted = reinterpret_cast<const unsigned *>(args.ring.posted.a);
  const int peer = nvshmem_my_pe() ^ 1;
  for (unsigned n = 1;; n++) {
    if (threadIdx.x == 0) {
      unsigned long long start, now;
      unsigned seen;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(posted) : "memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      } while (static_cast<int>(seen - n) < 0 && now - start < args.timeout_ns);
      came = static_cast<int>(seen - n) >= 0;
      if (!came) *reinterpret_cast<volatile unsigned *>(args.error.a) = PROBE_LATE;
    }
    __syncthreads();
    if (!came) return;
    const volatile courier_slot *s =
        reinterpret_cast<const volatile courier_slot *>(args.ring.slots.a) + n % COURIER_SLOTS;
    const uint64_t source = s->source, destination = s->destination, bytes = s->bytes;
    const uint64_t signal = s->signal, value = s->value;
    if (bytes == 0) return;
    nvshmemx_putmem_signal_nbi_block(
        reinterpret_cast<void *>(destination), reinterpret_cast<const void *>(source), bytes,
        reinterpret_cast<uint64_t *>(signal), value, NVSHMEM_SIGNAL_SET, peer);
    __syncthreads();
  }
}
