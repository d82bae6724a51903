/* Host memory: one allocator, replaceable by the caller, that every other file uses. */
#ifndef WEFT_CORE_MEMORY_H
#define WEFT_CORE_MEMORY_H

#include <stddef.h>
#include <weft/weft.h>

enum { WEFT__ALIGNMENT = 64 }; /* a cache line, and the widest vector register */

/* `bytes` of zeroed memory aligned to WEFT__ALIGNMENT, in *out. WEFT_ERR_MEMORY names `what` and
 * the size; *out is NULL then. Zero bytes give a valid pointer. */
weft_status weft__alloc(void **out, size_t bytes, const char *what);

/* NULL is allowed. */
void weft__free(void *pointer);

/* bytes rounded up to a multiple of WEFT__ALIGNMENT */
size_t weft__align(size_t bytes);

#endif
