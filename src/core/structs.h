/* Growing structs: what a caller of another version passes is read into the library's own layout.
 */
#ifndef WEFT_CORE_STRUCTS_H
#define WEFT_CORE_STRUCTS_H

#include <stddef.h>
#include <weft/weft.h>

/* Copies the caller's struct `in` (whose first field is its size) over `out`, which holds `bytes`
 * bytes of defaults. `least` is the size of the struct's first version. A longer struct of a newer
 * caller is taken when what this library does not know is all zero. */
weft_status weft__struct_read(void *out, size_t bytes, const void *in, size_t least,
                              const char *what);

/* Copies as much of the library's `in` to the caller's `out` as the caller's size asks for, and
 * leaves the caller's size. */
weft_status weft__struct_write(void *out, const void *in, size_t bytes, size_t least,
                               const char *what);

#endif
