/* Loads the fat binaries that the build embedded in the library, each once a process, and finds
 * kernels in them. It knows the table of images that the build generates, and the driver. */
#include "cuda/cuda.h"

#include "core/error.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of device_image.loaded */

static weft_status load_image(const struct cuda_driver *driver, struct device_images *set,
                              const char *name, cuda_library *library) {
  struct device_image *image = NULL;
  for (size_t i = 0; i < set->count; i++)
    if (!strcmp(set->images[i].name, name)) image = &set->images[i];
  if (!image)
    return weft__fail(WEFT_ERR_UNSUPPORTED, "this build holds no device image \"%s\"", name);
  weft_status status = WEFT_OK;
  pthread_mutex_lock(&lock);
  if (!image->loaded)
    status = weft__cuda_check(
        driver->cuLibraryLoadData(&image->loaded, image->bytes, NULL, NULL, 0, NULL, NULL, 0),
        name);
  *library = image->loaded;
  pthread_mutex_unlock(&lock);
  return status;
}

/* CUfunction_attribute */
enum { LOCAL_BYTES = 3, REGISTERS = 4, DYNAMIC_SHARED_BYTES_MAX = 8 };

weft_status weft__cuda_kernel_load(struct device_images *set, const char *image, const char *kernel,
                                   int device, unsigned shared_bytes, struct cuda_kernel *out) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s", weft__cuda_driver_why_off());
  cuda_library library = NULL;
  weft_status status = load_image(driver, set, image, &library);
  if (status) return status;
  cuda_function f;
  status = weft__cuda_check(driver->cuLibraryGetKernel(&f, library, kernel), kernel);
  if (status) return status;
  status =
      weft__cuda_check(driver->cuKernelGetAttribute(&out->registers, REGISTERS, f, device), kernel);
  if (status) return status;
  status = weft__cuda_check(driver->cuKernelGetAttribute(&out->local_bytes, LOCAL_BYTES, f, device),
                            kernel);
  if (status) return status;
  if (shared_bytes) {
    status = weft__cuda_check(
        driver->cuKernelSetAttribute(DYNAMIC_SHARED_BYTES_MAX, (int)shared_bytes, f, device),
        "cuKernelSetAttribute(dynamic shared memory)");
    if (status) return status;
  }
  out->function = f;
  return WEFT_OK;
}
