/* Warpgroup matrix multiply: operands by descriptor from shared memory, accumulators in the
 * registers of 128 threads. A group runs as one async operation, any time after its commit and in
 * the order of commits. Its operand reads must be ordered after what every thread of the warpgroup
 * knew at issue. */
#include "async.h"

#include "finding.h"

#include <stdlib.h>
#include <string.h>

#define M 64u
#define K 16u
/* Seen by a program that reads accumulators too early: a NaN. */
#define POISON 0x7fe1deadu

/* ---- accumulators ---- */

static int is_poison(const float *d, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, d + i, 4);
    if (bits != POISON) return 0;
  }
  return 1;
}

static void poison(float *d, uint32_t count) {
  const uint32_t bits = POISON;
  for (uint32_t i = 0; i < count; i++)
    memcpy(d + i, &bits, 4);
}

static struct accumulator *accumulator_find(struct thread *t, float *d, uint32_t count) {
  for (uint32_t i = 0; i < t->accumulators; i++)
    if (t->accumulator[i]->d == d && t->accumulator[i]->count == count) return t->accumulator[i];
  return NULL;
}

static struct accumulator *accumulator_new(struct loom_site *site, struct thread *t) {
  if (t->accumulators < WGMMA_ACCUMULATORS) {
    struct accumulator *a = calloc(1, sizeof *a);
    if (!a) abort();
    return t->accumulator[t->accumulators++] = a;
  }
  for (uint32_t i = 0; i < WGMMA_ACCUMULATORS; i++)
    if (!t->accumulator[i]->in_flight) return t->accumulator[i];
  finding_here(LOOM_REGISTER_HAZARD, site, 0, "more than %u accumulator arrays in flight",
               WGMMA_ACCUMULATORS);
  stop_run();
  return NULL;
}

/* Takes the registers of the running thread into a group. */
static struct accumulator *accumulator_take(struct loom_site *site, float *d, uint32_t count) {
  struct thread *t = L.current;
  struct accumulator *a = accumulator_find(t, d, count);
  if (a && a->in_flight) {
    if (!is_poison(d, count))
      finding_here(LOOM_REGISTER_HAZARD, site, 0,
                   "accumulators were written while an earlier wgmma may still use them");
    poison(d, count);
    return a;
  }
  if (!t->wgmma_fenced && (!a || memcmp(a->value, d, count * sizeof *d)))
    finding_here(LOOM_REGISTER_HAZARD, site, 0,
                 "no wgmma.fence since the program last touched the accumulators");
  if (!a) a = accumulator_new(site, t);
  a->d = d;
  a->count = count;
  a->in_flight = 1;
  memcpy(a->value, d, count * sizeof *d);
  poison(d, count);
  return a;
}

static void accumulators_return(struct loom_site *site, uint32_t group) {
  struct thread *t = L.current;
  for (uint32_t i = 0; i < t->accumulators; i++) {
    struct accumulator *a = t->accumulator[i];
    if (!a->in_flight || a->group > group) continue;
    if (!is_poison(a->d, a->count))
      finding_here(LOOM_REGISTER_HAZARD, site, 0,
                   "accumulators were written before this wait returned");
    memcpy(a->d, a->value, a->count * sizeof *a->d);
    a->in_flight = 0;
  }
}

/* ---- the 128 threads ---- */

static struct warpgroup *warpgroup_of(struct loom_site *site) {
  struct thread *t = L.current;
  if ((t->warp / 4 + 1) * 128 > t->cta->threads) {
    finding_here(LOOM_DIVERGENT, site, 0, "the warpgroup is short of threads");
    stop_run();
  }
  return &t->cta->warpgroup[t->warp / 4];
}

/* True in the last of the 128 to come, before the others go on. */
static int meet(struct loom_site *site, struct warpgroup *w) {
  struct thread *t = L.current;
  if (w->arrived && w->site != site) {
    finding_here(LOOM_DIVERGENT, site, 0, "another thread of the warpgroup is at %s, line %d",
                 w->site->op, w->site->line);
    stop_run();
  }
  w->site = site;
  w->thread[w->arrived++] = t;
  gather_executed(&w->gather, t);
  known_tick(&t->known);
  if (w->arrived < 128) {
    block(site);
    return 0;
  }
  w->arrived = 0;
  const struct view v = gather_close(&w->gather);
  for (int i = 0; i < 128; i++) {
    known_acquire_executed(&w->thread[i]->known, &v);
    if (w->thread[i] != t) ready(w->thread[i]);
  }
  return 1;
}

void loom_wgmma(struct loom_site *site, float *d, uint32_t n, int dtype, uint64_t desc_a,
                uint64_t desc_b, int scale_d, int a_mn, int b_mn) {
  enter(site);
  struct thread *t = L.current;
  struct warpgroup *w = warpgroup_of(site);
  struct wgmma_op *op = w->building;
  if (!op) {
    op = w->building = calloc(1, sizeof *op);
    if (!op) abort();
    op->n = n;
    op->dtype = dtype;
    op->scale_d = scale_d != 0;
    op->a_mn = a_mn;
    op->b_mn = b_mn;
    op->desc_a = desc_a;
    op->desc_b = desc_b;
    op->site = site;
  } else if (op->desc_a != desc_a || op->desc_b != desc_b || op->scale_d != (scale_d != 0)) {
    finding_here(LOOM_DIVERGENT, site, 0, "operands differ between threads of the warpgroup");
    stop_run();
  }
  const uint32_t i = t->index % 128;
  op->d[i] = accumulator_take(site, d, n / 2);
  op->d[i]->group = w->committed + 1;
  op->d[i]->site = site;
  op->known[i] = t->known;
  if (!meet(site, w)) return;
  w->building = NULL;
  if (w->open_last)
    w->open_last->next = op;
  else
    w->open = op;
  w->open_last = op;
}

void loom_wgmma_fence(struct loom_site *site) {
  if (enter(site)) return;
  L.current->wgmma_fenced = 1;
}

void loom_wgmma_commit(struct loom_site *site) {
  enter(site);
  struct warpgroup *w = warpgroup_of(site);
  if (!meet(site, w)) return;
  struct wgmma_group *g = calloc(1, sizeof *g);
  if (!g) abort();
  g->first = w->open;
  g->last = w->open_last;
  w->open = w->open_last = NULL;
  if (w->last)
    w->last->next = g;
  else
    w->first = g;
  w->last = g;
  w->committed++;
  if (!w->channel) w->channel = channel_new(L.current->cta);
  struct op *op = op_new(site, OP_WGMMA);
  op->warpgroup = w;
  L.stats.async_operations++;
  pending_add(op);
}

void loom_wgmma_wait(struct loom_site *site, uint32_t groups) {
  if (enter(site)) return;
  struct thread *t = L.current;
  struct warpgroup *w = warpgroup_of(site);
  const uint32_t last = w->committed > groups ? w->committed - groups : 0;
  while (w->executed < last) {
    t->next = w->waiting;
    w->waiting = t;
    block(site);
  }
  t->wgmma_fenced = 0;
  if (!last) return;
  clk *observed = &t->known.v.k[K_OBSERVED];
  *observed = clock_set(*observed, w->channel, last);
  accumulators_return(site, last);
}

/* ---- operands ---- */

struct descriptor {
  uint32_t start, lbo, sbo, log; /* log: of the swizzle's span over 16 bytes */
};

static struct descriptor decode(uint64_t d) {
  static const uint32_t log_of[4] = {0, 3, 2, 1};
  return (struct descriptor){(uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
                             (uint32_t)(d >> 32 & 0x3fff) << 4, log_of[d >> 62]};
}

/* Address of the eight elements that start at (mn, k): along k for a K-major operand, else along
 * mn. PTX, "Shared Memory Matrix Layout". */
static uint32_t chunk_address(const struct descriptor *d, int mn_major, uint32_t mn, uint32_t k) {
  const uint32_t span = 16u << d->log;
  uint32_t a = d->start;
  if (!mn_major && !d->log)
    a += mn / 8 * d->sbo + k / 8 * d->lbo + mn % 8 * 16;
  else if (!mn_major)
    a += mn / 8 * d->sbo + mn % 8 * span + k / 8 * 16;
  else if (!d->log)
    a += mn / 8 * d->sbo + k / 8 * d->lbo + k % 8 * 16;
  else
    a += mn / (span / 2) * d->lbo + k / 8 * d->sbo + k % 8 * span + mn % (span / 2) * 2;
  return a ^ (a >> 7 & ((1u << d->log) - 1)) << 4;
}

static float widen(int dtype, uint16_t v) {
  return dtype == LOOM_WGMMA_BF16 ? loom_bits_f32((uint32_t)v << 16) : loom_f16_f32(v);
}

/* The operand as [mn][k] (transpose 0) or [k][mn], with every chunk judged; 0 after a finding. */
static int operand(struct cta *cta, struct wgmma_op *op, uint64_t desc, int mn_major, uint32_t rows,
                   const struct access *x, uint32_t views, float *out, int transpose) {
  const struct descriptor d = decode(desc);
  struct region *smem = cta->smem;
  if (d.start >> 7 & ((1u << d.log) - 1)) {
    finding_at(LOOM_MISALIGNED, op->site, cta, 0, d.start,
               "the operand does not start at row 0 of its swizzle pattern");
    return 0;
  }
  for (uint32_t mn = 0; mn < rows; mn += mn_major ? 8 : 1) {
    for (uint32_t k = 0; k < K; k += mn_major ? 1 : 8) {
      size_t offset;
      const uint32_t at = chunk_address(&d, mn_major, mn, k);
      if (!region_shared(cta, at, 16, &offset)) {
        finding_at(LOOM_ILLEGAL, op->site, cta, 0, at, "operand at shared %#x", at);
        return 0;
      }
      for (uint32_t v = 0; v < views; v++)
        shadow_granule(&x[v], smem, offset / 16, 0xffff);
      if (!shadow_written(smem, offset, 16))
        finding_at(LOOM_UNWRITTEN, op->site, cta, 0, at,
                   "multiplies bytes at shared %#x that nothing wrote", at);
      uint16_t e[8];
      memcpy(e, smem->base + offset, 16);
      for (uint32_t i = 0; i < 8; i++) {
        const uint32_t r = mn_major ? mn + i : mn, c = mn_major ? k : k + i;
        out[transpose ? c * rows + r : r * K + c] = widen(op->dtype, e[i]);
      }
    }
  }
  return 1;
}

/* The different things that the threads knew, one access each; of threads that knew the same, two,
 * since each also knows of its own accesses. */
static uint32_t views_of(struct cta *cta, struct warpgroup *w, const struct wgmma_op *op,
                         struct access *x) {
  uint32_t n = 0, alike = 0;
  for (uint32_t i = 0; i < 128; i++) {
    const struct known *known = &op->known[i];
    alike = n && !memcmp(&known->v, &x[n - 1].known->v, sizeof known->v) ? alike + 1 : 0;
    if (alike >= 2) continue;
    x[n].known = known;
    x[n].who = w->channel;
    x[n].time = w->executed + 1;
    x[n].flags = REC_ASYNC;
    x[n].scope = LOOM_SCOPE_cta;
    x[n].site = op->site;
    x[n].cta = cta;
    x[n].thread = (uint32_t)(w - cta->warpgroup) * 128 + i;
    n++;
  }
  return n;
}

/* Element i of thread t's accumulators. */
static uint32_t fragment_row(uint32_t t, uint32_t i) {
  return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
}
static uint32_t fragment_column(uint32_t t, uint32_t i) {
  return i / 4 * 8 + t % 4 * 2 + i % 2;
}

static void multiply(const float *a, const float *b, float *c, uint32_t n) {
  for (uint32_t m = 0; m < M; m++)
    for (uint32_t k = 0; k < K; k++) {
      const float x = a[m * K + k];
      for (uint32_t j = 0; j < n; j++)
        c[m * n + j] += x * b[k * n + j];
    }
}

static void run_one(struct cta *cta, struct warpgroup *w, struct wgmma_op *op) {
  static struct access x[128];
  static float a[M * K], b[K * 256], c[M * 256];
  const uint32_t n = op->n, views = views_of(cta, w, op, x);
  if (!operand(cta, op, op->desc_a, op->a_mn, M, x, views, a, 0)) return;
  if (!operand(cta, op, op->desc_b, op->b_mn, n, x, views, b, 1)) return;
  for (uint32_t t = 0; t < 128; t++)
    for (uint32_t i = 0; i < n / 2; i++)
      c[fragment_row(t, i) * n + fragment_column(t, i)] = op->scale_d ? op->d[t]->value[i] : 0.0f;
  multiply(a, b, c, n);
  for (uint32_t t = 0; t < 128; t++)
    for (uint32_t i = 0; i < n / 2; i++)
      op->d[t]->value[i] = c[fragment_row(t, i) * n + fragment_column(t, i)];
}

void wgmma_run(struct op *pending) {
  struct warpgroup *w = pending->warpgroup;
  struct wgmma_group *g = w->first;
  w->first = g->next;
  if (!w->first) w->last = NULL;
  for (struct wgmma_op *op = g->first, *next; op; op = next) {
    next = op->next;
    run_one(pending->issuer, w, op);
    free(op);
  }
  free(g);
  w->executed++;
  wake_all(&w->waiting);
}

static void ops_free(struct wgmma_op *op) {
  for (struct wgmma_op *next; op; op = next) {
    next = op->next;
    free(op);
  }
}

void warpgroup_free(struct warpgroup *w) {
  free(w->building);
  ops_free(w->open);
  for (struct wgmma_group *g = w->first, *next; g; g = next) {
    next = g->next;
    ops_free(g->first);
    free(g);
  }
  gather_free(&w->gather);
}
