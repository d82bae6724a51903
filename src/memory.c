/* Memory of a GPU for callers that have no CUDA of their own. Stands above the GPU side. */
#include "core/error.h"
#include "cuda/cuda.h"

/* Opens the device of a call; on WEFT_OK the caller leaves it again. */
static weft_status open_device(int32_t gpu, int *ordinal, cuda_context *before) {
  WEFT__TRY(weft__cuda_choose_device(gpu, ordinal));
  const weft_status status = weft__cuda_enter(*ordinal, before);
  if (status != WEFT_OK) weft__cuda_leave(*ordinal, *before);
  return status;
}

static cuda_address address_of(const void *pointer) {
  return (cuda_address)(uintptr_t)pointer;
}

weft_status weft_memory_alloc(int32_t gpu, int64_t bytes, void **memory) {
  int ordinal = 0;
  cuda_context before = NULL;
  cuda_address address = 0;
  if (memory == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "memory_alloc: memory is NULL");
  *memory = NULL;
  if (bytes < 1)
    return weft__fail(WEFT_ERR_ARGUMENT, "memory_alloc: bytes is %lld, expected at least 1",
                      (long long)bytes);
  WEFT__TRY(open_device(gpu, &ordinal, &before));
  const int result = weft__cuda_driver()->cuMemAlloc(&address, (size_t)bytes);
  weft__cuda_leave(ordinal, before);
  if (result != 0)
    return weft__fail(WEFT_ERR_MEMORY, "memory_alloc: GPU %d has no %lld bytes", ordinal,
                      (long long)bytes);
  *memory = (void *)(uintptr_t)address;
  return WEFT_OK;
}

weft_status weft_memory_free(int32_t gpu, void *memory) {
  int ordinal = 0;
  cuda_context before = NULL;
  if (memory == NULL) return WEFT_OK;
  WEFT__TRY(open_device(gpu, &ordinal, &before));
  const int result = weft__cuda_driver()->cuMemFree(address_of(memory));
  weft__cuda_leave(ordinal, before);
  return weft__cuda_check(result, "memory_free");
}

weft_status weft_memory_copy(int32_t gpu, void *to, const void *from, int64_t bytes, void *stream) {
  int ordinal = 0;
  cuda_context before = NULL;
  if (bytes < 0 || (bytes > 0 && (to == NULL || from == NULL)))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "memory_copy: %lld bytes from %p to %p, expected at least 0, and pointers",
                      (long long)bytes, from, to);
  WEFT__TRY(open_device(gpu, &ordinal, &before));
  const int result = bytes == 0
                         ? 0
                         : weft__cuda_driver()->cuMemcpyAsync(address_of(to), address_of(from),
                                                              (size_t)bytes, (cuda_stream)stream);
  weft__cuda_leave(ordinal, before);
  return weft__cuda_check(result, "memory_copy");
}

weft_status weft_memory_synchronize(int32_t gpu, void *stream) {
  int ordinal = 0;
  cuda_context before = NULL;
  WEFT__TRY(open_device(gpu, &ordinal, &before));
  const int result = weft__cuda_driver()->cuStreamSynchronize((cuda_stream)stream);
  weft__cuda_leave(ordinal, before);
  return weft__cuda_check(result, "memory_synchronize");
}
