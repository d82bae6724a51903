/* Writes .safetensors files: eight bytes of header length, a JSON header, the tensors' bytes. Knows
 * nothing of weft. */
#ifndef SAFETENSORS_WRITE_H
#define SAFETENSORS_WRITE_H

#include <stdint.h>

struct tensor {
  const char *name;  /* needs no JSON escapes */
  const char *dtype; /* "F32", "I64", … */
  int64_t element_bytes;
  int64_t shape[2]; /* a second extent of 0 makes a vector */
  const void *data; /* contiguous, little-endian */
};

/* Returns 0, or −1 with errno set. */
int safetensors_write(const char *path, const struct tensor *tensors, int count);

#endif
