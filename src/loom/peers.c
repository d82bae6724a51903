/* Teams of ranks for loom's protocols. */
#include "peers.h"

#include <string.h>
#include <weft/loom.h>

int loom_peers_make(struct loom_peers *peers, uint32_t ranks, uint32_t hosts, size_t arena_bytes,
                    size_t zeroed, uint64_t timeout_ns) {
  memset(peers, 0, sizeof *peers);
  if (ranks == 0 || ranks > LOOM_PEERS_MAX || hosts == 0 || ranks % hosts != 0) return -1;
  const uint32_t local = ranks / hosts;
  peers->ranks = ranks;
  for (uint32_t r = 0; r < ranks; r++) {
    peers->arena[r] = loom_alloc(r, arena_bytes);
    if (peers->arena[r] == 0) return -1;
    if (zeroed > 0) loom_fill(peers->arena[r], 0, zeroed);
  }
  for (uint32_t r = 0; r < ranks; r++) {
    uint64_t bases[LOOM_PEERS_MAX];
    struct peer_view *const view = &peers->view[r];
    for (uint32_t p = 0; p < ranks; p++)
      bases[p] = p / local == r / local ? peers->arena[p] : 0;
    view->rank = r;
    view->ranks = ranks;
    view->host = r / local;
    view->hosts = hosts;
    view->local_rank = r % local;
    view->local_ranks = local;
    view->bases.a = loom_alloc(r, ranks * sizeof bases[0]);
    view->error.a = loom_alloc(r, 4);
    view->timeout_ns = timeout_ns;
    if (view->bases.a == 0 || view->error.a == 0) return -1;
    loom_write(view->bases.a, bases, ranks * sizeof bases[0]);
    loom_fill(view->error.a, 0, 4);
  }
  return 0;
}

uint32_t loom_peers_error(const struct loom_peers *peers, uint32_t rank) {
  uint32_t word = 0;
  loom_read(peers->view[rank].error.a, &word, sizeof word);
  return word;
}
