/* Loads, stores and atomics of the generic proxy. */
#include "finding.h"
#include "word.h"

#include <string.h>

/* Finds [address, address + bytes) in a space; NULL after a finding. */
static struct region *resolve(struct loom_site *site, int space, uint64_t address, uint32_t bytes,
                              size_t *offset) {
  struct cta *cta = L.current->cta;
  struct region *g = NULL;
  if (address % bytes) {
    finding_here(LOOM_MISALIGNED, site, address, "address %#llx is not a multiple of %u bytes",
                 (unsigned long long)address, bytes);
    return NULL;
  }
  if (space == LOOM_SPACE_global) {
    g = region_global(address, bytes, offset);
    const uint32_t per_host = L.config.gpus_per_host;
    if (g && per_host && g->gpu / per_host != cta->gpu / per_host) {
      finding_here(LOOM_ILLEGAL, site, address, "memory of rank %u is on another host", g->gpu);
      return NULL;
    }
  } else {
    struct cta *owner = cta;
    if (space == LOOM_SPACE_dsmem && address >> 24) {
      const uint32_t rank = (uint32_t)(address >> 24) - 1;
      owner = rank < cta->cluster->size ? cta->cluster->cta[rank] : NULL;
    }
    if (owner && owner->exited) {
      finding_here(LOOM_EXITED_CTA, site, address, "CTA %u of the cluster has exited", owner->rank);
      return NULL;
    }
    if (owner) g = region_shared(owner, (uint32_t)(address & 0xffffffu), bytes, offset);
  }
  if (!g)
    finding_here(LOOM_ILLEGAL, site, address, "address %#llx is outside every allocation",
                 (unsigned long long)address);
  return g;
}

static void check_written(struct loom_site *site, const struct region *g, size_t offset,
                          uint32_t bytes, uint64_t address) {
  if (!shadow_written(g, offset, bytes))
    finding_here(LOOM_UNWRITTEN, site, address, "reads bytes at %#llx that nothing wrote",
                 (unsigned long long)address);
}

void loom_load(struct loom_site *site, int space, uint64_t address, void *value, uint32_t bytes,
               int order, int scope) {
  const int dropped = enter(site), strong = order != LOOM_ORDER_weak;
  size_t offset;
  memset(value, 0xff, bytes);
  struct region *g = resolve(site, space, address, bytes, &offset);
  if (!g) return;
  if (strong) word_load(g, offset, order == LOOM_ORDER_acquire && !dropped, scope);
  const struct access x = access_generic(site, strong ? REC_STRONG : 0, scope);
  shadow_range(&x, g, offset, bytes);
  check_written(site, g, offset, bytes, address);
  memcpy(value, g->base + offset, bytes);
}

void loom_load_nc(struct loom_site *site, uint64_t address, void *value, uint32_t bytes) {
  enter(site);
  size_t offset;
  memset(value, 0xff, bytes);
  struct region *g = resolve(site, LOOM_SPACE_global, address, bytes, &offset);
  if (!g) return;
  const struct access x = access_generic(site, REC_NC, LOOM_SCOPE_cta);
  shadow_range(&x, g, offset, bytes);
  check_written(site, g, offset, bytes, address);
  memcpy(value, g->base + offset, bytes);
}

void loom_store(struct loom_site *site, int space, uint64_t address, const void *value,
                uint32_t bytes, int order, int scope) {
  const int dropped = enter(site), strong = order != LOOM_ORDER_weak;
  size_t offset;
  struct region *g = resolve(site, space, address, bytes, &offset);
  if (!g) return;
  const struct access x =
      access_generic(site, (uint8_t)(REC_WRITE | (strong ? REC_STRONG : 0)), scope);
  shadow_range(&x, g, offset, bytes);
  shadow_mark(g, offset, bytes);
  memcpy(g->base + offset, value, bytes);
  if (strong) {
    word_store(g, offset, order == LOOM_ORDER_release && !dropped, scope, 0);
    word_wake(g, offset, bytes);
  } else {
    word_overwritten(g, offset, bytes);
  }
}

uint64_t loom_atomic(struct loom_site *site, int op, int space, uint64_t address, uint32_t bytes,
                     uint64_t compare, uint64_t value, int order, int scope) {
  const int dropped = enter(site);
  const int acquire = (order == LOOM_ORDER_acquire || order == LOOM_ORDER_acq_rel) && !dropped;
  const int release = (order == LOOM_ORDER_release || order == LOOM_ORDER_acq_rel) && !dropped;
  size_t offset;
  struct region *g = resolve(site, space, address, bytes, &offset);
  if (!g) return 0;
  word_load(g, offset, acquire, scope);
  const struct access x = access_generic(site, REC_WRITE | REC_STRONG, scope);
  shadow_range(&x, g, offset, bytes);
  check_written(site, g, offset, bytes, address);
  shadow_mark(g, offset, bytes);
  uint64_t old = 0;
  memcpy(&old, g->base + offset, bytes); /* little-endian hosts */
  const uint64_t mask = bytes == 8 ? ~0ull : 0xffffffffull;
  uint64_t result = op == LOOM_ATOM_add ? old + value : value;
  const int stores = op != LOOM_ATOM_cas || old == (compare & mask);
  if (stores) {
    memcpy(g->base + offset, &result, bytes);
    word_store(g, offset, release, scope, 1);
    word_wake(g, offset, bytes);
  }
  return old;
}

void loom_red_f32(struct loom_site *site, struct gmem p, float v) {
  enter(site);
  size_t offset;
  struct region *g = resolve(site, LOOM_SPACE_global, p.a, 4, &offset);
  if (!g) return;
  const struct access x = access_generic(site, REC_WRITE | REC_STRONG, LOOM_SCOPE_gpu);
  shadow_range(&x, g, offset, 4);
  check_written(site, g, offset, 4, p.a);
  float old;
  memcpy(&old, g->base + offset, 4);
  old += v;
  memcpy(g->base + offset, &old, 4);
  word_store(g, offset, 0, LOOM_SCOPE_gpu, 1);
  word_wake(g, offset, 4);
}

void loom_red_f32x2(struct loom_site *site, struct gmem p, struct f32x2 v) {
  size_t offset;
  if (!resolve(site, LOOM_SPACE_global, p.a, 8, &offset)) return;
  loom_red_f32(site, p, v.x);
  loom_red_f32(site, gmem_add(p, 4), v.y);
}

/* Proxy fences: what this thread has observed becomes visible to the other proxy. */
void loom_fence_proxy(struct loom_site *site, int spaces) {
  if (enter(site)) return;
  struct known *k = &L.current->known;
  const int which[3] = {K_ASYNC_GLOBAL, K_ASYNC_SHARED, K_ALIAS};
  const int bit[3] = {LOOM_FENCE_GLOBAL, LOOM_FENCE_SHARED, LOOM_FENCE_ALIAS};
  for (int i = 0; i < 3; i++) {
    if (!(spaces & bit[i])) continue;
    k->v.k[which[i]] = clock_join(k->v.k[which[i]], k->v.k[K_OBSERVED]);
    k->own[which[i]] = k->own[K_OBSERVED];
  }
  known_tick(k);
}

void loom_fence_mbarrier_init(struct loom_site *site) {
  if (enter(site)) return;
  struct known *k = &L.current->known;
  k->own[K_INIT] = k->own[K_OBSERVED];
  known_tick(k);
}

/* Until the word has reached a value: sleeps till somebody writes it, the error word is set, or,
 * when nothing else can move, its time is up. */
uint32_t loom_wait_ge(struct loom_site *site, struct gmem p, uint64_t value, uint32_t bytes,
                      int scope, struct gmem error, uint64_t timeout_ns, uint32_t code) {
  if (enter(site)) return 1;
  struct thread *t = L.current;
  size_t offset, error_offset;
  struct region *g = resolve(site, LOOM_SPACE_global, p.a, bytes, &offset);
  struct region *e = resolve(site, LOOM_SPACE_global, error.a, 4, &error_offset);
  if (!g || !e) return 0;
  t->deadline = L.time + timeout_ns;
  for (;;) {
    uint64_t seen = 0;
    uint32_t failed;
    memcpy(&seen, g->base + offset, bytes); /* little-endian hosts */
    memcpy(&failed, e->base + error_offset, 4);
    const int reached =
        bytes == 8 ? (int64_t)(seen - value) >= 0 : (int32_t)(uint32_t)(seen - value) >= 0;
    if (shadow_written(g, offset, bytes) && reached) {
      loom_load(site, LOOM_SPACE_global, p.a, &seen, bytes,
                site->kind == LOOM_KIND_wait ? LOOM_ORDER_acquire : LOOM_ORDER_relaxed, scope);
      return 1;
    }
    check_written(site, g, offset, bytes, p.a);
    if (failed && shadow_written(e, error_offset, 4)) return 0;
    t->word = ((uint64_t)(g->first + 1) << 40) + offset;
    t->error_word = ((uint64_t)(e->first + 1) << 40) + error_offset;
    t->timed_out = 0;
    t->next = L.word_waiters;
    L.word_waiters = t;
    block(site);
    if (!t->timed_out) continue;
    if (!L.config.timeouts_expected)
      finding_here(LOOM_TIMEOUT, site, p.a, "waited for %llu, the word held %llu",
                   (unsigned long long)value, (unsigned long long)seen);
    loom_atomic(site, LOOM_ATOM_cas, LOOM_SPACE_global, error.a, 4, 0, code, LOOM_ORDER_relaxed,
                LOOM_SCOPE_sys);
    return 0;
  }
}
