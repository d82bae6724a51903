/* The part of TVM FFI's C ABI (apache-tvm-ffi 0.1) and of DLPack's that the exports need: values,
 * tensors, strings, errors, functions and streams. Declared here, so that nothing of either has to
 * be there when this is built; a test compares each offset and constant with the headers of the
 * installed package. The functions are found when the module is loaded, in the process of Python's
 * tvm_ffi. Knows nothing of weft. */
#ifndef WEFT_FFI_ABI_H
#define WEFT_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 }; /* kinds of device */
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_E4M3 = 10 };

typedef struct dl_device {
  int32_t type, id;
} dl_device;

typedef struct dl_dtype {
  uint8_t code, bits;
  uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
  void *data;
  dl_device device;
  int32_t ndim;
  dl_dtype dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: contiguous */
  uint64_t byte_offset;
} dl_tensor;

enum ffi_type {
  FFI_NONE = 0,
  FFI_INT = 1,
  FFI_BOOL = 2,
  FFI_FLOAT = 3,
  FFI_POINTER = 4,
  FFI_DL_TENSOR = 7, /* a dl_tensor that the caller keeps */
  FFI_RAW_STRING = 8,
  FFI_BYTES_VIEW = 9, /* an ffi_bytes that the caller keeps */
  FFI_SMALL_STRING = 11,
  FFI_SMALL_BYTES = 12,
  FFI_STRING = 65, /* objects: a header, then an ffi_bytes (65, 66) or a dl_tensor (70) */
  FFI_BYTES = 66,
  FFI_FUNCTION = 68,
  FFI_TENSOR = 70
};

typedef struct ffi_object {
  uint64_t references;
  int32_t type;
  uint32_t padding;
  union {
    void (*deleter)(void *self, int flags);
    int64_t align;
  } u;
} ffi_object;

typedef struct ffi_any {
  int32_t type;
  uint32_t length; /* of a small string; else 0 */
  union {
    int64_t integer;
    double number;
    void *pointer;
    const char *text;
    ffi_object *object;
    char small[8];
  } u;
} ffi_any;

typedef struct ffi_bytes {
  const char *data;
  size_t size;
} ffi_bytes;

int TVMFFIObjectIncRef(void *object);
int TVMFFIObjectDecRef(void *object);
int TVMFFIFunctionCall(void *function, ffi_any *args, int32_t count, ffi_any *result);
void TVMFFIErrorMoveFromRaised(void **error);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
int TVMFFIStringFromByteArray(const ffi_bytes *input, ffi_any *out);
int TVMFFIBytesFromByteArray(const ffi_bytes *input, ffi_any *out);
void *TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);

#endif
