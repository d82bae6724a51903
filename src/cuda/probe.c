/* Asks a device to run the library's code once. A device that is listed, and has the right compute
 * capability, may still be unable to (another process owns it, the driver is too old for the
 * images); this finds out, and says why. */
#include <stdio.h>

#include "core/error.h"
#include "cuda/cuda.h"
#include "device/probe/probe.h"

enum { CTAS = 8, SEED = 1000 };

static weft_status run(const struct cuda_driver *driver, int device) {
  struct cuda_kernel kernel;
  WEFT__TRY(
      weft__cuda_kernel_load(&weft__device_images, "smxx_probe", "smxx_probe", device, 0, &kernel));
  cuda_address heard = 0;
  cuda_stream stream = NULL;
  uint32_t words[CTAS] = {0};
  weft_status status = weft__cuda_check(driver->cuMemAlloc(&heard, sizeof words), "cuMemAlloc");
  if (status != WEFT_OK) goto cleanup;
  status = weft__cuda_check(driver->cuStreamCreate(&stream, 1), "cuStreamCreate");
  if (status != WEFT_OK) goto cleanup;
  struct probe_args args = {.heard = {heard}, .seed = SEED};
  const struct cuda_launch launch = {.ctas = CTAS,
                                     .threads = PROBE_THREADS,
                                     .cluster = PROBE_CLUSTER,
                                     .shared_bytes = PROBE_SHARED_BYTES,
                                     .cooperative = 1,
                                     .stream = stream};
  status = weft__cuda_launch(&kernel, &launch, &args);
  if (status != WEFT_OK) goto cleanup;
  status = weft__cuda_check(driver->cuStreamSynchronize(stream), "cuStreamSynchronize");
  if (status != WEFT_OK) goto cleanup;
  status = weft__cuda_check(driver->cuMemcpyDtoH(words, heard, sizeof words), "cuMemcpyDtoH");
  if (status != WEFT_OK) goto cleanup;
  for (uint32_t i = 0; i < CTAS; i++)
    if (words[i] != SEED + (i ^ 1))
      status = weft__fail(WEFT_ERR_SYSTEM, "the probe kernel answered %u for CTA %u, expected %u",
                          words[i], i, SEED + (i ^ 1));
cleanup:
  if (stream) driver->cuStreamDestroy(stream);
  if (heard) driver->cuMemFree(heard);
  return status;
}

weft_status weft__cuda_probe(int ordinal) {
  struct cuda_device_info info;
  WEFT__TRY(weft__cuda_device_query(ordinal, &info));
  if (info.why_off[0]) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s: %s", info.name, info.why_off);
  const struct cuda_driver *driver = weft__cuda_driver();
  int device;
  WEFT__TRY(weft__cuda_check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  cuda_context before = NULL, context = NULL;
  driver->cuCtxGetCurrent(&before);
  WEFT__TRY(weft__cuda_check(driver->cuDevicePrimaryCtxRetain(&context, device),
                             "cuDevicePrimaryCtxRetain"));
  weft_status status = weft__cuda_check(driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
  if (status == WEFT_OK) status = run(driver, device);
  driver->cuCtxSetCurrent(before);
  driver->cuDevicePrimaryCtxRelease(device);
  return status;
}
