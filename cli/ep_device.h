/* The arrays of one rank of `weft ep` on its GPU, beside those of the host by which results are
 * hashed and checked. Rows are copied an expert at a time, since most of a slab is empty. */
#ifndef CLI_EP_DEVICE_H
#define CLI_EP_DEVICE_H

#include "ep_run.h"

/* Makes the arrays and copies the inputs; the rank has its plan. */
bool ep_device_make(const ep_run *run, int64_t rank);
void ep_device_free(ep_rank *rank);

/* Points the arguments to the GPU's arrays. */
void ep_device_dispatch(const ep_rank *rank, weft_ep_dispatch_args *args);
void ep_device_combine(const ep_rank *rank, weft_ep_combine_args *args);

/* The rows in place, and out, from the host to the GPU: what is there before a round. */
bool ep_device_put(const ep_run *run, int64_t rank, int phase);
/* What a phase has written, to the host. Waits for the rank's work. */
bool ep_device_fetch(const ep_run *run, int64_t rank, int phase);
/* Combine's input. */
bool ep_device_put_rows(const ep_run *run, int64_t rank);

#endif
