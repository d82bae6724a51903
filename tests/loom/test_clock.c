/* The law: clocks behave as plain vectors under join, set and projection; and equal ids are equal
 * clocks after a join that changes nothing. The oracle is an array. */
#include "loom/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTAS = 3, LEAVES = 5, SLOTS = LEAVES * 32, ALL = CTAS * SLOTS, POOL = 40, STEPS = 20000 };

static uint32_t plain[POOL][ALL];
static clk pool[POOL];
static uint64_t state = 88172645463325252ull;

static uint32_t draw(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 33) % n;
}

static int differs(int i) {
  for (uint32_t w = 0; w < ALL; w++)
    if (clock_get(pool[i], w) != plain[i][w]) return 1;
  return 0;
}

int main(void) {
  clock_reset(CTAS, LEAVES);
  if (clock_slots() != SLOTS || clock_cta(clock_who(2, 7)) != 2 || clock_slot(clock_who(2, 7)) != 7)
    return puts("FAIL numbering"), 1;
  int failed = 0;
  for (int step = 0; step < STEPS && !failed; step++) {
    const uint32_t a = draw(POOL), b = draw(POOL), to = draw(POOL);
    uint32_t next[ALL];
    clk r;
    switch (draw(4)) {
    case 0:
      r = clock_join(pool[a], pool[b]);
      for (int w = 0; w < ALL; w++)
        next[w] = plain[a][w] > plain[b][w] ? plain[a][w] : plain[b][w];
      /* joining again changes nothing, not even the id */
      failed |= clock_join(r, pool[a]) != r || clock_join(r, pool[b]) != r;
      break;
    case 1: {
      const uint32_t who = draw(ALL), time = 1 + draw(50);
      r = clock_set(pool[a], who, time);
      memcpy(next, plain[a], sizeof next);
      if (time > next[who]) next[who] = time;
      break;
    }
    case 2: {
      uint32_t who[9], time[9];
      memcpy(next, plain[a], sizeof next);
      for (int i = 0; i < 9; i++) {
        who[i] = draw(ALL);
        time[i] = draw(50);
        if (time[i] > next[who[i]]) next[who[i]] = time[i];
      }
      r = clock_set_many(pool[a], 9, who, time);
      break;
    }
    default: {
      const uint32_t cta = draw(CTAS);
      r = clock_only_cta(pool[a], cta);
      for (int w = 0; w < ALL; w++)
        next[w] = (uint32_t)w / SLOTS == cta ? plain[a][w] : 0;
      break;
    }
    }
    pool[to] = r;
    memcpy(plain[to], next, sizeof next);
    failed |= differs((int)to) || differs((int)draw(POOL));
    if (failed) printf("FAIL step %d\n", step);
  }
  struct clock_stats s;
  clock_statistics(&s);
  printf("%d steps, %llu joins, %llu memoised, %zu bytes: %s\n", STEPS, (unsigned long long)s.joins,
         (unsigned long long)s.memoised, s.bytes, failed ? "FAIL" : "ok");
  return failed;
}
