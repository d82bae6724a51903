/* The size rule of public structs, in both directions. */
#include "core/structs.h"

#include <string.h>

#include "core/error.h"

static weft_status size_of(const void *given, size_t least, const char *what, size_t *size) {
  if (given == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "%s is NULL", what);
  memcpy(size, given, sizeof *size);
  if (*size < least || *size > 1 << 16)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "%s.size is %zu, expected at least %zu: initialise it by its _INIT macro",
                      what, *size, least);
  return WEFT_OK;
}

weft_status weft__struct_read(void *out, size_t bytes, const void *in, size_t least,
                              const char *what) {
  size_t size = 0;
  WEFT__TRY(size_of(in, least, what, &size));
  const unsigned char *given = (const unsigned char *)in;
  for (size_t i = bytes; i < size; i++)
    if (given[i] != 0)
      return weft__fail(WEFT_ERR_UNSUPPORTED,
                        "%s uses a field at offset %zu that library version %d does not know", what,
                        i, weft_version());
  memcpy(out, in, size < bytes ? size : bytes);
  memcpy(out, &bytes, sizeof bytes);
  return WEFT_OK;
}

weft_status weft__struct_write(void *out, const void *in, size_t bytes, size_t least,
                               const char *what) {
  size_t size = 0;
  WEFT__TRY(size_of(out, least, what, &size));
  memcpy((unsigned char *)out + sizeof size, (const unsigned char *)in + sizeof size,
         (size < bytes ? size : bytes) - sizeof size);
  return WEFT_OK;
}
