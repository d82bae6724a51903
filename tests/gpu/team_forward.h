/* How the tests of a team's forward cut a case's vocabulary over the ranks. Knows cases alone. */
#ifndef WEFT_TESTS_GPU_TEAM_FORWARD_H
#define WEFT_TESTS_GPU_TEAM_FORWARD_H

#include "forward_cases.h"

enum team_cut {
  TEAM_EVEN,   /* as even as can be */
  TEAM_UNEVEN, /* the first rank has most, and every third nothing */
  TEAM_CUTS
};

/* Rows of W, padding included, of a rank: they follow each other. */
static inline void team_range(const struct forward_case *c, enum team_cut cut, int64_t ranks,
                              int64_t rank, int64_t *start, int64_t *rows) {
  const int64_t all = c->vocab + c->padding;
  int64_t at = 0, n = 0;
  for (int64_t r = 0; r <= rank; r++) {
    at += n;
    if (cut == TEAM_EVEN)
      n = all / ranks + (r < all % ranks);
    else
      n = r % 3 == 2 ? 0 : (all - at) * 2 / 3 + (all > at);
    if (r == ranks - 1 || n > all - at) n = all - at;
  }
  *start = at;
  *rows = n;
}

/* The rank's config, and its first row of W in bytes. */
static inline weft_ce_config team_config(const struct forward_case *c, enum team_cut cut,
                                         int64_t ranks, int64_t rank, size_t *offset) {
  weft_ce_config config = forward_config(c);
  team_range(c, cut, ranks, rank, &config.vocab_start, &config.vocab_local);
  *offset = (size_t)config.vocab_start * (size_t)(c->hidden + c->w_extra) * 2;
  return config;
}

#endif
