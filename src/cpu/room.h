/* Limits on this process's address space, and whether there is room for so much more. OpenBLAS
 * needs to be asked for: where mmap refuses its buffers, it tries again for ever. Knows core alone.
 */
#ifndef WEFT_CPU_ROOM_H
#define WEFT_CPU_ROOM_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

/* Whether anything but the machine's memory limits what this process may map. */
bool weft__room_limited(void);

/* WEFT_OK where `bytes` more can be mapped (they are not kept), or MEMORY with a message: `what`
 * needs them, the limit, and `advice`. */
weft_status weft__room_try(int64_t bytes, const char *what, const char *advice);

/* Bytes of address space that a new thread takes for its stack. */
int64_t weft__room_of_thread(void);

#endif
