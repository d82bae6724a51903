/* Words through which threads synchronise: which releases a load of an address may find (PTX 8.8,
 * 8.9.4), and who sleeps until an address is written. */
#ifndef WEFT_LOOM_WORD_H
#define WEFT_LOOM_WORD_H

#include "shadow.h"

/* A strong store, or with `keeps_chain` an atomic read-modify-write, which leaves the releases
 * before it in force. release: order is release or acq_rel. */
void word_store(struct region *region, size_t offset, int release, int scope, int keeps_chain);
void word_load(struct region *region, size_t offset, int acquire, int scope);
/* Any write: weak stores and copies break a chain of releases; sleepers look again. */
void word_overwritten(struct region *region, size_t offset, size_t bytes);
void word_wake(struct region *region, size_t offset, size_t bytes);
void words_reset(void);

#endif
