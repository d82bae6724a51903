/* Launches: streams, residency, and the life of CTAs and threads. */
#define _GNU_SOURCE
#include "async.h"
#include "fiber.h"
#include "finding.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of one SM of Hopper. */
#define SM_SHARED_BYTES  (228u * 1024u)
#define SM_SHARED_SYSTEM 1024u /* taken from each CTA */
#define SM_THREADS       2048u
#define SM_CTAS          32u
#define CTA_SHARED_MAX   (227u * 1024u)
#define SM_REGISTERS     65536u
#define THREAD_REGISTERS 256u

/* A fiber's stack: device code keeps accumulators on it, and the executor's own frames come on top.
 * The lowest page is no one's, so that an overflow faults instead of spoiling a neighbour; a
 * process has too few mappings (65530 by default) for more than so many of these, and the others
 * have a mark there. */
#define STACK_BYTES    (128u * 1024u)
#define PAGE_BYTES     4096u
#define STACKS_GUARDED 16384u
#define STACK_MARK     0x6c6f6f6d77656674ull

static uint8_t *stacks;
static size_t stack_count;

static uint8_t *stack_of(size_t i, size_t total) {
  if (stack_count < total) {
    if (stacks) munmap(stacks, stack_count * STACK_BYTES);
    stack_count = total;
    stacks = mmap(NULL, total * STACK_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    for (size_t s = 0; s < total && s < STACKS_GUARDED; s++)
      mprotect(stacks + s * STACK_BYTES, PAGE_BYTES, PROT_NONE);
  }
  return stacks + i * STACK_BYTES;
}

static uint32_t max_u32(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

static int launch_add(const struct loom_launch *config, int in_stream) {
  if (!L.begun || L.running || !config->kernel || config->gpu >= L.config.gpus) return -1;
  const struct loom_kernel *k = config->kernel;
  if (config->ctas == 0 || config->ctas % k->cluster || config->smem_bytes > CTA_SHARED_MAX ||
      k->threads == 0 || k->threads > 1024)
    return -1;
  struct launch **grown = realloc(L.launch, (L.launches + 1) * sizeof *grown);
  if (!grown) return -1;
  L.launch = grown;
  struct launch *n = calloc(1, sizeof *n);
  if (!n) return -1;
  n->config = *config;
  n->args = aligned_alloc(64, (k->args_size + 63) & ~(size_t)63);
  if (!n->args) {
    free(n);
    return -1;
  }
  memcpy(n->args, config->args, k->args_size);
  n->in_stream = in_stream;
  for (uint32_t i = L.launches; in_stream && i-- > 0;)
    if (L.launch[i]->in_stream && L.launch[i]->config.gpu == config->gpu) {
      n->after = L.launch[i];
      break;
    }
  const uint32_t by_shared = (config->smem_bytes + SM_SHARED_SYSTEM) * SM_PARTS / SM_SHARED_BYTES;
  const uint32_t by_threads = (k->threads + 31) / 32 * 32 * SM_PARTS / SM_THREADS;
  n->parts_per_cta = max_u32(max_u32(by_shared, by_threads), SM_PARTS / SM_CTAS);
  L.launch[L.launches++] = n;
  return 0;
}

int loom_launch(const struct loom_launch *config) {
  return launch_add(config, 1);
}
int loom_launch_concurrent(const struct loom_launch *config) {
  return launch_add(config, 0);
}

/* ---- building ---- */

static struct cta *cta_new(struct launch *launch, uint32_t index) {
  const struct loom_kernel *k = launch->config.kernel;
  struct cta *c = calloc(1, sizeof *c);
  if (!c) abort();
  c->id = L.ctas;
  c->launch = launch;
  c->gpu = launch->config.gpu;
  c->index = index;
  c->rank = index % k->cluster;
  c->threads = c->live = k->threads;
  c->warps = (k->threads + 31) / 32;
  return c;
}

/* Decides how large clocks are and makes every CTA's frame; memory and threads come at its start.
 */
void launches_prepare(void) {
  uint32_t total = 0, threads = 0;
  for (uint32_t i = 0; i < L.launches; i++) {
    total += L.launch[i]->config.ctas;
    threads = max_u32(threads, L.launch[i]->config.kernel->threads);
  }
  L.cta = calloc(total ? total : 1, sizeof *L.cta);
  L.sm_parts = calloc(L.config.gpus, sizeof *L.sm_parts);
  if (!L.cta || !L.sm_parts) abort();
  /* channels: two a thread for bulk groups, one a warpgroup, one an mbarrier */
  const uint32_t warps = (threads + 31) / 32, channels = 2 * threads + threads / 128 + 256;
  L.first_channel_leaf = warps;
  L.leaves = warps + (channels + 31) / 32;
  clock_reset(total ? total : 1, L.leaves);
  for (uint32_t i = 0; i < L.launches; i++) {
    struct launch *n = L.launch[i];
    const uint32_t size = n->config.kernel->cluster;
    n->first_cta = L.ctas;
    struct cluster *cluster = NULL;
    for (uint32_t c = 0; c < n->config.ctas; c++) {
      if (c % size == 0) {
        cluster = calloc(1, sizeof *cluster);
        if (!cluster || !(cluster->cta = calloc(size, sizeof *cluster->cta))) abort();
        cluster->size = size;
        cluster->live = size * n->config.kernel->threads;
      }
      struct cta *cta = cta_new(n, c);
      cta->cluster = cluster;
      cluster->cta[c % size] = cta;
      L.cta[L.ctas++] = cta;
    }
  }
}

uint32_t channel_new(struct cta *cta) {
  const uint32_t slot = L.first_channel_leaf * 32 + cta->next_channel++;
  if (slot >= clock_slots()) abort(); /* launches_prepare counts all kinds of them */
  return clock_who(cta->id, slot);
}

/* Registers of a thread at launch: for a kernel with setmaxnreg the compiler takes what its launch
 * bounds leave, in whole units of 8. */
static uint32_t launch_registers(const struct cta *c) {
  const uint32_t n = SM_REGISTERS / (c->warps * 32) / 8 * 8;
  return n < THREAD_REGISTERS ? n : THREAD_REGISTERS;
}

static void cta_start(struct cta *c) {
  const struct launch *launch = c->launch;
  const struct loom_kernel *k = launch->config.kernel;
  c->started = 1;
  c->smem = region_new(SMEM_START + launch->config.smem_bytes, c->gpu, c);
  c->thread = calloc(c->threads, sizeof *c->thread);
  c->meeting = calloc(c->warps, sizeof *c->meeting);
  c->warpgroup = calloc(c->threads / 128 + 1, sizeof *c->warpgroup);
  c->mbarrier = calloc(256, sizeof(struct mbarrier *));
  c->mbarrier_at = calloc((SMEM_START + launch->config.smem_bytes) / 8 + 1, sizeof(uint16_t));
  if (!c->smem || !c->thread || !c->meeting || !c->warpgroup || !c->mbarrier || !c->mbarrier_at)
    abort();
  c->elect_salt = random_next();
  for (uint32_t w = 0; w < c->warps; w++)
    c->meeting[w].registers = launch_registers(c);
  const struct view start = launch->after ? launch->after->end : (struct view){{0}};
  for (uint32_t i = 0; i < c->threads; i++) {
    struct thread *t = &c->thread[i];
    t->self = (struct loom_self){i,       k->threads, c->index,         launch->config.ctas,
                                 c->rank, k->cluster, {.a = SMEM_START}};
    t->cta = c;
    t->index = i;
    t->warp = i / 32;
    t->lane = i % 32;
    t->known.v = start;
    t->known.who = clock_who(c->id, i);
    t->known.own[K_OBSERVED] = ++L.epoch;
    t->fenced_scope = -1;
    uint8_t *stack = stack_of(L.stacks_used, L.stacks_total);
    if (L.stacks_used >= STACKS_GUARDED) {
      t->stack_mark = (uint64_t *)(void *)stack;
      *t->stack_mark = STACK_MARK;
    }
    t->sp = fiber_make(stack, STACK_BYTES, (unsigned)L.stacks_used, thread_main);
    L.stacks_used++;
    L.live++;
    ready(t);
  }
}

static int fits(const struct launch *n, uint32_t ctas) {
  const uint64_t sms = L.config.sms_per_gpu;
  /* whole CTAs an SM, so that fractions don't add up across SMs */
  const uint64_t capacity = sms * (SM_PARTS / n->parts_per_cta) * n->parts_per_cta;
  return L.sm_parts[n->config.gpu] + (uint64_t)ctas * n->parts_per_cta <= capacity;
}

/* Starts what may start: grids whose predecessor has ended, cluster by cluster, while there is
 * room. */
void launches_start(void) {
  for (uint32_t i = 0; i < L.launches; i++) {
    struct launch *n = L.launch[i];
    const uint32_t size = n->config.kernel->cluster;
    if (n->end_order || (n->after && !n->after->end_order)) continue;
    if (!n->start_order) {
      if (n->config.cooperative && !fits(n, n->config.ctas) && !L.sm_parts[n->config.gpu]) {
        finding_run(LOOM_NOT_CORESIDENT, "cooperative launch of %s: %u CTAs do not fit on rank %u",
                    n->config.kernel->name, n->config.ctas, n->config.gpu);
        L.stopped = 1;
        return;
      }
      if (n->config.cooperative && !fits(n, n->config.ctas)) continue;
      n->start_order = ++L.order;
    }
    while (n->started < n->config.ctas && fits(n, size)) {
      L.sm_parts[n->config.gpu] += size * n->parts_per_cta;
      for (uint32_t c = 0; c < size; c++)
        cta_start(L.cta[n->first_cta + n->started + c]);
      n->started += size;
      n->live += size;
    }
  }
}

int ctas_waiting_to_start(void) {
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < L.launches; i++)
    waiting += L.launch[i]->config.ctas - L.launch[i]->started;
  return (int)waiting;
}

/* Those whose stream would let them start. */
int ctas_waiting_for_room(void) {
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < L.launches; i++) {
    const struct launch *n = L.launch[i];
    if (!n->after || n->after->end_order) waiting += n->config.ctas - n->started;
  }
  return (int)waiting;
}

/* ---- ends ---- */

/* The stream's next grid sees all that this one did, through every proxy (PTX 8.6: the API's
 * synchronisation). */
static void launch_end(struct launch *n) {
  n->end = gather_close(&n->end_gather);
  for (uint32_t i = 0; i < n->config.ctas; i++) {
    const struct cta *c = L.cta[n->first_cta + i];
    clk *o = &n->end.k[K_OBSERVED];
    for (uint32_t s = 0; s < c->next_channel; s++)
      *o = clock_set(*o, clock_who(c->id, L.first_channel_leaf * 32 + s), ~0u);
  }
  for (int k = 0; k < KNOWN; k++)
    n->end.k[k] = n->end.k[K_OBSERVED];
  n->end_order = ++L.order;
}

/* The grid ends when its async operations have. */
static void drain(const struct launch *n) {
  for (uint32_t i = 0; i < L.pendings;) {
    struct op *op = L.pending[i];
    if (op->issuer->launch != n) {
      i++;
      continue;
    }
    L.pending[i] = L.pending[--L.pendings];
    while (!op_step(op)) {
    }
  }
}

/* What other CTAs did in this CTA's shared memory must have happened before its last thread left.
 */
static void check_visitors(struct cta *c) {
  if (c->cluster->size == 1) return;
  const struct known leaving = {c->leaving, {0}, c->thread[0].known.who};
  for (size_t g = 0; g < c->smem->mapped / 16; g++) {
    const struct granule *q = &c->smem->shadow[g];
    for (uint32_t i = 0; i < q->n; i++) {
      const struct record *r = q->more ? &q->more[i] : &q->few[i];
      if (r->cta == c->id || known_seen(&leaving, K_OBSERVED, r->who, r->time) ||
          (r->flags & REC_ASYNC && known_seen(&leaving, K_EXECUTED, r->who, r->time)))
        continue;
      finding_at(LOOM_EXITED_CTA, loom_sites(NULL)[r->site], L.cta[r->cta], r->thread, g * 16,
                 "nothing keeps CTA %u from exiting before this access to its shared memory",
                 c->rank);
    }
  }
}

/* The same of arrivals on its barriers; that they have executed is enough. */
static void check_visits(const struct cta *c) {
  const struct known leaving = {c->leaving, {0}, c->thread[0].known.who};
  for (uint32_t i = 0; i < c->visits; i++) {
    const struct visit *v = &c->visit[i];
    if (known_seen(&leaving, K_OBSERVED, v->who, v->time) ||
        known_seen(&leaving, K_EXECUTED, v->who, v->time))
      continue;
    finding_at(LOOM_EXITED_CTA, v->site, v->from, v->thread, 0,
               "nothing keeps CTA %u from exiting before this arrival on its barrier", c->rank);
  }
}

/* Nor may a copy into its shared memory be still to come. */
static void check_loads(const struct cta *c) {
  for (uint32_t i = 0; i < L.pendings; i++) {
    const struct op *op = L.pending[i];
    if (!op->barrier || op->shared_cta != c) continue;
    finding_at(LOOM_EXITED_CTA, op->site, op->issuer, op->thread->index, 0,
               "CTA %u exits while this copy into its shared memory is not done", c->rank);
  }
}

static void cta_exit(struct cta *c) {
  check_visits(c);
  check_loads(c);
  check_visitors(c);
  c->exited = 1;
  struct launch *n = c->launch;
  uint32_t live = 0;
  for (uint32_t i = 0; i < c->cluster->size; i++)
    live += !c->cluster->cta[i]->exited;
  if (live) return;
  L.sm_parts[c->gpu] -= c->cluster->size * n->parts_per_cta;
  n->live -= c->cluster->size;
  if (n->live == 0 && n->started == n->config.ctas) {
    drain(n);
    launch_end(n);
  }
  launches_start();
}

/* A thread may not leave while its bulk stores may still read the shared memory of its CTA. */
static void check_bulk_stores(struct thread *t) {
  if (!t->channel_read || !t->last_store) return;
  if (known_seen(&t->known, K_OBSERVED, t->channel_read, t->last_store_group)) return;
  finding_at(LOOM_EXITED_CTA, t->last_store, t->cta, t->index, 0,
             "the thread exits without having waited until shared memory was read");
}

static void check_accumulators(const struct thread *t) {
  for (uint32_t i = 0; i < t->accumulators; i++)
    if (t->accumulator[i]->in_flight) {
      finding_at(LOOM_REGISTER_HAZARD, t->accumulator[i]->site, t->cta, t->index, 0,
                 "the thread exits without having waited for this wgmma");
      return;
    }
}

void thread_exited(struct thread *t) {
  if (t->stack_mark && *t->stack_mark != STACK_MARK) abort(); /* a neighbour's frames are gone */
  check_bulk_stores(t);
  check_accumulators(t);
  gather_add(&t->cta->launch->end_gather, t, ~0u);
  if (t->cta->cluster->size > 1) {
    const struct view v = known_view(t);
    for (int k = 0; k < KNOWN; k++)
      t->cta->leaving.k[k] = clock_join(t->cta->leaving.k[k], v.k[k]);
  }
  t->cta->cluster->live--;
  cluster_check(t->cta->cluster);
  if (--t->cta->live == 0) cta_exit(t->cta);
}

static void cta_free(struct cta *c) {
  for (uint32_t i = 0; c->thread && i < c->threads; i++) {
    free(c->thread[i].group);
    for (uint32_t a = 0; a < c->thread[i].accumulators; a++)
      free(c->thread[i].accumulator[a]);
  }
  for (uint32_t i = 0; i < c->mbarriers; i++) {
    gather_free(&c->mbarrier[i]->gather);
    gather_free(&c->mbarrier[i]->cluster);
    free(c->mbarrier[i]->passed);
    free(c->mbarrier[i]);
  }
  for (int i = 0; i < 16; i++)
    gather_free(&c->named[i].gather);
  for (uint32_t i = 0; c->warpgroup && i < c->threads / 128; i++)
    warpgroup_free(&c->warpgroup[i]);
  for (uint32_t i = 0; c->meeting && i < c->warps; i++)
    gather_free(&c->meeting[i].gather);
  if (c->rank == 0) {
    gather_free(&c->cluster->gather);
    free(c->cluster->cta);
    free(c->cluster);
  }
  gather_free(&c->cluster_gather);
  free(c->visit);
  free(c->mbarrier);
  free(c->mbarrier_at);
  free(c->meeting);
  free(c->warpgroup);
  free(c->thread);
  free(c);
}

/* Forgets a run: its grids, CTAs and threads, and what memory remembers of them. */
void launches_reset(void) {
  while (L.pendings)
    op_free(L.pending[--L.pendings]);
  for (uint32_t i = 0; i < L.ctas; i++)
    cta_free(L.cta[i]);
  for (uint32_t i = 0; i < L.launches; i++) {
    gather_free(&L.launch[i]->end_gather);
    free(L.launch[i]->args);
    free(L.launch[i]);
  }
  free(L.launch);
  free(L.cta);
  free(L.sm_parts);
  L.launch = NULL;
  L.cta = NULL;
  L.sm_parts = NULL;
  L.launches = L.ctas = 0;
  while (L.regions > L.global_regions)
    region_free(&L.region[--L.regions]);
  for (uint32_t i = 0; i < L.regions; i++)
    if (!L.region[i].alias) shadow_forget(&L.region[i]);
}
