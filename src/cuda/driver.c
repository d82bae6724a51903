/* Opens libcuda at run time and says what it and the devices can do. It knows the names of the
 * driver's functions; the rest of the library sees the table alone. Where anything is missing it
 * keeps the reason, for `weft info`. */
#define _GNU_SOURCE
#include "cuda/cuda.h"

#include "core/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_driver table;
static int usable;
static char why_off[256];

/* The oldest driver whose interface has everything above: libraries, clusters and tensor maps came
 * with CUDA 12.0. */
enum { OLDEST_DRIVER = 12000 };

typedef void (*any_function)(void);

static any_function as_function(void *pointer) {
  any_function function;
  memcpy(&function, &pointer, sizeof function); /* ISO C has no cast from void * to a function */
  return function;
}

static void open_driver(void) {
  void *libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!libcuda) {
    snprintf(why_off, sizeof why_off, "no NVIDIA driver: %s", dlerror());
    return;
  }
  typedef int (*get_proc)(const char *, void **, int, uint64_t, int *);
  const get_proc get = (get_proc)as_function(dlsym(libcuda, "cuGetProcAddress_v2"));
  if (!get) {
    snprintf(why_off, sizeof why_off, "the NVIDIA driver is older than CUDA 12.0");
    return;
  }
#define X(name, version, parameters)                                                               \
  {                                                                                                \
    void *pointer = NULL;                                                                          \
    const int result = get(#name, &pointer, version, 0, NULL);                                     \
    if (result || !pointer) {                                                                      \
      snprintf(why_off, sizeof why_off, "the NVIDIA driver has no %s (error %d)", #name, result);  \
      return;                                                                                      \
    }                                                                                              \
    const any_function function = as_function(pointer);                                            \
    memcpy(&table.name, &function, sizeof function);                                               \
  }
  CUDA_DRIVER_FUNCTIONS(X)
#undef X
  const int result = table.cuInit(0);
  if (result) {
    const char *name = NULL;
    table.cuGetErrorName(result, &name);
    snprintf(why_off, sizeof why_off, "cuInit failed: %s", name ? name : "unknown error");
    return;
  }
  if (table.cuDriverGetVersion(&table.version) || table.version < OLDEST_DRIVER) {
    snprintf(why_off, sizeof why_off, "the NVIDIA driver is for CUDA %d.%d, 12.0 is needed",
             table.version / 1000, table.version % 1000 / 10);
    return;
  }
  usable = 1;
}

const struct cuda_driver *weft__cuda_driver(void) {
  pthread_once(&once, open_driver);
  return usable ? &table : NULL;
}

const char *weft__cuda_driver_why_off(void) {
  pthread_once(&once, open_driver);
  return usable ? "" : why_off;
}

weft_status weft__cuda_check(int result, const char *call) {
  if (!result) return WEFT_OK;
  const struct cuda_driver *driver = weft__cuda_driver();
  const char *name = NULL;
  if (driver) driver->cuGetErrorName(result, &name);
  return weft__fail(WEFT_ERR_SYSTEM, "%s: %s (%d)", call, name ? name : "unknown error", result);
}

int weft__cuda_device_count(void) {
  const struct cuda_driver *driver = weft__cuda_driver();
  int count = 0;
  if (!driver || driver->cuDeviceGetCount(&count)) return 0;
  return count;
}

/* CUdevice_attribute */
enum {
  SM_COUNT = 16,
  L2_BYTES = 38,
  MAJOR = 75,
  MINOR = 76,
  COOPERATIVE_LAUNCH = 95,
  SHARED_BYTES_OPT_IN = 97,
  CLUSTER_LAUNCH = 120,
  TENSOR_MAP_ACCESS = 127,
};

weft_status weft__cuda_device_query(int ordinal, struct cuda_device_info *info) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s", weft__cuda_driver_why_off());
  memset(info, 0, sizeof *info);
  info->ordinal = ordinal;
  int device;
  weft_status status = weft__cuda_check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet");
  if (status) return status;
  int cooperative = 0, clusters = 0, tensor_maps = 0;
  const struct {
    int attribute, *value;
  } wanted[] = {{SM_COUNT, &info->sm_count},
                {L2_BYTES, &info->l2_bytes},
                {MAJOR, &info->major},
                {MINOR, &info->minor},
                {SHARED_BYTES_OPT_IN, &info->shared_bytes_per_cta},
                {COOPERATIVE_LAUNCH, &cooperative},
                {CLUSTER_LAUNCH, &clusters},
                {TENSOR_MAP_ACCESS, &tensor_maps}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    status =
        weft__cuda_check(driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, device),
                         "cuDeviceGetAttribute");
    if (status) return status;
  }
  status = weft__cuda_check(driver->cuDeviceGetName(info->name, sizeof info->name, device),
                            "cuDeviceGetName");
  if (status) return status;
  status =
      weft__cuda_check(driver->cuDeviceTotalMem(&info->memory_bytes, device), "cuDeviceTotalMem");
  if (status) return status;

  if (info->major == 9 && info->minor == 0) info->arch = CUDA_ARCH_SM90;
  if (info->major == 10) info->arch = CUDA_ARCH_SM100;
  const size_t room = sizeof info->why_off;
  if (weft__device_images.count == 0) {
    snprintf(info->why_off, room, "the library was built without nvcc");
  } else if (info->arch == CUDA_ARCH_NONE) {
    snprintf(info->why_off, room, "compute capability %d.%d: there is code for 9.0 and 10.x",
             info->major, info->minor);
  } else if (!cooperative || !clusters || !tensor_maps) {
    snprintf(info->why_off, room, "the driver offers no %s on this device",
             !cooperative ? "cooperative launches"
             : !clusters  ? "clusters"
                          : "tensor maps");
  }
  return WEFT_OK;
}
