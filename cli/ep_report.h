/* Prints what `weft ep` found, as a table, CSV or JSON. */
#ifndef CLI_EP_REPORT_H
#define CLI_EP_REPORT_H

#include "ep_run.h"

/* False when stdout can't be written. */
bool ep_report_print(const ep_run *run, const char *device);

/* Whether a phase is right as far as it was checked. */
bool ep_result_ok(const ep_result *result);

#endif
