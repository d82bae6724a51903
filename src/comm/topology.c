/* Team topology. Needs no memory of its own: a host's earlier member is looked for backwards, which
 * is near for blocks and strides alike. */
#include "comm/topology.h"

weft__place weft__topology(const int64_t *members, int64_t ranks, int64_t world_ranks,
                           int64_t world_hosts, int64_t rank, int64_t *hosts_of) {
  const int64_t block = world_ranks / world_hosts;
  weft__place place = {0};
  for (int64_t i = 0; i < ranks; i++) {
    int64_t earlier = i - 1;
    while (earlier >= 0 && members[earlier] / block != members[i] / block)
      earlier--;
    hosts_of[i] = earlier >= 0 ? hosts_of[earlier] : place.hosts++;
  }
  place.host = hosts_of[rank];
  for (int64_t i = 0; i < ranks; i++) {
    if (hosts_of[i] != place.host) continue;
    if (i < rank) place.local_rank++;
    place.local_ranks++;
  }
  place.ranks_per_host = place.local_ranks;
  for (int64_t host = 0; host < place.hosts && place.ranks_per_host != 0; host++) {
    int64_t count = 0;
    for (int64_t i = 0; i < ranks; i++)
      count += hosts_of[i] == host;
    if (count != place.ranks_per_host) place.ranks_per_host = 0;
  }
  return place;
}
