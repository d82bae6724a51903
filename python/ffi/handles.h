/* The table of handles: numbers for what the library gives out, so that no number can be mistaken.
 * A call holds the handles that it takes until it ends. */
#ifndef WEFT_FFI_HANDLES_H
#define WEFT_FFI_HANDLES_H

#include "call.h"

/* Keeps a pointer under a number above 0. Where there is no memory: 0, and an exception. `extra` is
 * freed with the handle by free_extra (NULL: nothing). */
int64_t handle_keep(ffi_call *call, handle_kind kind, void *pointer, void *extra,
                    void (*free_extra)(void *));

/* What is kept with the handle that the call took as its first. */
void *handle_extra(const ffi_call *call);

/* Destroys what stands behind the one handle that the call took (None: nothing), and its number. */
weft_status handle_destroy(ffi_call *call, weft_status (*destroy)(void *));

/* For take_handle() and finish(). An exception and NULL where the number is not alive, or another
 * kind. */
void *handle_acquire(ffi_call *call, const char *what, handle_kind kind, int64_t number);
void handle_release(int64_t number);

#endif
