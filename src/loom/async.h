/* Async operations: made by bulk.c, tensor.c and wgmma.c, run by the scheduler. */
#ifndef WEFT_LOOM_ASYNC_H
#define WEFT_LOOM_ASYNC_H

#include "shadow.h"

/* A fresh operation of the running thread, with what the thread knows now. */
struct op *op_new(struct loom_site *site, enum op_kind kind);
/* Hands it to the scheduler. What the issuer does from now on is unordered with it. */
void op_issue(struct op *op);
/* Moves a piece; true when the operation has ended (and is freed). */
int op_step(struct op *op);
void op_free(struct op *op);

/* Checks addresses of copies; the run stops after a finding. */
void copy_check(struct loom_site *site, uint64_t dst, uint64_t src, uint32_t bytes);
void shared_check(struct loom_site *site, struct cta *cta, uint32_t address, uint32_t bytes);
/* Loads of a box into one CTA, or with a mask into several of the cluster. */
void load_issue(struct loom_site *site, const struct box *box, struct smem bar, uint32_t mask);
/* Stores join the open bulk group of the thread. */
void store_issue(struct loom_site *site, const struct box *box, int reduce);

/* box.c: where unit u of a box lies. Bytes [*low, *high) of the unit are inside the tensor. */
uint32_t box_shared(const struct box *box, uint32_t unit);
uint64_t box_global(const struct box *box, uint32_t unit, uint32_t *low, uint32_t *high);
/* The same for stores, which clip dimension 0 in whole units: what straddles the edge is written
 * whole. */
uint64_t box_global_store(const struct box *box, uint32_t unit, uint32_t *low, uint32_t *high);

/* wgmma.c */
void wgmma_run(struct op *op);
/* What a stopped run leaves in a warpgroup. */
void warpgroup_free(struct warpgroup *w);

#endif
