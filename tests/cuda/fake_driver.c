/* Stands in for libcuda.so.1 where there is no GPU: a driver whose faults are chosen by
 * WEFT_FAKE_CUDA, so that every reason for which the GPU side is off can be walked. Its device runs
 * nothing. */
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
  *count = fault("empty") ? 0 : 1;
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
  memcpy(function, &found, sizeof found);
  return SUCCESS;
}
