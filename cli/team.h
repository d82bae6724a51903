/* The processes of a job that a launcher started (mpirun), one rank each; without one, this process
 * holds all ranks. */
#ifndef CLI_TEAM_H
#define CLI_TEAM_H

#include <weft/weft.h>

#include "base.h"
#include "ce_options.h"

typedef struct team {
  weft_comm *world; /* NULL: all ranks are here */
  int64_t rank, ranks;
} team;

/* Whether this version and machine have that transport; what has no reason here is not in it. */
bool transport_is_here(int transport, const weft_system_info *info, error *error);

/* Joins the job by MPI. `ranks` is what the user expects, or 0. Returns an exit code. */
int team_join(team *team, int64_t ranks, int64_t hosts, error *error);
void team_leave(team *team);

/* Every process's `bytes` in rank order. */
bool team_gather(const team *team, const void *own, void *all, size_t bytes, error *error);

/* The exit code that all processes end with: rank 0's, unless another's is a failure of its own. A
 * process whose team has failed keeps its own. */
int team_verdict(const team *team, int code);

/* The ranks that live here, as a range. */
int64_t team_first(const team *team);
int64_t team_end(const team *team, int64_t ranks);

#endif
