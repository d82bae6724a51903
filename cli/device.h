/* Copies of arrays on a GPU, for programs of this library alone. */
#ifndef CLI_DEVICE_H
#define CLI_DEVICE_H

#include "base.h"

#include <stdint.h>

enum { DEVICE_ARRAYS = 16 };

typedef struct device_array {
  void *host, *copy;
  int64_t bytes;
  bool output;
} device_array;

/* Arrays of the host that have a copy on GPU `gpu`. */
typedef struct device_memory {
  int32_t gpu;
  int count;
  device_array arrays[DEVICE_ARRAYS];
} device_memory;

/* Makes a copy, with the host's content, and points *pointer to it; nothing for NULL or 0 bytes. */
bool device_add(device_memory *memory, const void **pointer, int64_t bytes, bool output,
                error *error);

/* Outputs to the GPU (what they hold before a run) or back. Waits until it is done. */
bool device_send_outputs(device_memory *memory, error *error);
bool device_fetch_outputs(device_memory *memory, error *error);

void device_free(device_memory *memory);

#endif
