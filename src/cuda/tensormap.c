/* Makes tensor maps, which the bulk tensor copies of kernels read. It checks what the hardware asks
 * of a map, so that an error names the argument instead of the driver's "invalid value". */
#include "cuda/cuda.h"

#include "core/error.h"

/* CUtensorMapDataType */
static const struct {
  int type;
  unsigned bytes;
} elements[] = {[CUDA_BF16] = {9, 2},
                [CUDA_F16] = {6, 2},
                [CUDA_F32] = {7, 4},
                [CUDA_U32] = {2, 4},
                [CUDA_U8] = {0, 1}};

weft_status weft__cuda_tensor_map_encode(const struct cuda_tensor *t, struct tensor_map *map) {
  enum { INTERLEAVE_NONE = 0, L2_PROMOTION_256 = 3, FILL_ZERO = 0, BOX_MAX = 256 };
  static const uint32_t row_bytes_max[] = {[CUDA_SWIZZLE_NONE] = UINT32_MAX,
                                           [CUDA_SWIZZLE_32] = 32,
                                           [CUDA_SWIZZLE_64] = 64,
                                           [CUDA_SWIZZLE_128] = 128};
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s", weft__cuda_driver_why_off());
  if (t->rank < 1 || t->rank > CUDA_TENSOR_RANK_MAX)
    return weft__fail(WEFT_ERR_ARGUMENT, "tensor map: rank %u, expected 1 to 5", t->rank);
  if (t->address % 16)
    return weft__fail(WEFT_ERR_ARGUMENT, "tensor map: address %#llx is no multiple of 16 bytes",
                      (unsigned long long)t->address);
  uint32_t element_strides[CUDA_TENSOR_RANK_MAX];
  for (unsigned i = 0; i < t->rank; i++) {
    element_strides[i] = 1;
    if (t->dims[i] == 0 || t->dims[i] > UINT64_C(1) << 32)
      return weft__fail(WEFT_ERR_ARGUMENT, "tensor map: dimension %u is %llu, expected 1 to 2^32",
                        i, (unsigned long long)t->dims[i]);
    if (t->box[i] == 0 || t->box[i] > BOX_MAX)
      return weft__fail(WEFT_ERR_ARGUMENT,
                        "tensor map: box of dimension %u is %u, expected 1 to 256", i, t->box[i]);
    if (i > 0 && (t->strides[i - 1] % 16 || t->strides[i - 1] >> 40))
      return weft__fail(WEFT_ERR_ARGUMENT,
                        "tensor map: stride of dimension %u is %llu bytes, expected a multiple of "
                        "16 below 2^40",
                        i, (unsigned long long)t->strides[i - 1]);
  }
  const uint32_t row_bytes = t->box[0] * elements[t->element].bytes;
  if (row_bytes % 16 || row_bytes > row_bytes_max[t->swizzle])
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "tensor map: box rows of %u bytes, expected a multiple of 16 up to the "
                      "swizzle's width",
                      row_bytes);
  return weft__cuda_check(driver->cuTensorMapEncodeTiled(map, elements[t->element].type, t->rank,
                                                         (void *)(uintptr_t)t->address, t->dims,
                                                         t->strides, t->box, element_strides,
                                                         INTERLEAVE_NONE, (int)t->swizzle,
                                                         L2_PROMOTION_256, FILL_ZERO),
                          "cuTensorMapEncodeTiled");
}
