/* .safetensors files: a JSON header, then the tensors' bytes. */
#ifndef CLI_SAFETENSORS_H
#define CLI_SAFETENSORS_H

#include "tensor.h"

/* Reads the tensor `name` after checking the whole header; on success it is the caller's to free.
 */
bool safetensors_read(source *source, const char *name, tensor *tensor, error *error);

typedef struct named_tensor {
  const char *name;
  const tensor *tensor;
} named_tensor;

/* Writes tensors in the order given. On failure the partial file is removed. */
bool safetensors_write(const char *path, const named_tensor *tensors, int count, error *error);

#endif
