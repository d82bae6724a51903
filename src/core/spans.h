/* The arrays of a call as spans of memory: there when needed, aligned, of a sane stride, and apart
 * from each other where one is written. Messages name fields of `args`. */
#ifndef WEFT_CORE_SPANS_H
#define WEFT_CORE_SPANS_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

typedef struct weft__span {
  const char *name;
  const unsigned char *first;
  int64_t bytes;
} weft__span;

/* `count` elements of `bytes` each. NULL is an empty span, refused where elements are needed. */
weft_status weft__span_array(const char *name, const void *pointer, int64_t count, int64_t bytes,
                             bool needed, weft__span *out);

/* `rows` rows of `hidden` elements, `stride` apart (0: hidden). */
weft_status weft__span_rows(const char *name, const void *pointer, int64_t rows, int64_t stride,
                            int64_t hidden, int64_t bytes, weft__span *out);

/* No output touches another array, and no array the workspace that the caller gave to the plan
 * (NULL: none), which calls write all over. */
weft_status weft__spans_apart(const weft__span *outputs, int n_outputs, const weft__span *inputs,
                              int n_inputs, const void *workspace, int64_t workspace_bytes);

#endif
