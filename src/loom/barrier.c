/* Execution barriers: named barriers of a CTA and the barrier of a cluster. */
#include "finding.h"

#include <string.h>

/* ---- named barriers ---- */

static struct named_barrier *named(struct loom_site *site, uint32_t id, uint32_t threads) {
  struct cta *cta = L.current->cta;
  if (id >= 16 || threads == 0 || threads % 32 || threads > 1024) {
    finding_here(LOOM_BARRIER_MISUSE, site, id, "barrier %u for %u threads", id, threads);
    stop_run();
  }
  struct named_barrier *b = &cta->named[id];
  if (b->arrived && b->expected != threads) {
    finding_here(LOOM_BARRIER_MISUSE, site, id,
                 "barrier %u for %u threads, but %u at line %d of the same round", id, threads,
                 b->expected, b->site->line);
    stop_run();
  }
  if (!known_arrivals(&L.current->known, b->arrivals))
    finding_here(LOOM_BARRIER_MISUSE, site, id,
                 "barrier %u: nothing keeps this thread from joining the round before", id);
  b->expected = threads;
  b->site = site;
  return b;
}

/* Counts the running thread in; true when it was the last. */
static int named_arrive(struct named_barrier *b, struct view *v) {
  struct thread *t = L.current;
  gather_add(&b->gather, t, pass_mask(1));
  known_tick(&t->known);
  if (++b->arrived < b->expected) return 0;
  b->arrivals = gather_arrivals(&b->gather);
  *v = gather_close(&b->gather);
  b->arrived = 0;
  for (struct thread *w = b->waiting; w; w = w->next)
    known_acquire(&w->known, v, ~0u);
  wake_all(&b->waiting);
  return 1;
}

void loom_bar_sync(struct loom_site *site, uint32_t id, uint32_t threads) {
  if (enter(site)) return;
  struct thread *t = L.current;
  struct named_barrier *b = named(site, id, threads);
  struct view v;
  if (named_arrive(b, &v)) {
    known_acquire(&t->known, &v, ~0u);
    return;
  }
  t->next = b->waiting;
  b->waiting = t;
  block(site);
}

void loom_bar_arrive(struct loom_site *site, uint32_t id, uint32_t threads) {
  enter(site);
  struct view v;
  named_arrive(named(site, id, threads), &v);
}

/* ---- clusters ---- */

/* Completes when all threads of the cluster that have not exited have arrived. */
void cluster_check(struct cluster *c) {
  if (c->arrived == 0 || c->arrived < c->live) return;
  c->done = gather_close(&c->gather);
  for (uint32_t i = 0; i < c->size; i++) {
    struct cta *cta = c->cta[i];
    cta->cluster_done = gather_close(&cta->cluster_gather);
  }
  c->arrived = 0;
  c->phase++;
  wake_all(&c->waiting);
}

static void cluster_count(struct loom_site *site, int relaxed) {
  struct thread *t = L.current;
  struct cluster *c = t->cta->cluster;
  if (t->cluster_arrived) {
    finding_here(LOOM_BARRIER_MISUSE, site, 0, "arrives twice without barrier.cluster.wait");
    stop_run();
  }
  const uint32_t mask = relaxed ? 1u << K_INIT : ~0u;
  gather_add(&c->gather, t, mask & pass_mask(0));
  gather_executed(&c->gather, t);
  gather_add(&t->cta->cluster_gather, t, mask);
  known_tick(&t->known);
  t->cluster_arrived = c->phase + 1;
  c->arrived++;
  cluster_check(c);
}

static void cluster_pass(struct loom_site *site) {
  struct thread *t = L.current;
  struct cluster *c = t->cta->cluster;
  if (!t->cluster_arrived) {
    finding_here(LOOM_BARRIER_MISUSE, site, 0, "waits without barrier.cluster.arrive");
    stop_run();
  }
  while (c->phase < t->cluster_arrived) {
    t->next = c->waiting;
    c->waiting = t;
    block(site);
  }
  t->cluster_arrived = 0;
  known_acquire(&t->known, &c->done, ~0u);
  known_acquire(&t->known, &t->cta->cluster_done, ~0u);
}

void loom_cluster_arrive(struct loom_site *site, int relaxed) {
  enter(site);
  cluster_count(site, relaxed);
}

void loom_cluster_wait(struct loom_site *site) {
  if (enter(site)) {
    L.current->cluster_arrived = 0;
    return;
  }
  cluster_pass(site);
}

void loom_cluster_sync(struct loom_site *site) {
  if (enter(site)) return;
  cluster_count(site, 0);
  cluster_pass(site);
}

struct dsmem loom_cluster_map(struct loom_site *site, struct smem p, uint32_t rank) {
  enter(site);
  if (rank >= L.current->cta->cluster->size)
    finding_here(LOOM_ILLEGAL, site, p.a, "no CTA %u in the cluster", rank);
  return (struct dsmem){p.a | (rank + 1) << 24};
}
