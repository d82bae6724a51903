/* Tensors as the library wants them: shape, dtype, device, strides and alignment are checked here,
 * since the library sees addresses alone. */
#ifndef WEFT_FFI_TENSORS_H
#define WEFT_FFI_TENSORS_H

#include "call.h"

/* What a tensor must be. */
typedef struct tensor_rule {
  const char *what;
  int32_t ndim;
  int64_t shape[3]; /* −1: any */
  int32_t dtype;    /* weft_dtype; 0: 32-bit words of any kind */
  dl_device device;
} tensor_rule;

/* The address of the first element; NULL without an exception where the tensor is None or empty.
 * Where `stride` is given, the first dimension may be strided, and it gets the elements from row to
 * row (0: contiguous, or one row). */
void *tensor_address(ffi_call *call, const dl_tensor *tensor, const tensor_rule *rule,
                     int64_t *stride);

/* The same for a contiguous vector of `count` f32. */
float *tensor_floats(ffi_call *call, const dl_tensor *tensor, const char *what, int64_t count,
                     dl_device device);

/* Its first dimension; 0 and an exception where it is None or has another number of dimensions. */
int64_t tensor_rows(ffi_call *call, const dl_tensor *tensor, const char *what, int32_t ndim);

/* The stream that the framework of the tensors uses now; NULL on CPUs. */
void *current_stream(dl_device device);

#endif
