/* See device.h. */
#include "device.h"

#include <weft/weft.h>

static bool done(weft_status status, error *error) {
  return status == WEFT_OK || error_set(error, "%s", weft_last_error());
}

bool device_add(device_memory *m, const void **pointer, int64_t bytes, bool output, error *error) {
  void *copy = NULL;
  if (*pointer == NULL || bytes == 0) return true;
  if (m->count == DEVICE_ARRAYS) return error_set(error, "more than %d arrays", DEVICE_ARRAYS);
  if (!done(weft_memory_alloc(m->gpu, bytes, &copy), error)) return false;
  m->arrays[m->count++] = (device_array){(void *)*pointer, copy, bytes, output};
  if (!done(weft_memory_copy(m->gpu, copy, *pointer, bytes, NULL), error)) return false;
  *pointer = copy;
  return done(weft_memory_synchronize(m->gpu, NULL), error);
}

static bool copy_outputs(device_memory *m, bool back, error *error) {
  for (int i = 0; i < m->count; i++) {
    const device_array *a = &m->arrays[i];
    if (a->output && !done(weft_memory_copy(m->gpu, back ? a->host : a->copy,
                                            back ? a->copy : a->host, a->bytes, NULL),
                           error))
      return false;
  }
  return m->count == 0 || done(weft_memory_synchronize(m->gpu, NULL), error);
}

bool device_send_outputs(device_memory *m, error *error) {
  return copy_outputs(m, false, error);
}

bool device_fetch_outputs(device_memory *m, error *error) {
  return copy_outputs(m, true, error);
}

void device_free(device_memory *m) {
  for (int i = 0; i < m->count; i++)
    weft_memory_free(m->gpu, m->arrays[i].copy);
  m->count = 0;
}
