/* The rules of the memory model. A new access meets the records of the bytes it touches; what
 * conflicts must be ordered before it, and where proxies or addresses differ, a fence must stand
 * between. Section numbers are of the PTX ISA; docs/loom.md gives the reasons.
 *
 * Records are pruned only where every later access that the old record would catch, the new one
 * catches too: a write replaces what is ordered before it; a read replaces an earlier read of the
 * same proxy alone. */
#include "finding.h"

#include <stdlib.h>
#include <string.h>

/* Record lists that outgrow a granule come from chunks that a run frees as a whole. */
#define CHUNK_RECORDS 65536u
struct chunk {
  struct chunk *next;
  uint32_t used, capacity;
  struct record record[];
};
static struct chunk *chunks;

static struct record *records_new(uint32_t n) {
  if (!chunks || n > chunks->capacity - chunks->used) {
    const uint32_t capacity = n > CHUNK_RECORDS ? n : CHUNK_RECORDS;
    struct chunk *c = malloc(sizeof *c + capacity * sizeof *c->record);
    if (!c) abort();
    c->next = chunks;
    c->used = 0;
    c->capacity = capacity;
    chunks = c;
    L.stats.shadow_bytes += sizeof *c + capacity * sizeof *c->record;
  }
  struct record *r = chunks->record + chunks->used;
  chunks->used += n;
  return r;
}

void shadow_reset(void) {
  while (chunks) {
    struct chunk *next = chunks->next;
    free(chunks);
    chunks = next;
  }
}

void shadow_forget(struct region *region) {
  const size_t granules = region->mapped / 16;
  for (size_t b = 0; b * GRANULE_BLOCK < granules; b++) {
    if (!region->touched[b]) continue;
    region->touched[b] = 0;
    for (size_t i = b * GRANULE_BLOCK; i < (b + 1) * GRANULE_BLOCK && i < granules; i++)
      memset(&region->shadow[i], 0, sizeof region->shadow[i]);
  }
}

struct access access_generic(struct loom_site *site, uint8_t flags, int scope) {
  struct thread *t = L.current;
  struct access x;
  x.known = &t->known;
  x.who = t->known.who;
  x.time = t->known.own[K_OBSERVED];
  x.flags = flags;
  x.scope = (uint8_t)scope;
  x.site = site;
  x.cta = t->cta;
  x.thread = t->index;
  return x;
}

/* 8.7: both strong, each scope holding the other's thread. */
static int morally_strong(const struct access *x, const struct record *r) {
  if (!(x->flags & r->flags & REC_STRONG)) return 0;
  const int d = distance(x->cta, L.cta[r->cta]);
  return x->scope >= d && r->scope >= d;
}

/* Data read by ld.global.nc may not be written while its kernel runs: ordered or not. */
static int nc_conflict(const struct access *x, const struct record *r) {
  const struct launch *earlier = L.cta[r->cta]->launch, *later = x->cta->launch;
  const int kernels_ordered = earlier->end_order && earlier->end_order < later->start_order;
  return ((x->flags | r->flags) & REC_NC) && !kernels_ordered;
}

/* Whether a fence made r visible to the async proxy for x (8.6; 8.9.5 inside one CTA). */
static int visible_to_async(const struct access *x, const struct record *r,
                            const struct region *region) {
  if (!region->cta) return known_seen(x->known, K_ASYNC_GLOBAL, r->who, r->time);
  if (known_seen(x->known, K_ASYNC_SHARED, r->who, r->time)) return 1;
  return L.cta[r->cta] == region->cta && known_seen(x->known, K_OWNER, r->who, r->time);
}

/* Whether two async accesses, in this order, lie beyond the causality of one CTA (8.9.5). In shared
 * memory completion is enough for a later write; reductions at GPU scope need no order at all. */
static int leaves_its_cta(const struct access *x, const struct record *r,
                          const struct region *region) {
  if (clock_cta(r->who) == x->cta->id) return 0;
  if (!(x->flags & REC_WRITE)) return 1;
  return !region->cta && !morally_strong(x, r);
}

static const char *fence_for(const struct region *region, const struct record *r) {
  if (!region->cta)
    return "fence.proxy.async.global in the CTA of the async operation, after it has acquired";
  if (r->flags & REC_WRITE)
    return "fence.proxy.async.shared::cta in the writing thread, before it signals";
  return "fence.proxy.async.shared::cta in the reading thread, before it signals";
}

/* Judges conflicting accesses; true when r is ordered before x (or was reported). */
static int judge(const struct access *x, const struct record *r, const struct region *region,
                 size_t offset) {
  const int x_async = x->flags & REC_ASYNC, r_async = r->flags & REC_ASYNC;
  const int x_write = x->flags & REC_WRITE;
  const int same_thread = !x_async && !r_async && x->who == r->who;
  const int observed = same_thread || known_seen(x->known, K_OBSERVED, r->who, r->time);

  if (nc_conflict(x, r)) {
    finding_conflict(LOOM_NC_CONFLICT, x, r, region, offset, NULL);
    return 1;
  }
  if (!observed) {
    /* In shared memory, an async operation known to be complete has bound what it read and stored
     * what it wrote: a later write cannot reach back before it, through whatever link that was
     * learnt. */
    if (r_async && x_write && region->cta && known_seen(x->known, K_EXECUTED, r->who, r->time))
      return 1;
    if (morally_strong(x, r)) return 0;
    finding_conflict(LOOM_RACE, x, r, region, offset, NULL);
    return 1;
  }
  if (x_async && !r_async && !visible_to_async(x, r, region)) {
    finding_conflict(LOOM_PROXY_FENCE, x, r, region, offset, fence_for(region, r));
    return 1;
  }
  if (x_async && r_async && leaves_its_cta(x, r, region) && !visible_to_async(x, r, region)) {
    finding_conflict(LOOM_PROXY_FENCE, x, r, region, offset, fence_for(region, r));
    return 1;
  }
  if (r->alias != region->alias && !known_seen(x->known, K_ALIAS, r->who, r->time)) {
    finding_conflict(LOOM_ALIAS_FENCE, x, r, region, offset, "fence.proxy.alias");
    return 1;
  }
  return 1;
}

static int replaces(const struct access *x, const struct record *r, const struct region *region) {
  if (x->flags & REC_WRITE) return 1;
  if (r->flags & REC_WRITE || r->alias != region->alias) return 0;
  if ((x->flags ^ r->flags) & (REC_ASYNC | REC_NC)) return 0;
  return !(x->flags & REC_ASYNC) || x->who == r->who;
}

void shadow_granule(const struct access *x, struct region *region, size_t granule, uint16_t mask) {
  struct granule *g = &region->shadow[granule];
  struct record *list = g->more ? g->more : g->few;
  const uint32_t few = sizeof g->few / sizeof *g->few;
  uint32_t kept = 0;
  region->touched[granule / GRANULE_BLOCK] = 1;
  L.stats.granules++;
  L.stats.records_scanned += g->n;
  for (uint32_t i = 0; i < g->n; i++) {
    struct record r = list[i];
    if (r.mask & mask) {
      const int conflict = (x->flags | r.flags) & REC_WRITE;
      int ordered;
      if (conflict)
        ordered = judge(x, &r, region, granule * 16);
      else
        ordered =
            x->who == r.who ? x->time >= r.time : known_seen(x->known, K_OBSERVED, r.who, r.time);
      if (ordered && replaces(x, &r, region)) {
        r.mask &= (uint16_t)~mask;
        if (!r.mask) continue;
      }
    }
    list[kept++] = r;
  }
  const uint32_t capacity = g->more ? g->capacity : few;
  if (kept == capacity) {
    struct record *more = records_new(capacity * 2);
    memcpy(more, list, kept * sizeof *more);
    g->more = list = more;
    g->capacity = capacity * 2;
  }
  struct record *r = &list[kept];
  r->who = x->who;
  r->time = x->time;
  r->site = (uint16_t)x->site->id;
  r->mask = mask;
  r->flags = x->flags;
  r->scope = x->scope;
  r->alias = (uint8_t)region->alias;
  r->pad = 0;
  r->cta = (uint16_t)x->cta->id;
  r->thread = (uint16_t)x->thread;
  g->n = kept + 1;
}

/* The bytes of granule `granule` that lie in [begin, end). */
static uint16_t granule_mask(size_t granule, size_t begin, size_t end) {
  const size_t low = begin > granule * 16 ? begin - granule * 16 : 0;
  const size_t high = end < granule * 16 + 16 ? end - granule * 16 : 16;
  return (uint16_t)((0xffffu << low) & (0xffffu >> (16 - high)));
}

void shadow_range(const struct access *x, struct region *region, size_t offset, size_t bytes) {
  L.stats.accesses++;
  const size_t end = offset + bytes;
  for (size_t g = offset / 16; g * 16 < end; g++)
    shadow_granule(x, region, g, granule_mask(g, offset, end));
}

int shadow_written(const struct region *region, size_t offset, size_t bytes) {
  const size_t end = offset + bytes;
  for (size_t g = offset / 16; g * 16 < end; g++) {
    const uint16_t mask = granule_mask(g, offset, end);
    if ((region->written[g] & mask) != mask) return 0;
  }
  return 1;
}

void shadow_mark(struct region *region, size_t offset, size_t bytes) {
  const size_t end = offset + bytes;
  for (size_t g = offset / 16; g * 16 < end; g++)
    region->written[g] |= granule_mask(g, offset, end);
}

void shadow_put_written(struct region *region, size_t offset, uint32_t bytes, uint16_t mask) {
  for (uint32_t i = 0; i < bytes; i++) {
    uint16_t *written = &region->written[(offset + i) / 16];
    const uint16_t bit = (uint16_t)(1u << (offset + i) % 16);
    *written = (uint16_t)(mask >> i & 1 ? *written | bit : *written & ~bit);
  }
}
