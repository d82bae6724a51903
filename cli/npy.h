/* NumPy's .npy files: one tensor each. f32, f16, i32, i64, little-endian, C order. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include "tensor.h"

/* Reads the tensor; on success it is the caller's to free. */
bool npy_read(source *source, tensor *tensor, error *error);
bool npy_write(const char *path, const tensor *tensor, error *error);

#endif
