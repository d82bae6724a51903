/* What `weft check` prints: a table, CSV or JSON, from the same rows. Knows the list of protocols,
 * runs nothing. */
#ifndef CLI_LOOM_REPORT_H
#define CLI_LOOM_REPORT_H

#include <stdint.h>
#include <stdio.h>

/* One protocol, or one protocol with one site dropped. */
struct loom_row {
  const char *protocol;
  const char *dropped, *operation; /* NULL: nothing was dropped */
  int seeds, flagged;
  const char *verdict;
  double ms; /* of CPU time a seed */
  int findings;
  char (*text)[512]; /* the different findings, as lines */
  uint64_t *seen;    /* seeds that showed each */
};

struct loom_report {
  FILE *out;
  int format; /* FORMAT_TABLE and so on, ce_options.h */
  int rows;
};

void loom_report_begin(struct loom_report *report, int seeds, int lenient);
void loom_report_row(struct loom_report *report, const struct loom_row *row);
void loom_report_end(struct loom_report *report, int ok);

/* `weft check --list`. */
void loom_report_list(FILE *out, int format, int lenient);

#endif
