/* Where the ranks of a team sit: hosts numbered by first appearance in the team, and each rank's
 * place among those that share its host. Plain arithmetic, known to every transport. */
#ifndef WEFT_COMM_TOPOLOGY_H
#define WEFT_COMM_TOPOLOGY_H

#include <stdint.h>

typedef struct weft__place {
  int64_t host, hosts;             /* this rank's host and how many the team spans */
  int64_t local_rank, local_ranks; /* among the team's ranks on that host, in team order */
  int64_t ranks_per_host;          /* 0 where hosts hold different numbers of ranks */
} weft__place;

/* members [ranks] are distinct world ranks; the world is `world_hosts` equal blocks of world ranks.
 * hosts_of [ranks] gets the host of each team rank; the result is the place of team rank `rank`. */
weft__place weft__topology(const int64_t *members, int64_t ranks, int64_t world_ranks,
                           int64_t world_hosts, int64_t rank, int64_t *hosts_of);

#endif
