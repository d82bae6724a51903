/* Runs the seeds of a protocol, in as many processes as there are cores, and gathers what they
 * found. loom has one world a process, so each process is forked, and takes the next seed that
 * nobody has taken. */
#ifndef CLI_LOOM_SEEDS_H
#define CLI_LOOM_SEEDS_H

#include <weft/loom.h>

#include "base.h"

enum { LOOM_TEXTS_MAX = 16 };

/* What the seeds of one row showed. The same kind between the same sites is one text. */
struct loom_tally {
  int seeds, flagged; /* run; with at least one finding */
  double cpu_ms;      /* of all seeds */
  int findings;
  struct {
    enum loom_finding_kind kind;
    const struct loom_site *now, *before;
  } key[LOOM_TEXTS_MAX];
  char text[LOOM_TEXTS_MAX][512];
  uint64_t seen[LOOM_TEXTS_MAX]; /* seeds that showed it */
};

struct loom_request {
  const struct loom_protocol *protocol;
  struct loom_options options;
  int seeds; /* 0 to seeds - 1, each under the policy seed % LOOM_POLICIES */
  int lenient;
  const char *trace; /* file for seed 0, or NULL */
};

/* executed: NULL, or a flag for each of loom_sites(), set where it ran in some seed. */
bool loom_seeds_run(const struct loom_request *request, struct loom_tally *tally,
                    unsigned char *executed, error *error);

#endif
