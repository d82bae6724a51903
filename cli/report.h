/* Prints what `weft ce` found, as a table, CSV or JSON, on stdout. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "run.h"

typedef struct phase_result {
  ce_phase phase;
  double median_ms, least_ms, tflops;
  double error[CHECK_COUNT];       /* NAN: not checked */
  double perplexity, mean_entropy; /* NAN: none */
  int64_t wrong;
  bool ok;
} phase_result;

typedef struct report {
  const ce_options *options;
  char device[400];
  weft_ce_plan_info plan;
  int64_t workspace_bytes; /* of the rank with the most */
  int64_t counted;         /* tokens that count */
  bool sampled;            /* the oracle checked a sample */
  phase_result results[3];
  int results_count; /* 0: a plan alone */
} report;

/* The floating point operations of a phase: 2·M·H·V for forward, three times that for backward and
 * for step. */
double report_flops(const ce_options *options, ce_phase phase);

/* False when stdout could not be written. */
bool report_print(const report *report);

#endif
