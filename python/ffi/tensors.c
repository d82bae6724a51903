/* Checks of tensors; see tensors.h. */
#include "tensors.h"

#include <inttypes.h>
#include <stdio.h>

/* An array of 16-bit words stands for bf16 and one of bytes for E4M3 where these are expected,
 * since NumPy has neither. */
static bool is_dtype(dl_dtype d, int32_t expected) {
  if (d.lanes != 1) return false;
  switch (expected) {
  case WEFT_F32:
    return d.code == DL_FLOAT && d.bits == 32;
  case WEFT_F16:
    return d.code == DL_FLOAT && d.bits == 16;
  case WEFT_BF16:
    return d.bits == 16 && (d.code == DL_BFLOAT || d.code == DL_UINT);
  case WEFT_I32:
    return d.code == DL_INT && d.bits == 32;
  case WEFT_I64:
    return d.code == DL_INT && d.bits == 64;
  case WEFT_E4M3:
    return d.bits == 8 && (d.code == DL_E4M3 || d.code == DL_UINT);
  default:
    return d.bits == 32 && d.code <= DL_FLOAT;
  }
}

static const char *dtype_name(int32_t dtype) {
  static const char *const names[] = {"32-bit words", "f32",   "bf16", "f16",
                                      "int32",        "int64", "e4m3"};
  return names[dtype];
}

static const char *dl_name(dl_dtype d, char text[40]) {
  static const char *const names[] = {"int",    "uint",    "float", "handle",
                                      "bfloat", "complex", "bool"};
  if (d.code < sizeof names / sizeof names[0])
    snprintf(text, 40, "%s%d", names[d.code], d.bits);
  else
    snprintf(text, 40, "DLPack code %d, %d bits", d.code, d.bits);
  return text;
}

static int32_t device_kind(int32_t type) {
  return type == DL_CUDA_HOST ? DL_CPU : type;
}

static const char *device_name(dl_device d, char text[40]) {
  const int32_t kind = device_kind(d.type);
  if (kind == DL_CPU)
    snprintf(text, 40, "the CPU");
  else if (kind == DL_CUDA)
    snprintf(text, 40, "GPU %d", d.id);
  else
    snprintf(text, 40, "DLPack device %d:%d", d.type, d.id);
  return text;
}

static void check_place(ffi_call *call, const dl_tensor *t, const tensor_rule *rule) {
  char found[40], wanted[40];
  const int32_t kind = device_kind(t->device.type);
  if (!is_dtype(t->dtype, rule->dtype))
    raise_error(call, "TypeError", "args.%s is of dtype %s, expected %s", rule->what,
                dl_name(t->dtype, found), dtype_name(rule->dtype));
  else if (kind != rule->device.type || (kind == DL_CUDA && t->device.id != rule->device.id))
    raise_error(call, "ValueError", "args.%s is on %s, expected %s, where the plan is", rule->what,
                device_name(t->device, found), device_name(rule->device, wanted));
}

static void check_shape(ffi_call *call, const dl_tensor *t, const tensor_rule *rule) {
  if (t->ndim != rule->ndim) {
    raise_error(call, "ValueError", "args.%s has %d dimensions, expected %d", rule->what, t->ndim,
                rule->ndim);
    return;
  }
  for (int32_t i = 0; i < t->ndim; i++)
    if (rule->shape[i] >= 0 && t->shape[i] != rule->shape[i])
      raise_error(call, "ValueError", "args.%s has %" PRId64 " in dimension %d, expected %" PRId64,
                  rule->what, t->shape[i], i, rule->shape[i]);
}

/* All dimensions from `first` on must be contiguous. */
static void check_strides(ffi_call *call, const dl_tensor *t, const char *what, int32_t first) {
  int64_t expected = 1;
  if (t->strides == NULL) return;
  for (int32_t i = t->ndim - 1; i >= first; i--) {
    if (t->shape[i] > 1 && t->strides[i] != expected)
      raise_error(call, "ValueError",
                  "args.%s has stride %" PRId64 " in dimension %d, expected %" PRId64, what,
                  t->strides[i], i, expected);
    expected *= t->shape[i];
  }
}

void *tensor_address(ffi_call *call, const dl_tensor *t, const tensor_rule *rule, int64_t *stride) {
  if (stride != NULL) *stride = 0;
  if (t == NULL || call->failed) return NULL;
  check_place(call, t, rule);
  check_shape(call, t, rule);
  if (call->failed) return NULL;
  int64_t elements = 1, row = 1;
  for (int32_t i = 0; i < t->ndim; i++) {
    elements *= t->shape[i];
    if (i > 0) row *= t->shape[i];
  }
  if (elements == 0) return NULL;
  check_strides(call, t, rule->what, stride != NULL ? 1 : 0);
  if (call->failed) return NULL;
  if (stride != NULL && t->shape[0] > 1 && t->strides != NULL) {
    *stride = t->strides[0];
    /* the library takes 0 for contiguous, and names what else is wrong */
    if (*stride == 0)
      raise_error(call, "ValueError",
                  "args.%s_stride is 0, expected at least %" PRId64 " (its rows lie on each other)",
                  rule->what, row);
  }
  return (char *)t->data + t->byte_offset;
}

float *tensor_floats(ffi_call *call, const dl_tensor *t, const char *what, int64_t count,
                     dl_device device) {
  const tensor_rule rule = {what, 1, {count, 0, 0}, WEFT_F32, device};
  return (float *)tensor_address(call, t, &rule, NULL);
}

int64_t tensor_rows(ffi_call *call, const dl_tensor *t, const char *what, int32_t ndim) {
  if (t == NULL)
    raise_error(call, "TypeError", "%s: args.%s is None, expected a tensor", call->name, what);
  else if (t->ndim != ndim)
    raise_error(call, "ValueError", "args.%s has %d dimensions, expected %d", what, t->ndim, ndim);
  else
    return t->shape[0];
  return 0;
}

void *current_stream(dl_device device) {
  return device.type == DL_CUDA ? TVMFFIEnvGetStream(DL_CUDA, device.id) : NULL;
}
