/* One call from outside: takes its arguments in order, checks their types, holds the handles that
 * it uses, and turns a weft_status into an exception. After a wrong argument the rest are taken as
 * zero, and the first error counts. Knows the ABI and the public API. */
#ifndef WEFT_FFI_CALL_H
#define WEFT_FFI_CALL_H

#include <stdarg.h>
#include <stdbool.h>
#include <weft/weft.h>

#include "abi.h"

typedef enum handle_kind { ANY_HANDLE, COMM, CE_PLAN, EP_PLAN, EP_HANDLE } handle_kind;

enum { CALL_HANDLES = 2 };

typedef struct ffi_call {
  const char *name;
  const ffi_any *args;
  int32_t count, next;
  int32_t handles_held;
  int64_t handles[CALL_HANDLES];
  bool failed; /* an exception is raised */
} ffi_call;

#define EXPORT(function)                                                                           \
  __attribute__((visibility("default"))) int __tvm_ffi_##function(void *self, const ffi_any *args, \
                                                                  int32_t count, ffi_any *result); \
  int __tvm_ffi_##function(void *self, const ffi_any *values, int32_t count, ffi_any *result)

#define CALL(function)                                                                             \
  ffi_call call_ = {function, values, count, 0, 0, {0, 0}, false}, *const call = &call_;           \
  (void)self;                                                                                      \
  (void)result

void raise_error(ffi_call *call, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int64_t take_int(ffi_call *call, const char *what);
int32_t take_int32(ffi_call *call, const char *what);
float take_float(ffi_call *call, const char *what);
const dl_tensor *take_tensor(ffi_call *call, const char *what); /* NULL for None */
ffi_bytes take_text(ffi_call *call, const char *what);          /* a string or bytes */
void *take_function(ffi_call *call, const char *what);          /* not kept */
void *take_handle(ffi_call *call, const char *what,
                  handle_kind); /* NULL for None; held till the end */

/* The end of each export: lets go of handles; 0, or −1 with an exception raised. */
bool taken(ffi_call *call); /* all arguments were there and right */
int finish(ffi_call *call, weft_status status);

/* ---- Results ---- */
void give_int(ffi_any *result, int64_t value);
void give_text(ffi_call *call, ffi_any *result, const char *text);

#endif
