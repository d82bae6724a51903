/* Any bytes at all as a .npy file: read or refused, never a crash, and what is read fits the file.
 */
#include <stddef.h>
#include <stdlib.h>

#include "dtype.h"
#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  source source;
  tensor tensor;
  error error;
  source_memory(&source, data, (int64_t)size);
  if (!npy_read(&source, &tensor, &error)) return 0;
  if (tensor.count * dtype_bytes(tensor.dtype) > (int64_t)size) abort();
  tensor_free(&tensor);
  return 0;
}
