/* The allocator hook and the two functions on it. Counts live blocks, so that the hook cannot be
 * changed while memory of the old one is in use. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include "core/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static void *libc_alloc(void *user, size_t alignment, size_t bytes) {
  (void)user;
  void *pointer = NULL;
  return posix_memalign(&pointer, alignment, bytes) == 0 ? pointer : NULL;
}

static void libc_free(void *user, void *pointer) {
  (void)user;
  free(pointer);
}

static weft_alloc_fn alloc_fn = libc_alloc;
static weft_free_fn free_fn = libc_free;
static void *alloc_user;
static atomic_llong live_blocks;

weft_status weft_allocator_set(weft_alloc_fn alloc, weft_free_fn free, void *user) {
  if ((alloc == NULL) != (free == NULL))
    return weft__fail(WEFT_ERR_ARGUMENT, "allocator_set: alloc and free must both be given or both "
                                         "be NULL");
  const long long live = atomic_load(&live_blocks);
  if (live != 0)
    return weft__fail(WEFT_ERR_BUSY,
                      "allocator_set: %lld blocks of the present allocator are in use", live);
  alloc_fn = alloc != NULL ? alloc : libc_alloc;
  free_fn = free != NULL ? free : libc_free;
  alloc_user = user;
  return WEFT_OK;
}

size_t weft__align(size_t bytes) {
  return (bytes + WEFT__ALIGNMENT - 1) / WEFT__ALIGNMENT * WEFT__ALIGNMENT;
}

weft_status weft__alloc(void **out, size_t bytes, const char *what) {
  *out = NULL;
  if (bytes > PTRDIFF_MAX - WEFT__ALIGNMENT)
    return weft__fail(WEFT_ERR_MEMORY, "%s: %zu bytes is more than memory can address", what,
                      bytes);
  const size_t rounded = weft__align(bytes > 0 ? bytes : 1);
  void *pointer = alloc_fn(alloc_user, WEFT__ALIGNMENT, rounded);
  if (pointer == NULL)
    return weft__fail(WEFT_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
  atomic_fetch_add(&live_blocks, 1);
  memset(pointer, 0, rounded);
  *out = pointer;
  return WEFT_OK;
}

void weft__free(void *pointer) {
  if (pointer == NULL) return;
  free_fn(alloc_user, pointer);
  atomic_fetch_sub(&live_blocks, 1);
}
