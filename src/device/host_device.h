/* For plain C that the host, the device and loom share, such as tile schedules. Knows nothing. */
#ifndef WEFT_DEVICE_HOST_DEVICE_H
#define WEFT_DEVICE_HOST_DEVICE_H

#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define HOST_DEVICE static inline __attribute__((unused))
#endif

#endif
