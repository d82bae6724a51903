/* mbarriers: phases, transaction bytes, and what completes them. */
#include "mbarrier.h"

#include "finding.h"

#include <stdlib.h>
#include <string.h>

/* PTX: pending count and tx-count stay within 2^20 - 1. */
#define COUNT_MAX    ((1 << 20) - 1)
#define BARRIERS_MAX 256u

struct mbarrier *mbarrier_at(struct loom_site *site, struct cta *cta, uint32_t address) {
  size_t offset;
  const uint16_t at = address % 8 == 0 && region_shared(cta, address, 8, &offset)
                          ? cta->mbarrier_at[address / 8]
                          : 0;
  struct mbarrier *m = at ? cta->mbarrier[at - 1] : NULL;
  if (!m || !m->valid) {
    finding_here(LOOM_BARRIER_MISUSE, site, address, "no mbarrier is initialised at shared %#x",
                 address);
    stop_run();
  }
  const struct known *known = &L.current->known;
  if (!known_seen(known, K_OBSERVED, m->init_who, m->init_time) &&
      !known_seen(known, K_INIT, m->init_who, m->init_time))
    finding_here(LOOM_BARRIER_MISUSE, site, address,
                 "nothing orders this after the mbarrier.init at line %d", m->init_site->line);
  return m;
}

void loom_mbarrier_init(struct loom_site *site, struct smem bar, uint32_t count) {
  enter(site);
  struct cta *cta = L.current->cta;
  size_t offset;
  struct region *g = region_shared(cta, bar.a, 8, &offset);
  if (!g || bar.a % 8) {
    finding_here(g ? LOOM_MISALIGNED : LOOM_ILLEGAL, site, bar.a, "mbarrier at shared %#x", bar.a);
    stop_run();
  }
  if (count == 0 || count > COUNT_MAX)
    finding_here(LOOM_BARRIER_MISUSE, site, bar.a, "a count of %u", count);
  uint16_t *at = &cta->mbarrier_at[bar.a / 8];
  if (!*at) {
    if (cta->mbarriers == BARRIERS_MAX) {
      finding_here(LOOM_BARRIER_MISUSE, site, bar.a, "more than %u mbarriers in a CTA",
                   BARRIERS_MAX);
      stop_run();
    }
    struct mbarrier *fresh = calloc(1, sizeof *fresh);
    if (!fresh) abort();
    fresh->channel = channel_new(cta);
    cta->mbarrier[cta->mbarriers++] = fresh;
    *at = (uint16_t)cta->mbarriers;
  }
  struct mbarrier *m = cta->mbarrier[*at - 1];
  if (m->valid)
    finding_here(LOOM_BARRIER_MISUSE, site, bar.a, "initialised again without mbarrier.inval");
  m->address = bar.a;
  m->count = m->pending = count;
  m->phase += m->phase & 1; /* times of its channel go on; parity starts at 0 */
  m->tx = 0;
  m->valid = 1;
  m->init_site = site;
  m->init_who = L.current->known.who;
  m->init_time = L.current->known.own[K_OBSERVED];
  memset(&m->done, 0, sizeof m->done);
  memset(&m->cluster_done, 0, sizeof m->cluster_done);
  m->passes = 0;
  m->arrivals = 0;
  shadow_mark(g, offset, 8);
}

void loom_mbarrier_inval(struct loom_site *site, struct smem bar) {
  enter(site);
  struct mbarrier *m = mbarrier_at(site, L.current->cta, bar.a);
  if (m->waiting || m->tx)
    finding_here(LOOM_BARRIER_MISUSE, site, bar.a, "invalidated while in use");
  m->valid = 0;
}

/* Everyone who passed a wait for the phase before must have been heard of by now, or the next phase
 * may complete while one of them has not yet looked. */
static void check_passed(struct loom_site *site, struct cta *cta, struct mbarrier *m) {
  const clk heard[] = {m->done.k[K_OBSERVED], m->done.k[K_EXECUTED], m->cluster_done.k[K_OBSERVED],
                       m->cluster_done.k[K_EXECUTED]};
  for (uint32_t i = 0; i < m->passes; i++) {
    int known = 0;
    for (size_t h = 0; h < sizeof heard / sizeof *heard; h++)
      known |= clock_get(heard[h], m->passed[i].who) >= m->passed[i].time;
    if (known) continue;
    finding_at(LOOM_PARITY_ALIAS, site, cta, clock_slot(m->passed[i].who), m->address,
               "completes phase %u, but nothing says that this thread has passed phase %u",
               m->phase, m->phase - 1);
    return;
  }
}

static void phase_check(struct loom_site *site, struct cta *cta, struct mbarrier *m) {
  if (m->pending || m->tx) return;
  m->arrivals = gather_arrivals(&m->gather);
  m->done = gather_close(&m->gather);
  m->cluster_done = gather_close(&m->cluster);
  check_passed(site, cta, m);
  m->passes = 0;
  m->phase++;
  m->pending = m->count;
  wake_all(&m->waiting);
}

void mbarrier_complete_tx(const struct op *op, uint32_t bytes) {
  struct mbarrier *m = op->barrier;
  struct cta *cta = op->shared_cta;
  if (!m->valid) {
    finding_at(LOOM_BARRIER_MISUSE, op->site, op->issuer, op->thread->index, m->address,
               "completes on an mbarrier that was invalidated");
    return;
  }
  if (m->channel_phase != m->phase + 1) {
    m->channel_phase = m->phase + 1;
    gather_channel(&m->gather, m->channel, m->phase + 1);
  }
  /* that it has landed says that its issuer had come so far */
  const clk issuer = clock_join(op->known.v.k[K_OBSERVED], op->known.v.k[K_EXECUTED]);
  m->gather.v.k[K_EXECUTED] = clock_join(
      m->gather.v.k[K_EXECUTED], clock_set(issuer, op->known.who, op->known.own[K_OBSERVED]));
  m->tx -= bytes;
  if (m->tx < -COUNT_MAX)
    finding_at(LOOM_BARRIER_MISUSE, op->site, cta, 0, m->address, "tx-count below its range");
  phase_check(op->site, cta, m);
}

/* An arrival that may come before the phase before has completed may be counted in that one. */
static void check_early(struct loom_site *site, const struct mbarrier *m) {
  if (!known_arrivals(&L.current->known, m->arrivals))
    finding_here(LOOM_BARRIER_MISUSE, site, m->address,
                 "nothing keeps this arrival from coming in the phase before");
}

/* arrivals 0 or 1; the caller has gathered what the arrival passes on. */
static void arrive(struct loom_site *site, struct cta *cta, struct mbarrier *m, uint32_t arrivals,
                   uint32_t bytes) {
  m->tx += bytes;
  if (m->tx > COUNT_MAX)
    finding_here(LOOM_BARRIER_MISUSE, site, m->address, "tx-count above its range");
  if (arrivals > m->pending) {
    finding_here(LOOM_BARRIER_MISUSE, site, m->address,
                 "one arrival more than the %u of this phase", m->count);
    return;
  }
  m->pending -= arrivals;
  phase_check(site, cta, m);
}

void loom_mbarrier_arrive(struct loom_site *site, struct smem bar, uint32_t arrivals,
                          uint32_t bytes) {
  enter(site);
  struct thread *t = L.current;
  struct mbarrier *m = mbarrier_at(site, t->cta, bar.a);
  if (arrivals) {
    check_early(site, m);
    gather_add(&m->gather, t, pass_mask(1));
    known_tick(&t->known);
  }
  arrive(site, t->cta, m, arrivals, bytes);
}

/* Remembers that the running thread came to another CTA: the last time for each thread and site. */
static void visit_add(struct cta *cta, struct loom_site *site) {
  const struct thread *t = L.current;
  uint32_t i = 0;
  while (i < cta->visits && (cta->visit[i].who != t->known.who || cta->visit[i].site != site))
    i++;
  if (i == cta->visits_capacity) {
    cta->visits_capacity = i ? i * 2 : 8;
    cta->visit = realloc(cta->visit, cta->visits_capacity * sizeof *cta->visit);
    if (!cta->visit) abort();
  }
  if (i == cta->visits) cta->visits++;
  cta->visit[i] = (struct visit){t->known.who, t->known.own[K_OBSERVED], t->index, t->cta, site};
}

void loom_mbarrier_arrive_remote(struct loom_site *site, struct dsmem bar, uint32_t bytes,
                                 int scope) {
  enter(site);
  struct thread *t = L.current;
  const uint32_t rank = bar.a >> 24 ? (bar.a >> 24) - 1 : t->cta->rank;
  struct cta *cta = rank < t->cta->cluster->size ? t->cta->cluster->cta[rank] : NULL;
  if (!cta) {
    finding_here(LOOM_ILLEGAL, site, bar.a, "no CTA %u in the cluster", rank);
    return;
  }
  if (cta->exited) {
    finding_here(LOOM_EXITED_CTA, site, bar.a, "CTA %u of the cluster has exited", rank);
    return;
  }
  struct mbarrier *m = mbarrier_at(site, cta, bar.a & 0xffffffu);
  check_early(site, m);
  if (cta == t->cta) {
    gather_add(&m->gather, t, pass_mask(1));
  } else {
    visit_add(cta, site);
    gather_executed(&m->gather, t);
    if (scope >= LOOM_SCOPE_cluster) gather_add(&m->cluster, t, pass_mask(0));
  }
  known_tick(&t->known);
  arrive(site, cta, m, 1, bytes);
}

static int phase_done(const struct mbarrier *m, uint32_t parity) {
  return (m->phase & 1) != (parity & 1);
}

static void pass(struct mbarrier *m, int scope) {
  struct thread *t = L.current;
  known_acquire(&t->known, &m->done, pass_mask(1));
  if (scope >= LOOM_SCOPE_cluster) known_acquire(&t->known, &m->cluster_done, pass_mask(0));
  if (m->passes == m->passes_capacity) {
    m->passes_capacity = m->passes_capacity ? m->passes_capacity * 2 : 32;
    m->passed = realloc(m->passed, m->passes_capacity * sizeof *m->passed);
    if (!m->passed) abort();
  }
  m->passed[m->passes++] = (struct waited_on){t->known.who, t->known.own[K_OBSERVED]};
}

uint32_t loom_mbarrier_try_wait(struct loom_site *site, struct smem bar, uint32_t parity,
                                int scope) {
  enter(site);
  struct mbarrier *m = mbarrier_at(site, L.current->cta, bar.a);
  if (!phase_done(m, parity)) {
    yield_turn(); /* the instruction may suspend */
    if (!phase_done(m, parity)) return 0;
  }
  pass(m, scope);
  return 1;
}

void loom_mbarrier_wait(struct loom_site *site, struct smem bar, uint32_t parity, int scope) {
  if (enter(site)) return;
  struct thread *t = L.current;
  struct mbarrier *m = mbarrier_at(site, t->cta, bar.a);
  t->wait_phase = m->phase;
  while (!phase_done(m, parity)) {
    if (m->phase != t->wait_phase) {
      finding_here(LOOM_PARITY_ALIAS, site, bar.a, "slept through phases %u and %u", t->wait_phase,
                   t->wait_phase + 1);
      break;
    }
    t->next = m->waiting;
    m->waiting = t;
    block(site);
  }
  pass(m, scope);
}
