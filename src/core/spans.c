/* Checks on the arrays of a call. */
#include "core/spans.h"

#include <inttypes.h>

#include "core/error.h"

weft_status weft__span_array(const char *name, const void *pointer, int64_t count, int64_t bytes,
                             bool needed, weft__span *out) {
  out->name = name;
  out->first = (const unsigned char *)pointer;
  out->bytes = pointer != NULL ? count * bytes : 0;
  if (pointer == NULL && needed && count > 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "args.%s is NULL, expected %" PRId64 " elements", name,
                      count);
  if ((uintptr_t)pointer % (uintptr_t)bytes != 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.%s is %p, expected alignment to its %" PRId64 "-byte elements", name,
                      pointer, bytes);
  return WEFT_OK;
}

weft_status weft__span_rows(const char *name, const void *pointer, int64_t rows, int64_t stride,
                            int64_t hidden, int64_t bytes, weft__span *out) {
  if (stride != 0 && (stride < hidden || stride > INT32_MAX))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.%s_stride is %" PRId64 ", expected 0 or %" PRId64
                      " (hidden) to 2^31 − 1",
                      name, stride, hidden);
  if (stride == 0) stride = hidden;
  if (rows > 1 && stride > ((int64_t)1 << 58) / rows)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.%s_stride is %" PRId64 ": %" PRId64
                      " rows of that reach past all memory, expected less than 2^58 elements",
                      name, stride, rows);
  return weft__span_array(name, pointer, rows > 0 ? (rows - 1) * stride + hidden : 0, bytes, true,
                          out);
}

static bool overlap(const weft__span *a, const weft__span *b) {
  return a->bytes > 0 && b->bytes > 0 && a->first < b->first + b->bytes &&
         b->first < a->first + a->bytes;
}

weft_status weft__spans_apart(const weft__span *outputs, int n_outputs, const weft__span *inputs,
                              int n_inputs, const void *workspace, int64_t workspace_bytes) {
  for (int o = 0; o < n_outputs; o++)
    for (int i = 0; i < n_inputs + o; i++) {
      const weft__span *const a = &outputs[o];
      const weft__span *const b = i < n_inputs ? &inputs[i] : &outputs[i - n_inputs];
      if (overlap(a, b))
        return weft__fail(WEFT_ERR_ARGUMENT, "args.%s overlaps args.%s", a->name, b->name);
    }
  const weft__span own = {"workspace", (const unsigned char *)workspace,
                          workspace != NULL ? workspace_bytes : 0};
  for (int i = 0; i < n_inputs + n_outputs; i++) {
    const weft__span *const a = i < n_inputs ? &inputs[i] : &outputs[i - n_inputs];
    if (overlap(a, &own))
      return weft__fail(WEFT_ERR_ARGUMENT, "args.%s is %p, which overlaps config.workspace",
                        a->name, (const void *)a->first);
  }
  return WEFT_OK;
}
