/* Stands in for libcuda.so.1 where there is no GPU: a driver whose faults are chosen by
 * WEFT_FAKE_CUDA, so that every reason for which the GPU side is off can be walked. Its device runs
 * nothing; with "works" it takes all that the library asks of it, in memory of the host, so that
 * what the host does around kernels can be tested: FAKE_GPUS devices, launches that do nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

static int fault(const char *name) {
  const char *chosen = getenv("WEFT_FAKE_CUDA");
  return chosen && !strcmp(chosen, name);
}

static int init(unsigned flags) {
  (void)flags;
  return fault("no-device-node") ? NO_DEVICE : SUCCESS;
}
static int driver_version(int *version) {
  *version = fault("version") ? 11080 : 13000;
  return SUCCESS;
}
static int error_name(int error, const char **name) {
  *name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_NOT_SUPPORTED";
  return SUCCESS;
}
static int device_count(int *count) {
  const char *gpus = getenv("FAKE_GPUS");
  *count = fault("empty") ? 0 : gpus ? atoi(gpus) : 1;
  return SUCCESS;
}
static int device_get(int *device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}
static int device_name(char *name, int size, int device) {
  (void)device;
  strncpy(name, "Fake GPU", (size_t)size);
  return SUCCESS;
}
static int device_memory(size_t *bytes, int device) {
  (void)device;
  *bytes = 1;
  return SUCCESS;
}
static int device_attribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
  case 75:
    *value = fault("ampere") ? 8 : fault("blackwell") ? 10 : 9;
    break;
  case 76:
    *value = fault("blackwell") ? 3 : 0;
    break;
  case 95:
    *value = !fault("no-cooperative");
    break;
  case 120:
    *value = !fault("no-clusters");
    break;
  case 127:
    *value = !fault("no-tensor-maps");
    break;
  default:
    *value = 132;
    break;
  }
  return SUCCESS;
}
static int refuse(void) {
  return NOT_SUPPORTED;
}

/* ---- What "works" has besides. ---- */

static __thread void *current;
static int contexts[64];
static long live, launches; /* allocations, streams and events; kernels */

/* For the test, by dlsym. */
long fake_live(void);
long fake_launches(void);
long fake_live(void) {
  return __atomic_load_n(&live, __ATOMIC_SEQ_CST);
}
long fake_launches(void) {
  return __atomic_load_n(&launches, __ATOMIC_SEQ_CST);
}

static int take(void **out, size_t bytes) {
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*out == NULL) return 2;
  memset(*out, 0xa5, bytes);
  __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
  return SUCCESS;
}
static int give(void *pointer) {
  free(pointer);
  __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
  return SUCCESS;
}
static int retain(void **context, int device) {
  *context = &contexts[device];
  return SUCCESS;
}
static int set_current(void *context) {
  current = context;
  return SUCCESS;
}
static int get_current(void **context) {
  *context = current;
  return SUCCESS;
}
static int context_device(int *device) {
  *device = (int)((int *)current - contexts);
  return SUCCESS;
}
static int can_access(int *can, int device, int peer) {
  *can = !getenv("FAKE_NO_PEERS") && device != peer;
  return SUCCESS;
}
static int memory_alloc(uint64_t *address, size_t bytes) {
  void *pointer = NULL;
  const int result = take(&pointer, bytes);
  *address = (uint64_t)(uintptr_t)pointer;
  return result;
}
static int memory_free(uint64_t address) {
  return give((void *)(uintptr_t)address);
}
static int host_alloc(void **pointer, size_t bytes, unsigned flags) {
  (void)flags;
  return take(pointer, bytes);
}
static int copy_async(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return SUCCESS;
}
static int set_async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
  (void)stream;
  memset((void *)(uintptr_t)to, value, bytes);
  return SUCCESS;
}
static int make_handle(void **handle, unsigned flags) {
  (void)flags;
  return take(handle, 16);
}
static int done(void) {
  return SUCCESS;
}
static int is_capturing(void *stream, int *status) {
  (void)stream;
  *status = 0;
  return SUCCESS;
}
static int load(void **library) {
  *library = &launches;
  return SUCCESS;
}
static int kernel_attribute(int *value) {
  *value = 0;
  return SUCCESS;
}
static int most_clusters(int *clusters) {
  *clusters = 66;
  return SUCCESS;
}
static int launch(void) {
  __atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST);
  return SUCCESS;
}

#define ENTRY(name, function)                                                                      \
  { name, (void (*)(void))function }
static const struct {
  const char *name;
  void (*function)(void);
} entries[] = {ENTRY("cuInit", init),
               ENTRY("cuDriverGetVersion", driver_version),
               ENTRY("cuGetErrorName", error_name),
               ENTRY("cuDeviceGetCount", device_count),
               ENTRY("cuDeviceGet", device_get),
               ENTRY("cuDeviceGetName", device_name),
               ENTRY("cuDeviceTotalMem", device_memory),
               ENTRY("cuDeviceGetAttribute", device_attribute)};

static const struct {
  const char *name;
  void (*function)(void);
} working[] = {ENTRY("cuDevicePrimaryCtxRetain", retain),
               ENTRY("cuCtxSetCurrent", set_current),
               ENTRY("cuCtxGetCurrent", get_current),
               ENTRY("cuCtxGetDevice", context_device),
               ENTRY("cuDeviceCanAccessPeer", can_access),
               ENTRY("cuCtxEnablePeerAccess", done),
               ENTRY("cuMemAlloc", memory_alloc),
               ENTRY("cuMemFree", memory_free),
               ENTRY("cuMemHostAlloc", host_alloc),
               ENTRY("cuMemFreeHost", give),
               ENTRY("cuMemcpyAsync", copy_async),
               ENTRY("cuMemsetD8Async", set_async),
               ENTRY("cuStreamCreate", make_handle),
               ENTRY("cuStreamDestroy", give),
               ENTRY("cuStreamSynchronize", done),
               ENTRY("cuStreamWaitEvent", done),
               ENTRY("cuStreamGetCaptureInfo", is_capturing),
               ENTRY("cuGraphAddEventRecordNode", done),
               ENTRY("cuEventCreate", make_handle),
               ENTRY("cuEventDestroy", give),
               ENTRY("cuEventRecordWithFlags", done),
               ENTRY("cuEventSynchronize", done),
               ENTRY("cuLibraryLoadData", load),
               ENTRY("cuLibraryGetKernel", load),
               ENTRY("cuKernelGetAttribute", kernel_attribute),
               ENTRY("cuKernelSetAttribute", done),
               ENTRY("cuOccupancyMaxActiveClusters", most_clusters),
               ENTRY("cuTensorMapEncodeTiled", done),
               ENTRY("cuLaunchKernelEx", launch)};

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status);

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
  (void)version, (void)flags, (void)status;
  if (fault("no-tensor-map-function") && !strcmp(name, "cuTensorMapEncodeTiled")) {
    *function = NULL;
    return NOT_FOUND;
  }
  void (*found)(void) = (void (*)(void))refuse;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
    if (!strcmp(entries[i].name, name)) found = entries[i].function;
  for (size_t i = 0; fault("works") && i < sizeof working / sizeof *working; i++)
    if (!strcmp(working[i].name, name)) found = working[i].function;
  memcpy(function, &found, sizeof found);
  return SUCCESS;
}
