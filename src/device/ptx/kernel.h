/* How a kernel is defined. Its arguments travel by value in one struct (a __grid_constant__, so
 * that tensor maps inside it have an address), and its launch bounds and cluster size are part of
 * the definition. Under gcc the definition makes a `const struct loom_kernel NAME` instead, which
 * loom_launch takes.
 *
 *   WEFT_KERNEL(scale, 128, struct scale_args, args) { ... args.x ... }
 *   WEFT_KERNEL_CLUSTER(gemm, 384, 2, struct gemm_args, args) { ... }
 */
#ifndef WEFT_DEVICE_PTX_KERNEL_H
#define WEFT_DEVICE_PTX_KERNEL_H

#include "types.h"

#ifdef __CUDACC__

#define WEFT_KERNEL(name, threads, args_t, args)                                                   \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ args_t args)
#define WEFT_KERNEL_CLUSTER(name, threads, cluster, args_t, args)                                  \
  extern "C" __global__ void __launch_bounds__(threads, 1) __cluster_dims__(cluster, 1, 1)         \
      name(const __grid_constant__ args_t args)

#else

#define WEFT_KERNEL(name, threads, args_t, args) WEFT_KERNEL_NAMED(name, threads, 1, args_t, args)
#define WEFT_KERNEL_CLUSTER(name, threads, cluster, args_t, args)                                  \
  WEFT_KERNEL_NAMED(name, threads, cluster, args_t, args)
/* One step further, so that a name may itself be a macro. */
#define WEFT_KERNEL_NAMED(name, threads, cluster, args_t, args)                                    \
  static void name##_body(const args_t args);                                                      \
  static void name##_entry(const void *p) {                                                        \
    name##_body(*(const args_t *)p);                                                               \
  }                                                                                                \
  extern const struct loom_kernel name;                                                            \
  const struct loom_kernel name = {name##_entry, #name, threads, cluster, sizeof(args_t)};         \
  static void name##_body(const args_t args)

#endif
#endif
