/* Writes .safetensors files; see safetensors_write.h. The header is padded with spaces, so that the
 * data of the first tensor is aligned to eight bytes. */
#include "safetensors_write.h"

#include <stdio.h>
#include <string.h>

static int64_t tensor_bytes(const struct tensor *tensor) {
  return tensor->shape[0] * (tensor->shape[1] ? tensor->shape[1] : 1) * tensor->element_bytes;
}

int safetensors_write(const char *path, const struct tensor *tensors, int count) {
  char header[4096], shape[64];
  int64_t length = 0, offset = 0;
  for (int i = 0; i < count; i++) {
    const struct tensor *t = &tensors[i];
    snprintf(shape, sizeof shape, t->shape[1] ? "[%lld,%lld]" : "[%lld]", (long long)t->shape[0],
             (long long)t->shape[1]);
    length += snprintf(header + length, sizeof header - (size_t)length,
                       "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%lld,%lld]}",
                       i ? ',' : '{', t->name, t->dtype, shape, (long long)offset,
                       (long long)(offset + tensor_bytes(t)));
    if (length + 16 > (int64_t)sizeof header) return -1;
    offset += tensor_bytes(t);
  }
  header[length++] = '}';
  while (length % 8)
    header[length++] = ' ';

  FILE *file = fopen(path, "wb");
  if (!file) return -1;
  unsigned char prefix[8];
  for (int i = 0; i < 8; i++)
    prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
  int written =
      fwrite(prefix, 1, 8, file) == 8 && fwrite(header, 1, (size_t)length, file) == (size_t)length;
  for (int i = 0; i < count && written; i++) {
    size_t bytes = (size_t)tensor_bytes(&tensors[i]);
    written = fwrite(tensors[i].data, 1, bytes, file) == bytes;
  }
  return fclose(file) == 0 && written ? 0 : -1;
}
