/* `weft ce --plan`: asks the library for a plan without a device. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "ce_options.h"

/* Prints the plan of rank 0, the rank with the most rows. Returns an exit code. */
int plan_print(ce_options *options, error *error);

#endif
