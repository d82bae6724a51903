/* Fibers: one stack each, switched by hand. Knows nothing of GPUs. */
#ifndef WEFT_LOOM_FIBER_H
#define WEFT_LOOM_FIBER_H

#include <stddef.h>

/* Saves the running context in *save and continues `to`. */
void fiber_switch(void **save, void *to);
/* A context that will call entry() on [stack, stack + bytes); entry must not return. `colour`
 * spreads the tops of the stacks over the cache sets. */
void *fiber_make(void *stack, size_t bytes, unsigned colour, void (*entry)(void));

#endif
