/* Arguments, results and errors of a call; see call.h. */
#include "call.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "handles.h"

void raise_error(ffi_call *call, const char *kind, const char *format, ...) {
  char text[1024];
  va_list list;
  if (call->failed) return;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  call->failed = true;
}

static const char *type_name(const ffi_any *value) {
  switch (value->type) {
  case FFI_NONE:
    return "None";
  case FFI_INT:
    return "an int";
  case FFI_BOOL:
    return "a bool";
  case FFI_FLOAT:
    return "a float";
  case FFI_POINTER:
    return "a pointer";
  case FFI_RAW_STRING:
  case FFI_SMALL_STRING:
  case FFI_STRING:
    return "a string";
  case FFI_BYTES_VIEW:
  case FFI_SMALL_BYTES:
  case FFI_BYTES:
    return "bytes";
  case FFI_FUNCTION:
    return "a function";
  case FFI_DL_TENSOR:
  case FFI_TENSOR:
    return "a tensor";
  default:
    return "an object of another kind";
  }
}

static const ffi_any *next(ffi_call *call, const char *what) {
  static const ffi_any none = {FFI_NONE, 0, {0}};
  if (call->failed) return &none;
  if (call->next >= call->count) {
    raise_error(call, "TypeError", "%s: argument %d (%s) is missing", call->name, call->next + 1,
                what);
    return &none;
  }
  return &call->args[call->next++];
}

static void wrong_type(ffi_call *call, const char *what, const ffi_any *value,
                       const char *expected) {
  raise_error(call, "TypeError", "%s: %s is %s, expected %s", call->name, what, type_name(value),
              expected);
}

int64_t take_int(ffi_call *call, const char *what) {
  const ffi_any *value = next(call, what);
  if (value->type == FFI_INT || value->type == FFI_BOOL) return value->u.integer;
  wrong_type(call, what, value, "an int");
  return 0;
}

int32_t take_int32(ffi_call *call, const char *what) {
  const int64_t value = take_int(call, what);
  if (value < INT32_MIN || value > INT32_MAX) {
    raise_error(call, "ValueError", "%s: %s is %" PRId64 ", expected a number of 32 bits",
                call->name, what, value);
    return 0;
  }
  return (int32_t)value;
}

float take_float(ffi_call *call, const char *what) {
  const ffi_any *value = next(call, what);
  if (value->type == FFI_FLOAT) return (float)value->u.number;
  if (value->type == FFI_INT) return (float)value->u.integer;
  wrong_type(call, what, value, "a float");
  return 0.0f;
}

const dl_tensor *take_tensor(ffi_call *call, const char *what) {
  const ffi_any *value = next(call, what);
  if (value->type == FFI_NONE) return NULL;
  if (value->type == FFI_DL_TENSOR) return (const dl_tensor *)value->u.pointer;
  if (value->type == FFI_TENSOR) return (const dl_tensor *)(const void *)(value->u.object + 1);
  wrong_type(call, what, value, "a tensor or None");
  return NULL;
}

ffi_bytes take_text(ffi_call *call, const char *what) {
  const ffi_any *value = next(call, what);
  switch (value->type) {
  case FFI_RAW_STRING:
    return (ffi_bytes){value->u.text, strlen(value->u.text)};
  case FFI_SMALL_STRING:
  case FFI_SMALL_BYTES:
    return (ffi_bytes){value->u.small, value->length};
  case FFI_BYTES_VIEW:
    return *(const ffi_bytes *)value->u.pointer;
  case FFI_STRING:
  case FFI_BYTES:
    return *(const ffi_bytes *)(const void *)(value->u.object + 1);
  default:
    wrong_type(call, what, value, "a string or bytes");
    return (ffi_bytes){"", 0};
  }
}

void *take_function(ffi_call *call, const char *what) {
  const ffi_any *value = next(call, what);
  if (value->type == FFI_FUNCTION) return value->u.object;
  wrong_type(call, what, value, "a function");
  return NULL;
}

void *take_handle(ffi_call *call, const char *what, handle_kind kind) {
  const ffi_any *value = next(call, what);
  if (call->failed || value->type == FFI_NONE) return NULL;
  if (value->type != FFI_INT) {
    wrong_type(call, what, value, "a handle");
    return NULL;
  }
  void *pointer = handle_acquire(call, what, kind, value->u.integer);
  if (pointer != NULL) call->handles[call->handles_held++] = value->u.integer;
  return pointer;
}

bool taken(ffi_call *call) {
  if (call->next < call->count)
    raise_error(call, "TypeError", "%s: %d arguments, expected %d", call->name, call->count,
                call->next);
  return !call->failed;
}

static const char *kind_of(weft_status status) {
  switch (status) {
  case WEFT_ERR_ARGUMENT:
  case WEFT_ERR_WORKSPACE:
  case WEFT_ERR_MISMATCH:
  case WEFT_ERR_TARGET:
    return "ValueError";
  case WEFT_ERR_UNSUPPORTED:
    return "NotImplementedError";
  case WEFT_ERR_MEMORY:
    return "MemoryError";
  default:
    return "RuntimeError";
  }
}

int finish(ffi_call *call, weft_status status) {
  if (status != WEFT_OK) raise_error(call, kind_of(status), "%s", weft_last_error());
  for (int32_t i = 0; i < call->handles_held; i++)
    handle_release(call->handles[i]);
  return call->failed ? -1 : 0;
}

void give_int(ffi_any *result, int64_t value) {
  result->type = FFI_INT;
  result->length = 0;
  result->u.integer = value;
}

void give_text(ffi_call *call, ffi_any *result, const char *text) {
  const ffi_bytes view = {text, strlen(text)};
  if (TVMFFIStringFromByteArray(&view, result) != 0) call->failed = true; /* it has raised */
}
