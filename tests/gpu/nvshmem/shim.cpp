// See shim.h.
#include "shim.h"

#include <cstring>
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

static_assert(sizeof(nvshmemx_uniqueid_t) <= SHIM_ID_BYTES, "an id fits");

int shim_unique_id(unsigned char id[SHIM_ID_BYTES]) {
  nvshmemx_uniqueid_t unique = NVSHMEMX_UNIQUEID_INITIALIZER;
  const int status = nvshmemx_get_uniqueid(&unique);
  std::memcpy(id, &unique, sizeof unique);
  return status;
}

int shim_init(const unsigned char id[SHIM_ID_BYTES], int rank, int ranks) {
  nvshmemx_uniqueid_t unique;
  std::memcpy(&unique, id, sizeof unique);
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  const int status = nvshmemx_set_attr_uniqueid_args(rank, ranks, &unique, &attributes);
  return status ? status : nvshmemx_hostlib_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
}

void shim_finalize(void) {
  nvshmemx_hostlib_finalize();
}

void *shim_malloc(size_t bytes) {
  return nvshmem_malloc(bytes);
}

int shim_module_init(void *module) {
  return nvshmemx_cumodule_init(static_cast<CUmodule>(module));
}

void shim_version(int *major, int *minor, int *patch) {
  nvshmemx_vendor_get_version_info(major, minor, patch);
}
