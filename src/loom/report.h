/* What `weft check` prints: a table, CSV or JSON, from the same rows. */
#ifndef WEFT_LOOM_REPORT_H
#define WEFT_LOOM_REPORT_H

#include <stdint.h>
#include <stdio.h>

enum report_format { REPORT_TABLE, REPORT_CSV, REPORT_JSON };

/* One protocol, or one protocol with one site dropped. */
struct report_row {
  const char *protocol;
  const char *dropped, *operation; /* NULL: nothing was dropped */
  int seeds, flagged;
  const char *verdict;
  double ms; /* of CPU time a seed */
  int findings;
  char (*text)[512]; /* the different findings, as lines */
  uint64_t *seen;    /* seeds that showed each */
};

struct report {
  FILE *out;
  enum report_format format;
  int rows;
};

void report_begin(struct report *report, int seeds, int lenient);
void report_row(struct report *report, const struct report_row *row);
void report_end(struct report *report, int ok);

#endif
