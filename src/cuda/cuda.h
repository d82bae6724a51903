/* The GPU side's own view of the CUDA driver: what the library needs of libcuda, opened at run
 * time, so that one binary runs with and without a GPU and builds without CUDA's headers. It knows
 * the driver's ABI and the images embedded in the library, and nothing of operations. Errors
 * are statuses with a message. */
#ifndef WEFT_CUDA_CUDA_H
#define WEFT_CUDA_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include <weft/weft.h>

#include "device/ptx/address.h"

/* Handles of the driver. Pointers and a 64-bit address, as its ABI has them. */
typedef struct cuda_context_handle *cuda_context;
typedef struct cuda_stream_handle *cuda_stream;
typedef struct cuda_event_handle *cuda_event;
typedef struct cuda_graph_handle *cuda_graph;
typedef struct cuda_graph_node_handle *cuda_graph_node;
typedef struct cuda_library_handle *cuda_library;
typedef struct cuda_function_handle *cuda_function;
typedef uint64_t cuda_address;

struct cuda_launch_config;

/* Functions of the driver: name, first driver version (as cuGetProcAddress counts) that has this
 * form, parameters. All return the driver's CUresult, 0 for success. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                   \
  X(cuInit, 2000, (unsigned flags))                                                                \
  X(cuDriverGetVersion, 2020, (int *version))                                                      \
  X(cuGetErrorName, 6000, (int error, const char **name))                                          \
  X(cuDeviceGetCount, 2000, (int *count))                                                          \
  X(cuDeviceGet, 2000, (int *device, int ordinal))                                                 \
  X(cuDeviceGetName, 2000, (char *name, int size, int device))                                     \
  X(cuDeviceTotalMem, 3020, (size_t * bytes, int device))                                          \
  X(cuDeviceGetAttribute, 2000, (int *value, int attribute, int device))                           \
  X(cuDevicePrimaryCtxRetain, 7000, (cuda_context * context, int device))                          \
  X(cuDevicePrimaryCtxRelease, 11000, (int device))                                                \
  X(cuCtxSetCurrent, 4000, (cuda_context context))                                                 \
  X(cuCtxGetCurrent, 4000, (cuda_context * context))                                               \
  X(cuCtxGetDevice, 2000, (int *device))                                                           \
  X(cuCtxSynchronize, 2000, (void))                                                                \
  X(cuDeviceCanAccessPeer, 4000, (int *can, int device, int peer))                                 \
  X(cuCtxEnablePeerAccess, 4000, (cuda_context peer, unsigned flags))                              \
  X(cuMemAlloc, 3020, (cuda_address * address, size_t bytes))                                      \
  X(cuMemFree, 3020, (cuda_address address))                                                       \
  X(cuMemHostAlloc, 2020, (void **pointer, size_t bytes, unsigned flags))                          \
  X(cuMemFreeHost, 2000, (void *pointer))                                                          \
  X(cuMemcpyHtoD, 3020, (cuda_address to, const void *from, size_t bytes))                         \
  X(cuMemcpyDtoH, 3020, (void *to, cuda_address from, size_t bytes))                               \
  X(cuMemcpyAsync, 4000, (cuda_address to, cuda_address from, size_t bytes, cuda_stream stream))   \
  X(cuMemsetD8Async, 3020, (cuda_address to, unsigned char value, size_t n, cuda_stream stream))   \
  X(cuStreamCreate, 2000, (cuda_stream * stream, unsigned flags))                                  \
  X(cuStreamDestroy, 4000, (cuda_stream stream))                                                   \
  X(cuStreamSynchronize, 2000, (cuda_stream stream))                                               \
  X(cuStreamQuery, 2000, (cuda_stream stream))                                                     \
  X(cuStreamWaitEvent, 3020, (cuda_stream stream, cuda_event event, unsigned flags))               \
  X(cuStreamGetCaptureInfo, 11030,                                                                 \
    (cuda_stream stream, int *status, uint64_t *id, cuda_graph *graph,                             \
     const cuda_graph_node **last, size_t *count))                                                 \
  X(cuGraphAddEventRecordNode, 11010,                                                              \
    (cuda_graph_node * node, cuda_graph graph, const cuda_graph_node *after, size_t count,         \
     cuda_event event))                                                                            \
  X(cuEventCreate, 2000, (cuda_event * event, unsigned flags))                                     \
  X(cuEventDestroy, 4000, (cuda_event event))                                                      \
  X(cuEventRecord, 2000, (cuda_event event, cuda_stream stream))                                   \
  X(cuEventRecordWithFlags, 11010, (cuda_event event, cuda_stream stream, unsigned flags))         \
  X(cuEventSynchronize, 2000, (cuda_event event))                                                  \
  X(cuEventElapsedTime, 2000, (float *ms, cuda_event start, cuda_event end))                       \
  X(cuLibraryLoadData, 12000,                                                                      \
    (cuda_library * library, const void *image, const void *jit, void *jit_values, unsigned jits,  \
     const void *options, void *option_values, unsigned count))                                    \
  X(cuLibraryGetKernel, 12000, (cuda_function * kernel, cuda_library library, const char *name))   \
  X(cuKernelGetAttribute, 12000, (int *value, int attribute, cuda_function kernel, int device))    \
  X(cuKernelSetAttribute, 12000, (int attribute, int value, cuda_function kernel, int device))     \
  X(cuOccupancyMaxActiveClusters, 11070,                                                           \
    (int *clusters, cuda_function kernel, const struct cuda_launch_config *config))                \
  X(cuLaunchKernelEx, 11060,                                                                       \
    (const struct cuda_launch_config *config, cuda_function kernel, void **parameters,             \
     void **extra))                                                                                \
  X(cuTensorMapEncodeTiled, 12000,                                                                 \
    (struct tensor_map * map, int type, unsigned rank, void *address, const uint64_t *dims,        \
     const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,                \
     int interleave, int swizzle, int l2_promotion, int fill))

struct cuda_driver {
  int version; /* 13000 for CUDA 13.0 */
#define X(name, version, parameters) int(*name) parameters;
  CUDA_DRIVER_FUNCTIONS(X)
#undef X
};

/* The driver, opened once a process; NULL, with the reason in weft__cuda_driver_why_off(), where it
 * can't be used. Any thread. */
const struct cuda_driver *weft__cuda_driver(void);
const char *weft__cuda_driver_why_off(void);

/* Turns a CUresult into a status and a message that names the call. */
weft_status weft__cuda_check(int result, const char *call);

/* What was found on this machine, or why the GPU can't be used: static storage, any thread. The
 * first call runs weft__cuda_probe(0). */
const char *weft__cuda_description(void);
int weft__cuda_runs(void); /* 1 where operations run on the first device */

enum cuda_arch { CUDA_ARCH_NONE = 0, CUDA_ARCH_SM90 = 90, CUDA_ARCH_SM100 = 100 };

struct cuda_device_info {
  int ordinal, major, minor;
  int sm_count, l2_bytes, shared_bytes_per_cta;
  size_t memory_bytes;
  enum cuda_arch arch; /* which of the library's kernels run there */
  char name[96];
  char why_off[160]; /* empty where the device can be used */
};

/* Devices visible to the process; 0 where there is no driver. */
int weft__cuda_device_count(void);
weft_status weft__cuda_device_query(int ordinal, struct cuda_device_info *info);

/* The device of a call: `gpu`, or for −1 that of the thread's current context, else the first.
 * Errors: UNSUPPORTED. */
weft_status weft__cuda_choose_device(int gpu, int *ordinal);
/* Makes the device's primary context current; leave() brings back what was, after enter() has
 * answered WEFT_OK or not. */
weft_status weft__cuda_enter(int ordinal, cuda_context *before);
void weft__cuda_leave(int ordinal, cuda_context before);

/* Runs a small kernel on the device: WEFT_OK, or why the library can't use it. Leaves the thread's
 * current context as it was. */
weft_status weft__cuda_probe(int ordinal);

/* An image is one fat binary embedded in a program, named after its instance file. A set is what
 * the build embeds in one place; the library has one, and so have the tests. */
struct device_image {
  const char *name;
  const unsigned char *bytes;
  cuda_library loaded; /* NULL until first used; never unloaded */
};
struct device_images {
  size_t count; /* 0 in a build without nvcc */
  struct device_image *images;
};
extern struct device_images weft__device_images;

struct cuda_kernel {
  cuda_function function;
  int registers, local_bytes;
};

/* Finds `kernel` in the image `image` of a set and lets it use `shared_bytes` of dynamic shared
 * memory on `device`. Any thread. */
weft_status weft__cuda_kernel_load(struct device_images *set, const char *image, const char *kernel,
                                   int device, unsigned shared_bytes, struct cuda_kernel *out);

enum cuda_element { CUDA_BF16, CUDA_F16, CUDA_F32, CUDA_U32, CUDA_U8 };
enum cuda_swizzle { CUDA_SWIZZLE_NONE, CUDA_SWIZZLE_32, CUDA_SWIZZLE_64, CUDA_SWIZZLE_128 };

enum { CUDA_TENSOR_RANK_MAX = 5 };

/* A tiled tensor in global memory: dimension 0 is contiguous; strides are in bytes, strides[0] that
 * of dimension 1. Elements outside the tensor read as zero and are not written. */
struct cuda_tensor {
  cuda_address address;
  enum cuda_element element;
  enum cuda_swizzle swizzle;
  unsigned rank;
  uint64_t dims[CUDA_TENSOR_RANK_MAX], strides[CUDA_TENSOR_RANK_MAX - 1];
  uint32_t box[CUDA_TENSOR_RANK_MAX];
};
weft_status weft__cuda_tensor_map_encode(const struct cuda_tensor *tensor, struct tensor_map *map);

struct cuda_launch {
  unsigned ctas, threads, cluster; /* cluster: CTAs in one cluster along x, 1 for none */
  unsigned shared_bytes;           /* dynamic */
  int cooperative;                 /* all CTAs co-resident, or the launch fails */
  cuda_stream stream;
};

/* Launches with one argument struct, passed by value. */
weft_status weft__cuda_launch(const struct cuda_kernel *kernel, const struct cuda_launch *launch,
                              void *arguments);
/* How many clusters of that launch can be on the device at once. */
weft_status weft__cuda_max_clusters(const struct cuda_kernel *kernel,
                                    const struct cuda_launch *launch, int *clusters);

#endif
