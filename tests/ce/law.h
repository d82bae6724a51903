/* What the cmocka tests of ce share: a case holds, or the test fails with the case in words. */
#ifndef WEFT_TESTS_CE_LAW_H
#define WEFT_TESTS_CE_LAW_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h> /* needs the ones above */

#include "ce_case.h"
#include "support/sanitized.h"

static inline void law_holds_for(const ce_case *c, const ce_problem *p) {
  char message[500], text[600];
  if (!ce_check_problem(c, p, message, sizeof message))
    fail_msg("%s\n  %s", ce_describe(c, text, sizeof text), message);
}

static inline void law_holds(const ce_case *c) {
  char message[500], text[600];
  if (!ce_check(c, message, sizeof message))
    fail_msg("%s\n  %s", ce_describe(c, text, sizeof text), message);
}

/* Runs the case and hands its outputs and errors on, after they were found right. */
static inline ce_output *law_outputs(const ce_case *c, const ce_problem *p, ce_errors *errors) {
  char message[500], text[600];
  ce_output *outputs = (ce_output *)calloc((size_t)c->ranks, sizeof *outputs);
  if (!ce_run(c, p, outputs, message, sizeof message) ||
      !ce_compare(c, p, outputs, errors, message, sizeof message))
    fail_msg("%s\n  %s", ce_describe(c, text, sizeof text), message);
  return outputs;
}

static inline void law_free(const ce_case *c, ce_output *outputs) {
  ce_outputs_free(c, outputs);
  free(outputs);
}

#endif
