/* Primary contexts, which the library shares with the CUDA runtime of the process. Each is retained
 * once and kept: a context costs its memory only once a process, and is never taken from under a
 * plan. */
#include <pthread.h>

#include "core/error.h"
#include "cuda/cuda.h"

enum { DEVICES_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_context contexts[DEVICES_MAX];

weft_status weft__cuda_choose_device(int gpu, int *ordinal) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (driver == NULL)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "no GPU can be used here: %s",
                      weft__cuda_driver_why_off());
  cuda_context current = NULL;
  *ordinal = gpu < 0 ? 0 : gpu;
  if (gpu < 0 && driver->cuCtxGetCurrent(&current) == 0 && current != NULL)
    /* A device's handle is its ordinal. */
    WEFT__TRY(weft__cuda_check(driver->cuCtxGetDevice(ordinal), "cuCtxGetDevice"));
  const int count = weft__cuda_device_count();
  if (*ordinal >= count || *ordinal >= DEVICES_MAX)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "GPU %d, expected one of the %d there are", *ordinal,
                      count);
  return WEFT_OK;
}

weft_status weft__cuda_enter(int ordinal, cuda_context *before) {
  const struct cuda_driver *driver = weft__cuda_driver();
  int device = 0;
  *before = NULL;
  pthread_mutex_lock(&lock);
  weft_status status = WEFT_OK;
  if (contexts[ordinal] == NULL) {
    status = weft__cuda_check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet");
    if (status == WEFT_OK)
      status = weft__cuda_check(driver->cuDevicePrimaryCtxRetain(&contexts[ordinal], device),
                                "cuDevicePrimaryCtxRetain");
  }
  const cuda_context context = contexts[ordinal];
  pthread_mutex_unlock(&lock);
  if (status != WEFT_OK) return status;
  WEFT__TRY(weft__cuda_check(driver->cuCtxGetCurrent(before), "cuCtxGetCurrent"));
  if (*before == context) return WEFT_OK;
  return weft__cuda_check(driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void weft__cuda_leave(int ordinal, cuda_context before) {
  if (before != contexts[ordinal]) weft__cuda_driver()->cuCtxSetCurrent(before);
}
