/* Vector clocks over every thread and every async channel of a run: immutable, interned by sharing,
 * three levels deep (root: one entry a CTA; node: one a warp or 32 channels; leaf: 32 times). Equal
 * ids mean equal clocks; 0 is the empty clock; joins are memoised. */
#ifndef WEFT_LOOM_CLOCK_H
#define WEFT_LOOM_CLOCK_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t clk;

struct clock_stats {
  uint64_t joins, memoised, computed;
  size_t bytes;
};

/* Forgets all clocks. Each CTA has `leaves` leaves: warps first, then channels. */
void clock_reset(uint32_t ctas, uint32_t leaves);
uint32_t clock_slots(void); /* entries a CTA */
/* Entry of CTA c, slot s. */
uint32_t clock_who(uint32_t cta, uint32_t slot);
uint32_t clock_cta(uint32_t who);
uint32_t clock_slot(uint32_t who);

uint32_t clock_get(clk a, uint32_t who);
clk clock_join(clk a, clk b);
clk clock_set(clk a, uint32_t who, uint32_t time);
/* Raises n entries at once. */
clk clock_set_many(clk a, uint32_t n, const uint32_t *who, const uint32_t *time);
/* Whether each entry of `part` is reached by the same entry of a or of b, or is who's and at most
 * time. */
int clock_covers(clk a, clk b, uint32_t who, uint32_t time, clk part);
/* What is left of a: the entries of one CTA. */
clk clock_only_cta(clk a, uint32_t cta);

void clock_statistics(struct clock_stats *out);

#endif
