/* Async operations in flight. A copy lands in random pieces, starting anywhere, and each piece
 * completes its own bytes, so that a barrier that expects too few, or a reader that waits for too
 * little, meets half a copy. Accesses are judged with what the issuer knew at issue. */
#include "async.h"

#include "finding.h"
#include "mbarrier.h"
#include "word.h"

#include <stdlib.h>
#include <string.h>

struct op *op_new(struct loom_site *site, enum op_kind kind) {
  struct op *op = calloc(1, sizeof *op);
  if (!op) abort();
  op->kind = kind;
  op->site = site;
  op->thread = L.current;
  op->issuer = op->shared_cta = L.current->cta;
  op->known = L.current->known;
  return op;
}

void op_issue(struct op *op) {
  op->turn = op->box.units ? random_below(op->box.units) : 0;
  L.stats.async_operations++;
  known_tick(&L.current->known);
  pending_add(op);
}

void op_free(struct op *op) {
  free(op->buffer);
  free(op->written);
  free(op);
}

void copy_check(struct loom_site *site, uint64_t dst, uint64_t src, uint32_t bytes) {
  if (dst % 16 || src % 16 || bytes % 16 || bytes == 0) {
    finding_here(LOOM_MISALIGNED, site, dst,
                 "%u bytes from %#llx to %#llx: all three must be multiples of 16", bytes,
                 (unsigned long long)src, (unsigned long long)dst);
    stop_run();
  }
}

void shared_check(struct loom_site *site, struct cta *cta, uint32_t address, uint32_t bytes) {
  size_t offset;
  if (cta->exited) {
    finding_here(LOOM_EXITED_CTA, site, address, "CTA %u of the cluster has exited", cta->rank);
    stop_run();
  }
  if (!region_shared(cta, address, bytes, &offset)) {
    finding_here(LOOM_ILLEGAL, site, address, "%u bytes at shared %#x are outside its %zu bytes",
                 bytes, address, cta->smem->bytes);
    stop_run();
  }
}

void load_issue(struct loom_site *site, const struct box *box, struct smem bar, uint32_t mask) {
  struct cta *own = L.current->cta;
  const struct cluster *cluster = own->cluster;
  if (mask >> cluster->size) {
    finding_here(LOOM_ILLEGAL, site, mask, "CTA mask %#x in a cluster of %u", mask, cluster->size);
    stop_run();
  }
  for (uint32_t rank = 0; rank < cluster->size; rank++) {
    struct cta *cta = mask ? cluster->cta[rank] : own;
    if (mask ? !(mask >> rank & 1) : rank != own->rank) continue;
    shared_check(site, cta, box->shared, 16 * box->units);
    struct op *op = op_new(site, OP_LOAD);
    op->box = *box;
    op->shared_cta = cta;
    op->barrier = mbarrier_at(site, cta, bar.a);
    op_issue(op);
  }
}

static struct bulk_group *group_at(struct thread *t, uint32_t index) {
  for (uint32_t i = t->groups; i-- > 0;)
    if (t->group[i].index == index) return &t->group[i];
  return NULL;
}

/* The group that the next commit closes. */
static struct bulk_group *group_open(struct thread *t) {
  struct bulk_group *g = group_at(t, t->committed + 1);
  if (g) return g;
  uint32_t live = 0; /* drop the finished ones */
  for (uint32_t i = 0; i < t->groups; i++)
    if (t->group[i].writes) t->group[live++] = t->group[i];
  t->groups = live;
  if (t->groups == t->groups_capacity) {
    t->groups_capacity = t->groups_capacity ? t->groups_capacity * 2 : 4;
    t->group = realloc(t->group, t->groups_capacity * sizeof *t->group);
    if (!t->group) abort();
  }
  t->group[t->groups] = (struct bulk_group){t->committed + 1, 0, 0};
  return &t->group[t->groups++];
}

void store_issue(struct loom_site *site, const struct box *box, int reduce) {
  struct thread *t = L.current;
  shared_check(site, t->cta, box->shared, 16 * box->units);
  if (!t->channel_read) {
    t->channel_read = channel_new(t->cta);
    t->channel_write = channel_new(t->cta);
  }
  struct bulk_group *g = group_open(t);
  t->last_store = site;
  t->last_store_group = g->index;
  g->reads++;
  g->writes++;
  t->open++;
  struct op *op = op_new(site, OP_STORE);
  op->box = *box;
  op->reduce = reduce;
  op->group = g->index;
  op->buffer = malloc(16 * (size_t)box->units);
  op->written = calloc(box->units, sizeof *op->written);
  if (!op->buffer || !op->written) abort();
  op_issue(op);
}

/* ---- moving ---- */

static struct access op_access(const struct op *op, uint8_t flags, uint32_t who, uint32_t time) {
  struct access x;
  x.known = &op->known;
  x.who = who;
  x.time = time;
  x.flags = (uint8_t)(flags | REC_ASYNC);
  x.scope = LOOM_SCOPE_gpu;
  x.site = op->site;
  x.cta = op->issuer;
  x.thread = op->thread->index;
  return x;
}

static uint16_t written_mask(const struct region *g, size_t offset, uint32_t bytes) {
  uint16_t mask = 0;
  for (uint32_t i = 0; i < bytes; i++)
    if (shadow_written(g, offset + i, 1)) mask |= (uint16_t)(1u << i);
  return mask;
}

/* Reads a unit through the async proxy; *mask says which of its bytes were ever written. Copies
 * carry unwritten bytes on: only their use is a finding. */
static void unit_read(const struct access *x, struct region *g, size_t offset, uint32_t low,
                      uint32_t high, uint8_t *out, uint16_t *mask) {
  shadow_range(x, g, offset + low, high - low);
  memcpy(out + low, g->base + offset + low, high - low);
  if (shadow_written(g, offset + low, high - low))
    *mask |= (uint16_t)((0xffffu << low) & (0xffffu >> (16 - high)));
  else
    *mask |= (uint16_t)(written_mask(g, offset + low, high - low) << low);
}

/* The region of a unit in global memory; NULL after a finding. */
static struct region *unit_global(const struct op *op, uint64_t address, uint32_t low,
                                  uint32_t high, size_t *offset) {
  struct region *g = region_global(address + low, high - low, offset);
  if (!g)
    finding_at(LOOM_ILLEGAL, op->site, op->issuer, op->thread->index, address,
               "%u bytes at global %#llx are outside every allocation", high - low,
               (unsigned long long)(address + low));
  else
    *offset -= low;
  return g;
}

static void load_unit(struct op *op, uint32_t unit) {
  const uint32_t channel = op->barrier->channel, time = op->barrier->phase + 1;
  uint8_t data[16] = {0}; /* outside the tensor: zero, and written */
  uint16_t mask = 0xffff;
  uint32_t low = 0, high = 16;
  size_t offset;
  const struct access read = op_access(op, 0, channel, time);
  if (op->source_cta) {
    mask = 0;
    unit_read(&read, op->source_cta->smem, op->source_shared + 16 * unit, 0, 16, data, &mask);
  } else {
    const uint64_t address = box_global(&op->box, unit, &low, &high);
    if (high > low) {
      struct region *g = unit_global(op, address, low, high, &offset);
      if (!g) return;
      mask = (uint16_t) ~((0xffffu << low) & (0xffffu >> (16 - high)));
      unit_read(&read, g, offset, low, high, data, &mask);
    }
  }
  const struct access write = op_access(op, REC_WRITE, channel, time);
  const uint32_t to = box_shared(&op->box, unit);
  struct region *smem = op->shared_cta->smem;
  shadow_range(&write, smem, to, 16);
  memcpy(smem->base + to, data, 16);
  shadow_put_written(smem, to, 16, mask);
}

static void store_read_unit(struct op *op, uint32_t unit) {
  const struct access read = op_access(op, 0, op->thread->channel_read, op->group);
  unit_read(&read, op->shared_cta->smem, box_shared(&op->box, unit), 0, 16, op->buffer + 16 * unit,
            &op->written[unit]);
}

static void reduce(int type, uint8_t *to, const uint8_t *from, uint32_t bytes) {
  if (type == LOOM_REDUCE_F32) {
    for (uint32_t i = 0; i < bytes; i += 4) {
      float a, b;
      memcpy(&a, to + i, 4);
      memcpy(&b, from + i, 4);
      a += b;
      memcpy(to + i, &a, 4);
    }
    return;
  }
  for (uint32_t i = 0; i < bytes; i += 2) {
    uint16_t a, b;
    memcpy(&a, to + i, 2);
    memcpy(&b, from + i, 2);
    a = (uint16_t)(type == LOOM_REDUCE_BF16 ? loom_bf16(loom_bits_f32((uint32_t)a << 16) +
                                                        loom_bits_f32((uint32_t)b << 16))
                                            : loom_f16(loom_f16_f32(a) + loom_f16_f32(b)));
    memcpy(to + i, &a, 2);
  }
}

static void store_write_unit(struct op *op, uint32_t unit) {
  uint32_t low, high;
  size_t offset;
  const uint64_t address = box_global_store(&op->box, unit, &low, &high);
  if (high <= low) return;
  struct region *g = unit_global(op, address, low, high, &offset);
  if (!g) return;
  /* reductions are relaxed at gpu scope, element by element */
  const struct access write = op_access(op, REC_WRITE | (op->reduce ? REC_STRONG : 0),
                                        op->thread->channel_write, op->group);
  shadow_range(&write, g, offset + low, high - low);
  const uint8_t *from = op->buffer + 16 * unit + low;
  if (op->reduce == LOOM_REDUCE_NONE) {
    memcpy(g->base + offset + low, from, high - low);
    shadow_put_written(g, offset + low, high - low, (uint16_t)(op->written[unit] >> low));
  } else {
    if (!shadow_written(g, offset + low, high - low))
      finding_at(LOOM_UNWRITTEN, op->site, op->issuer, op->thread->index, address,
                 "adds to bytes at global %#llx that nothing wrote", (unsigned long long)address);
    reduce(op->reduce, g->base + offset + low, from, high - low);
  }
  word_overwritten(g, offset + low, high - low);
}

/* All the rest, or by an even chance a part of it. */
static uint32_t piece(const struct op *op) {
  const uint32_t left = op->box.units - op->done;
  return left > 1 && random_below(2) ? 1 + random_below(left - 1) : left;
}

static void group_done(struct op *op, int writes) {
  struct thread *t = op->thread;
  struct bulk_group *g = group_at(t, op->group);
  if (writes)
    g->writes--;
  else
    g->reads--;
  if (t->waits_bulk) {
    t->waits_bulk = 0;
    ready(t);
  }
}

int op_step(struct op *op) {
  if (op->kind == OP_WGMMA) {
    wgmma_run(op);
    op_free(op);
    return 1;
  }
  const int uses_shared = op->kind == OP_LOAD || !op->writing;
  if ((uses_shared && op->shared_cta->exited) || (op->source_cta && op->source_cta->exited)) {
    finding_at(LOOM_EXITED_CTA, op->site, op->issuer, op->thread->index, op->box.shared,
               "the CTA whose shared memory it uses has exited");
    op_free(op);
    return 1;
  }
  const uint32_t n = piece(op);
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t unit = (op->turn + op->done + i) % op->box.units;
    if (op->kind == OP_LOAD)
      load_unit(op, unit);
    else if (!op->writing)
      store_read_unit(op, unit);
    else
      store_write_unit(op, unit);
  }
  op->done += n;
  if (op->kind == OP_LOAD) mbarrier_complete_tx(op, 16 * n);
  if (op->done < op->box.units) return 0;
  if (op->kind == OP_STORE) {
    group_done(op, op->writing);
    if (!op->writing) {
      op->writing = 1;
      op->done = 0;
      return 0;
    }
  }
  op_free(op);
  return 1;
}
