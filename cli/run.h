/* A team of ranks, threads of this process or one process each, their plans and outputs, and the
 * timed phases. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "check.h"
#include "device.h"
#include "team.h"

typedef struct rank {
  weft_comm *comm;
  weft_ce_plan *plan;
  weft_ce_args args;
  float *nll, *lse, *entropy, *stats; /* [M], stats [M,4] */
  void *dx;                           /* this rank's dX, or its place in the shared one */
  device_memory device;               /* copies of its arrays, where it runs on a GPU */
  void *stream;                       /* of its calls there */
  weft_status status;                 /* of the last call that failed */
  char message[512];
} rank;

typedef struct run {
  const problem *problem;
  const ce_options *options;
  const team *team; /* which of the ranks live here */
  rank *ranks;
  int64_t ranks_count;
  void *dx_shared; /* reduce_scatter: [ranks·⌈M / ranks⌉, H], to which every rank adds its rows */
  void *dw;        /* [V,H]: every rank writes its own rows */
  void **dx_parts;         /* what a check sums */
  int64_t workspace_bytes; /* of the rank with the most, local and symmetric */
  weft_ce_plan_info plan;  /* of rank 0 */
} run;

typedef struct timing {
  double median_ms, least_ms;
} timing;

/* Makes the world, the plans and the outputs. Returns an exit code. */
int run_create(run *run, const problem *problem, const ce_options *options, const team *team,
               error *error);
void run_destroy(run *run);

/* Runs a phase (not PHASE_ALL) warm-up and timed times. Outputs are filled with NaN before, so that
 * nothing of an earlier phase can pass for this one's. */
int run_phase(run *run, ce_phase phase, timing *timing, error *error);

/* Brings the outputs of a phase from all processes to each, where the ranks are processes. */
int run_collect(run *run, ce_phase phase, error *error);

/* What the last phase wrote, as rank 0 and the shared arrays hold it. */
outputs run_outputs(const run *run, ce_phase phase);

/* Rows of nll, lse, entropy and (all_reduce) dX in which some rank differs from rank 0. */
int64_t run_differences(const run *run, ce_phase phase);

/* The config of one rank's plan. */
weft_ce_config run_config(const ce_options *options, weft_dtype w_dtype, weft_dtype target_dtype,
                          int64_t rank);

/* The exit code for a status of the library. */
int run_exit_code(weft_status status);

#endif
