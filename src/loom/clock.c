/* The clocks of clock.h. All levels live in growing arenas that a run resets as a whole; an index
 * never moves, a pointer may, so nothing here holds a pointer across an allocation. */
#include "clock.h"

#include <stdlib.h>
#include <string.h>

#define LANES 32u
#define MEMO  16384u

struct leaf {
  uint32_t t[LANES];
};

struct arena {
  uint32_t *data;
  uint32_t used, capacity, words; /* words: of one element */
};

struct memo {
  uint32_t a, b, result, epoch;
};

static struct arena leaves, nodes, roots;
static uint32_t n_cta, n_leaf, epoch;
static struct memo root_memo[MEMO], node_memo[MEMO], set_memo[MEMO], cta_memo[MEMO];
static struct clock_stats stats;

static uint32_t *at(struct arena *m, uint32_t i) {
  return m->data + (size_t)i * m->words;
}

static uint32_t grow(struct arena *m) {
  if (m->used == m->capacity) {
    m->capacity = m->capacity ? m->capacity * 2 : 1024;
    m->data = realloc(m->data, (size_t)m->capacity * m->words * sizeof *m->data);
    if (!m->data) abort(); /* no clock, no verdict */
  }
  return m->used++;
}

static void arena_reset(struct arena *m, uint32_t words) {
  if (m->words != words) {
    free(m->data);
    m->data = NULL;
    m->capacity = 0;
    m->words = words;
  }
  m->used = 0;
  memset(at(m, grow(m)), 0, words * sizeof *m->data);
}

void clock_reset(uint32_t ctas, uint32_t leaves_a_cta) {
  n_cta = ctas;
  n_leaf = leaves_a_cta;
  epoch++;
  arena_reset(&leaves, LANES);
  arena_reset(&nodes, n_leaf);
  arena_reset(&roots, n_cta);
  memset(&stats, 0, sizeof stats);
}

uint32_t clock_slots(void) {
  return n_leaf * LANES;
}
uint32_t clock_who(uint32_t cta, uint32_t slot) {
  return cta * clock_slots() + slot;
}
uint32_t clock_cta(uint32_t who) {
  return who / clock_slots();
}
uint32_t clock_slot(uint32_t who) {
  return who % clock_slots();
}

static struct memo *memo_at(struct memo *table, uint32_t a, uint32_t b) {
  return &table[(a * 2654435761u ^ b * 40503u ^ (b >> 7)) % MEMO];
}

static int memo_hit(const struct memo *m, uint32_t a, uint32_t b) {
  return m->epoch == epoch && m->a == a && m->b == b;
}

static uint32_t memo_keep(struct memo *m, uint32_t a, uint32_t b, uint32_t result) {
  m->a = a;
  m->b = b;
  m->result = result;
  m->epoch = epoch;
  return result;
}

uint32_t clock_get(clk a, uint32_t who) {
  const uint32_t slot = clock_slot(who);
  const uint32_t node = at(&roots, a)[clock_cta(who)];
  return at(&leaves, at(&nodes, node)[slot / LANES])[slot % LANES];
}

static uint32_t leaf_join(uint32_t a, uint32_t b) {
  if (a == b || !b) return a;
  if (!a) return b;
  const uint32_t r = grow(&leaves);
  const uint32_t *x = at(&leaves, a), *y = at(&leaves, b);
  uint32_t *z = at(&leaves, r), differs_a = 0, differs_b = 0;
  for (uint32_t i = 0; i < LANES; i++) {
    z[i] = x[i] > y[i] ? x[i] : y[i];
    differs_a |= z[i] ^ x[i];
    differs_b |= z[i] ^ y[i];
  }
  if (differs_a && differs_b) return r;
  leaves.used--;
  return differs_a ? b : a;
}

static uint32_t node_join(uint32_t a, uint32_t b) {
  if (a == b || !b) return a;
  if (!a) return b;
  struct memo *m = memo_at(node_memo, a, b);
  if (memo_hit(m, a, b)) return m->result;
  uint32_t r = grow(&nodes);
  int is_a = 1, is_b = 1;
  for (uint32_t i = 0; i < n_leaf; i++) {
    const uint32_t x = at(&nodes, a)[i], y = at(&nodes, b)[i], z = leaf_join(x, y);
    at(&nodes, r)[i] = z;
    is_a &= z == x;
    is_b &= z == y;
  }
  if (is_a || is_b) {
    nodes.used--;
    r = is_a ? a : b;
  }
  return memo_keep(m, a, b, r);
}

clk clock_join(clk a, clk b) {
  if (a == b || !b) return a;
  if (!a) return b;
  stats.joins++;
  struct memo *m = memo_at(root_memo, a, b);
  if (memo_hit(m, a, b)) {
    stats.memoised++;
    return m->result;
  }
  stats.computed++;
  clk r = grow(&roots);
  int is_a = 1, is_b = 1;
  for (uint32_t i = 0; i < n_cta; i++) {
    const uint32_t x = at(&roots, a)[i], y = at(&roots, b)[i], z = node_join(x, y);
    at(&roots, r)[i] = z;
    is_a &= z == x;
    is_b &= z == y;
  }
  if (is_a || is_b) {
    roots.used--;
    r = is_a ? a : b;
  }
  return memo_keep(m, a, b, r);
}

/* Raises entries that all belong to one CTA. */
static clk set_in_cta(clk a, uint32_t cta, uint32_t n, const uint32_t *who, const uint32_t *time) {
  const uint32_t old_node = at(&roots, a)[cta];
  uint32_t node = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t slot = clock_slot(who[i]), l = slot / LANES, lane = slot % LANES;
    if (clock_cta(who[i]) != cta || time[i] == 0) continue;
    const uint32_t from = at(&nodes, node ? node : old_node)[l];
    if (at(&leaves, from)[lane] >= time[i]) continue;
    if (!node) {
      node = grow(&nodes);
      memcpy(at(&nodes, node), at(&nodes, old_node), n_leaf * sizeof(uint32_t));
    }
    uint32_t leaf = from;
    if (from == at(&nodes, old_node)[l]) { /* shared: copy before writing */
      leaf = grow(&leaves);
      memcpy(at(&leaves, leaf), at(&leaves, from), LANES * sizeof(uint32_t));
      at(&nodes, node)[l] = leaf;
    }
    at(&leaves, leaf)[lane] = time[i];
  }
  if (!node) return a;
  const clk r = grow(&roots);
  memcpy(at(&roots, r), at(&roots, a), n_cta * sizeof(uint32_t));
  at(&roots, r)[cta] = node;
  return r;
}

clk clock_set_many(clk a, uint32_t n, const uint32_t *who, const uint32_t *time) {
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t cta = clock_cta(who[i]);
    int first = 1;
    for (uint32_t j = i; first && j-- > 0;)
      first = clock_cta(who[j]) != cta;
    if (first) a = set_in_cta(a, cta, n - i, who + i, time + i);
  }
  return a;
}

clk clock_set(clk a, uint32_t who, uint32_t time) {
  if (clock_get(a, who) >= time) return a;
  struct memo *m = memo_at(set_memo, a, who * 2654435761u ^ time);
  if (m->epoch == epoch && m->a == a && m->b == who && clock_get(m->result, who) == time)
    return m->result;
  return memo_keep(m, a, who, set_in_cta(a, clock_cta(who), 1, &who, &time));
}

int clock_covers(clk a, clk b, uint32_t who, uint32_t time, clk part) {
  for (uint32_t c = 0; part && c < n_cta; c++) {
    const uint32_t node = at(&roots, part)[c];
    const uint32_t node_a = at(&roots, a)[c], node_b = at(&roots, b)[c];
    if (!node || node == node_a || node == node_b) continue;
    for (uint32_t l = 0; l < n_leaf; l++) {
      const uint32_t leaf = at(&nodes, node)[l];
      const uint32_t *x = at(&leaves, at(&nodes, node_a)[l]);
      const uint32_t *y = at(&leaves, at(&nodes, node_b)[l]);
      const uint32_t *need = at(&leaves, leaf), first = (c * n_leaf + l) * LANES;
      for (uint32_t i = 0; leaf && i < LANES; i++)
        if (need[i] > x[i] && need[i] > y[i] && !(first + i == who && need[i] <= time)) return 0;
    }
  }
  return 1;
}

clk clock_only_cta(clk a, uint32_t cta) {
  const uint32_t node = at(&roots, a)[cta];
  if (!node) return 0;
  struct memo *m = memo_at(cta_memo, node, cta);
  if (memo_hit(m, node, cta)) return m->result;
  const clk r = grow(&roots);
  memset(at(&roots, r), 0, n_cta * sizeof(uint32_t));
  at(&roots, r)[cta] = node;
  return memo_keep(m, node, cta, r);
}

void clock_statistics(struct clock_stats *out) {
  *out = stats;
  out->bytes = ((size_t)leaves.used * leaves.words + (size_t)nodes.used * nodes.words +
                (size_t)roots.used * roots.words) *
               sizeof(uint32_t);
}
