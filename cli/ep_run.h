/* The team of `weft ep`: ranks as threads, on CPUs or each with a share of a GPU, or as processes;
 * their plans and arrays, and the timed rounds. */
#ifndef CLI_EP_RUN_H
#define CLI_EP_RUN_H

#include "ep_data.h"
#include "team.h"

enum { EP_DISPATCH, EP_COMBINE, EP_PHASES };

/* Arrays on a rank's GPU, all NULL on a CPU (ep_device.h). */
typedef struct ep_device {
  int32_t gpu;
  void *stream;
  void *x, *topk, *weights, *recv_x, *scales, *counts, *offsets, *y, *out;
} ep_device;

typedef struct ep_rank {
  weft_comm *comm;
  weft_ep_plan *plan;
  weft_ep_handle *handle;
  void *recv_x;
  float *scales;
  int64_t *counts, *offsets;
  uint16_t *y, *out;
  uint64_t *bits;       /* [repeat] a hash of what the phase's last call of each round wrote */
  double *us;           /* [repeat] a call, mean of the round */
  int64_t *expert_rows; /* [L] statistics */
  double *wait_ms;      /* [R] */
  int64_t wrong[EP_PHASES];
  ep_device device;
  weft_status status; /* of the last call that failed */
  char message[512];
} ep_rank;

typedef struct ep_result {
  double us_p50, us_min; /* of the rounds, each its slowest rank's */
  double gbps;
  int64_t wrong; /* rows; −1: not checked */
  int64_t rounds_differ;
} ep_result;

typedef struct ep_run {
  const ep_data *data;
  const team *team; /* which of the ranks live here */
  ep_rank *ranks;
  weft_ep_plan_info plan;
  ep_result results[EP_PHASES];
} ep_run;

/* Makes the team, runs both phases, and judges them. Returns an exit code; the run is the caller's
 * to free in any case. */
int ep_run_all(ep_run *run, const ep_data *data, const team *team, error *error);
void ep_run_free(ep_run *run);

#endif
