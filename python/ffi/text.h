/* Answers of more than one value, as JSON in a string. */
#ifndef WEFT_FFI_TEXT_H
#define WEFT_FFI_TEXT_H

#include "call.h"

/* Writes `text` with its quotes, escaped, into `out`; cut where it does not fit. Returns out. */
const char *json_string(char *out, size_t bytes, const char *text);

void give_async_error(ffi_call *call, ffi_any *result, const weft_async_error *error);

#endif
