/* Bulk copies and bulk groups: what the instructions do at issue, and the waits. */
#include "async.h"

#include "finding.h"
#include "mbarrier.h"

static struct box linear(uint64_t global, uint32_t shared, uint32_t bytes) {
  struct box box = {0};
  box.global = global;
  box.shared = shared;
  box.units = box.row_units = bytes / 16;
  return box;
}

/* Both ends of a copy's global range, so that it fails at issue and not piece by piece. */
static void global_check(struct loom_site *site, struct gmem p, uint32_t bytes) {
  size_t offset;
  const struct region *g = region_global(p.a, bytes, &offset);
  const uint32_t per_host = L.config.gpus_per_host, own = L.current->cta->gpu;
  if (!g)
    finding_here(LOOM_ILLEGAL, site, p.a, "%u bytes at global %#llx are outside every allocation",
                 bytes, (unsigned long long)p.a);
  else if (per_host && g->gpu / per_host != own / per_host)
    finding_here(LOOM_ILLEGAL, site, p.a, "memory of rank %u is on another host", g->gpu);
  else
    return;
  stop_run();
}

void loom_bulk_load(struct loom_site *site, struct smem dst, struct gmem src, uint32_t bytes,
                    struct smem bar, uint32_t mask) {
  enter(site);
  copy_check(site, dst.a, src.a, bytes);
  global_check(site, src, bytes);
  const struct box box = linear(src.a, dst.a, bytes);
  load_issue(site, &box, bar, mask);
}

void loom_bulk_push(struct loom_site *site, struct dsmem dst, struct smem src, uint32_t bytes,
                    struct dsmem bar) {
  enter(site);
  struct cta *own = L.current->cta;
  copy_check(site, dst.a & 0xffffffu, src.a, bytes);
  const uint32_t rank = dst.a >> 24 ? (dst.a >> 24) - 1 : own->rank;
  if (rank >= own->cluster->size || (bar.a >> 24 ? (bar.a >> 24) - 1 : own->rank) != rank) {
    finding_here(LOOM_ILLEGAL, site, dst.a, "destination and barrier must be in one CTA");
    stop_run();
  }
  struct cta *cta = own->cluster->cta[rank];
  shared_check(site, own, src.a, bytes);
  shared_check(site, cta, dst.a & 0xffffffu, bytes);
  struct op *op = op_new(site, OP_LOAD);
  op->box = linear(0, dst.a & 0xffffffu, bytes);
  op->shared_cta = cta;
  op->source_cta = own;
  op->source_shared = src.a;
  op->barrier = mbarrier_at(site, cta, bar.a & 0xffffffu);
  op_issue(op);
}

void loom_bulk_store(struct loom_site *site, struct gmem dst, struct smem src, uint32_t bytes,
                     int reduce) {
  enter(site);
  copy_check(site, dst.a, src.a, bytes);
  global_check(site, dst, bytes);
  const struct box box = linear(dst.a, src.a, bytes);
  store_issue(site, &box, reduce);
}

void loom_bulk_commit(struct loom_site *site) {
  enter(site);
  struct thread *t = L.current;
  t->committed++;
  t->open = 0;
}

/* Whether groups up to `last` have nothing left to read, or to write. */
static int groups_done(const struct thread *t, uint32_t last, int read) {
  for (uint32_t i = 0; i < t->groups; i++)
    if (t->group[i].index <= last && (read ? t->group[i].reads : t->group[i].writes)) return 0;
  return 1;
}

void loom_bulk_wait(struct loom_site *site, uint32_t groups, int read) {
  if (enter(site)) return;
  struct thread *t = L.current;
  if (t->committed < groups) return;
  const uint32_t last = t->committed - groups;
  while (!groups_done(t, last, read)) {
    t->waits_bulk = 1;
    block(site);
  }
  if (!t->channel_read || !last) return;
  clk *observed = &t->known.v.k[K_OBSERVED];
  *observed = clock_set(*observed, t->channel_read, last);
  if (!read) *observed = clock_set(*observed, t->channel_write, last);
}
