/* See gpu.h. */
#include "gpu.h"

static const struct cuda_driver *driver;

const struct cuda_driver *gpu_open(struct cuda_device_info *info) {
  driver = weft__cuda_driver();
  if (!driver) {
    printf("skipped: %s\n", weft__cuda_driver_why_off());
    exit(GPU_SKIPPED);
  }
  if (weft__cuda_probe(0) != WEFT_OK || weft__cuda_device_query(0, info) != WEFT_OK) {
    printf("skipped: %s\n", weft_last_error());
    exit(GPU_SKIPPED);
  }
  int device;
  cuda_context context;
  gpu_require(driver->cuDeviceGet(&device, 0), "cuDeviceGet");
  gpu_require(driver->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  gpu_require(driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
  return driver;
}

void gpu_require(int result, const char *what) {
  gpu_require_status(weft__cuda_check(result, what), what);
}

void gpu_require_status(weft_status status, const char *what) {
  if (status == WEFT_OK) return;
  fprintf(stderr, "%s: %s\n", what, weft_last_error());
  exit(4);
}

cuda_address gpu_allocate(size_t bytes) {
  cuda_address address = 0;
  gpu_require(driver->cuMemAlloc(&address, bytes), "cuMemAlloc");
  return address;
}

cuda_address gpu_upload(const void *from, size_t bytes) {
  const cuda_address address = gpu_allocate(bytes);
  gpu_require(driver->cuMemcpyHtoD(address, from, bytes), "cuMemcpyHtoD");
  return address;
}

void gpu_download(void *to, cuda_address from, size_t bytes) {
  gpu_require(driver->cuMemcpyDtoH(to, from, bytes), "cuMemcpyDtoH");
}

void gpu_free(cuda_address address) {
  if (address) gpu_require(driver->cuMemFree(address), "cuMemFree");
}
