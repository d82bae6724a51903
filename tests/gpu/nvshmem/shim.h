/* The few functions of NVSHMEM's host interface that the probe needs. Its headers are C++ only;
 * shim.cpp hides that. */
#ifndef WEFT_TESTS_GPU_NVSHMEM_SHIM_H
#define WEFT_TESTS_GPU_NVSHMEM_SHIM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_ID_BYTES = 256 };

/* All return 0 for success. */
int shim_unique_id(unsigned char id[SHIM_ID_BYTES]);
int shim_init(const unsigned char id[SHIM_ID_BYTES], int rank, int ranks);
void shim_finalize(void);
void *shim_malloc(size_t bytes); /* symmetric and collective */
int shim_module_init(void *module);
void shim_version(int *major, int *minor, int *patch);

#ifdef __cplusplus
}
#endif
#endif
