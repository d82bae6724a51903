/* One line on the GPUs of this machine, for `weft info`: what was found, and whether the library's
 * code runs there. */
#include <pthread.h>
#include <stdio.h>

#include "core/device.h"
#include "core/error.h"
#include "cuda/cuda.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char text[512];
static int runs;

static void describe(void) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) {
    snprintf(text, sizeof text, "%s", weft__cuda_driver_why_off());
    return;
  }
  struct cuda_device_info info;
  const int count = weft__cuda_device_count();
  if (count == 0) {
    snprintf(text, sizeof text, "the NVIDIA driver shows no device");
    return;
  }
  if (weft__cuda_device_query(0, &info) != WEFT_OK || weft__cuda_probe(0) != WEFT_OK) {
    snprintf(text, sizeof text, "%d device%s, the first can't be used: %s", count,
             count == 1 ? "" : "s", weft_last_error());
    return;
  }
  snprintf(text, sizeof text, "%d device%s, the first %s, compute capability %d.%d, CUDA %d.%d; %s",
           count, count == 1 ? "" : "s", info.name, info.major, info.minor, driver->version / 1000,
           driver->version % 1000 / 10,
           info.arch == CUDA_ARCH_SM90 ? "ce runs there" : "no operation of this version does");
  runs = info.arch == CUDA_ARCH_SM90;
}

const char *weft__cuda_description(void) {
  pthread_once(&once, describe);
  return text;
}

int weft__cuda_runs(void) {
  pthread_once(&once, describe);
  return runs;
}

weft_status weft__gpu_check(int gpu) {
  struct cuda_device_info info;
  WEFT__TRY(weft__cuda_choose_device(gpu < 0 ? 0 : gpu, &gpu));
  WEFT__TRY(weft__cuda_device_query(gpu, &info));
  if (info.why_off[0] != '\0')
    return weft__fail(WEFT_ERR_UNSUPPORTED, "GPU %d, %s, can't be used: %s", gpu, info.name,
                      info.why_off);
  if (info.arch != CUDA_ARCH_SM90)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "GPU %d, %s, can't be used: this version has operations for 9.0 alone", gpu,
                      info.name);
  return WEFT_OK;
}
