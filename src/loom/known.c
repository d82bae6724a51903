/* What threads know and how it passes between them. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

#define BIT(k) (1u << (k))

/* Times come from one counter, so that an access after a release is later than what it released. */
void known_tick(struct known *known) {
  known->own[K_OBSERVED] = ++L.epoch;
}

int known_seen(const struct known *known, int which, uint32_t who, uint32_t time) {
  return (who == known->who && known->own[which] >= time) ||
         clock_get(known->v.k[which], who) >= time;
}

int known_arrivals(const struct known *known, clk arrivals) {
  return clock_covers(known->v.k[K_OBSERVED], known->v.k[K_EXECUTED], known->who,
                      known->own[K_OBSERVED], arrivals);
}

/* Strict reading: what a fence made visible to the async proxy stays in its CTA. Lenient: it
 * follows causality, as alias fences do by the text (8.9.5: anywhere along the path). What an
 * owner's fences cover, and what has executed, always follows. */
uint32_t pass_mask(int same_cta) {
  const uint32_t all = BIT(KNOWN) - 1;
  if (same_cta || L.config.lenient) return all;
  return all & ~(BIT(K_ASYNC_GLOBAL) | BIT(K_ASYNC_SHARED));
}

void known_acquire(struct known *known, const struct view *v, uint32_t mask) {
  for (int i = 0; i < KNOWN; i++)
    if (mask & BIT(i)) known->v.k[i] = clock_join(known->v.k[i], v->k[i]);
}

static int in_cluster(const struct thread *t) {
  return t->cta->cluster->size > 1;
}

/* The fences of this CTA over accesses of this CTA's threads. */
static clk owner_clock(const struct thread *t) {
  return clock_join(t->known.v.k[K_OWNER],
                    clock_only_cta(t->known.v.k[K_ASYNC_SHARED], t->cta->id));
}

struct view known_view(const struct thread *t) {
  struct view v = t->known.v;
  if (in_cluster(t))
    v.k[K_OWNER] = clock_set(owner_clock(t), t->known.who, t->known.own[K_ASYNC_SHARED]);
  for (int i = 0; i < KNOWN; i++)
    if (t->known.own[i]) v.k[i] = clock_set(v.k[i], t->known.who, t->known.own[i]);
  return v;
}

static struct gather_entry *gather_entry(struct gather *gather) {
  if (gather->n == gather->capacity) {
    gather->capacity = gather->capacity ? gather->capacity * 2 : 8;
    gather->entry = realloc(gather->entry, gather->capacity * sizeof *gather->entry);
    if (!gather->entry) abort();
  }
  struct gather_entry *e = &gather->entry[gather->n++];
  memset(e, 0, sizeof *e);
  return e;
}

void gather_add(struct gather *gather, const struct thread *t, uint32_t mask) {
  struct gather_entry *e = gather_entry(gather);
  e->who = t->known.who;
  for (int i = 0; i < KNOWN; i++) {
    if (!(mask & BIT(i))) continue;
    gather->v.k[i] = clock_join(gather->v.k[i], t->known.v.k[i]);
    e->own[i] = t->known.own[i];
  }
  if ((mask & BIT(K_OWNER)) && in_cluster(t)) {
    gather->v.k[K_OWNER] = clock_join(gather->v.k[K_OWNER], owner_clock(t));
    e->own[K_OWNER] = t->known.own[K_ASYNC_SHARED];
  }
}

/* Passes only that what the thread knows of has executed. */
void gather_executed(struct gather *gather, const struct thread *t) {
  const struct view *v = &t->known.v;
  clk *executed = &gather->v.k[K_EXECUTED];
  *executed = clock_join(clock_join(*executed, v->k[K_OBSERVED]), v->k[K_EXECUTED]);
  struct gather_entry *e = gather_entry(gather);
  e->who = t->known.who;
  e->own[K_EXECUTED] = t->known.own[K_OBSERVED];
}

void known_acquire_executed(struct known *known, const struct view *v) {
  known_acquire(known, v, BIT(K_EXECUTED));
}

/* Passes that the operations of a channel up to `time` are complete and observed. */
void gather_channel(struct gather *gather, uint32_t who, uint32_t time) {
  struct gather_entry *e = gather_entry(gather);
  e->who = who;
  e->own[K_OBSERVED] = time;
}

/* Room for the entries of a gather, for clock_set_many. */
static uint32_t *who, *time;

static void scratch(const struct gather *gather) {
  static uint32_t capacity;
  if (capacity < gather->n) {
    capacity = gather->n * 2;
    who = realloc(who, capacity * sizeof *who);
    time = realloc(time, capacity * sizeof *time);
    if (!who || !time) abort();
  }
  for (uint32_t j = 0; j < gather->n; j++)
    who[j] = gather->entry[j].who;
}

clk gather_arrivals(const struct gather *gather) {
  scratch(gather);
  for (uint32_t j = 0; j < gather->n; j++) {
    const uint32_t *own = gather->entry[j].own;
    time[j] = own[K_OBSERVED] ? own[K_OBSERVED] : own[K_EXECUTED];
  }
  return clock_set_many(0, gather->n, who, time);
}

struct view gather_close(struct gather *gather) {
  scratch(gather);
  for (int i = 0; i < KNOWN; i++) {
    uint32_t any = 0;
    for (uint32_t j = 0; j < gather->n; j++)
      any |= time[j] = gather->entry[j].own[i];
    if (any) gather->v.k[i] = clock_set_many(gather->v.k[i], gather->n, who, time);
  }
  const struct view v = gather->v;
  gather->n = 0;
  memset(&gather->v, 0, sizeof gather->v);
  return v;
}

void gather_free(struct gather *gather) {
  free(gather->entry);
  memset(gather, 0, sizeof *gather);
}

int distance(const struct cta *a, const struct cta *b) {
  if (a == b) return LOOM_SCOPE_cta;
  if (a->cluster == b->cluster) return LOOM_SCOPE_cluster;
  return a->gpu == b->gpu ? LOOM_SCOPE_gpu : LOOM_SCOPE_sys;
}
