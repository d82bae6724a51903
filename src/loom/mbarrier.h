/* What other files need of mbarriers. */
#ifndef WEFT_LOOM_MBARRIER_H
#define WEFT_LOOM_MBARRIER_H

#include "state.h"

/* The barrier at an address of a CTA for an operation of the running thread; the run stops when
 * there is none. */
struct mbarrier *mbarrier_at(struct loom_site *site, struct cta *cta, uint32_t address);
/* `bytes` of an async operation have landed on its barrier. */
void mbarrier_complete_tx(const struct op *op, uint32_t bytes);

#endif
