/* Checks of what one rank passes: configs and call arguments. Every refusal names the argument, its
 * value and what was expected. */
#ifndef WEFT_CE_CHECK_H
#define WEFT_CE_CHECK_H

#include "ce/backend.h"

/* Reads the caller's config into *out, checks it, and resolves its defaults (dtypes). */
weft_status weft__ce_config_check(weft_ce_config *out, const weft_ce_config *in);

/* Reads the caller's arguments into *out and checks them for `phase` of `plan`. */
weft_status weft__ce_args_check(weft_ce_args *out, const weft_ce_args *in, const weft_ce_plan *plan,
                                weft__ce_phase phase);

#endif
