/* Checks of what one rank passes: configs and call arguments. Every refusal names the argument, its
 * value and what was expected. */
#ifndef WEFT_EP_CHECK_H
#define WEFT_EP_CHECK_H

#include "ep/backend.h"

/* Reads the caller's config into *out and checks it; `ranks` is the team's. */
weft_status weft__ep_config_check(weft_ep_config *out, const weft_ep_config *in, int64_t ranks);

/* Which half of an operation the arguments are for. */
enum { WEFT__EP_SEND = 1, WEFT__EP_RECEIVE = 2 };

/* Read the caller's arguments into *out and check them for those halves of an operation. */
weft_status weft__ep_dispatch_check(weft_ep_dispatch_args *out, const weft_ep_dispatch_args *in,
                                    const weft_ep_handle *handle, int halves);
weft_status weft__ep_combine_check(weft_ep_combine_args *out, const weft_ep_combine_args *in,
                                   const weft_ep_handle *handle, int halves);

#endif
