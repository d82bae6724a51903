/* Synchronising words. A release store leaves a view at its address; an acquire load takes every
 * view there whose scope and its own hold both threads. Fences of acq_rel make patterns of relaxed
 * accesses: the store publishes what the fence before it saw, the load's view waits for the fence
 * after it. */
#include "word.h"

#include <stdlib.h>
#include <string.h>

static uint64_t location(const struct region *region, size_t offset) {
  return ((uint64_t)(region->first + 1) << 40) + offset;
}

static struct word *slot(uint64_t key) {
  uint64_t h = key * 0x9e3779b97f4a7c15ull >> 20;
  for (;; h++) {
    struct word *w = &L.word[h % L.word_capacity];
    if (w->location == key || !w->location) return w;
  }
}

static void grow(void) {
  struct word *old = L.word;
  const uint32_t n = L.word_capacity;
  L.word_capacity = n ? n * 2 : 1024;
  L.word = calloc(L.word_capacity, sizeof *L.word);
  if (!L.word) abort();
  for (uint32_t i = 0; i < n; i++)
    if (old[i].location) *slot(old[i].location) = old[i];
  free(old);
}

static struct word *find(uint64_t key, int add) {
  if (!L.word_capacity) {
    if (!add) return NULL;
    grow();
  }
  struct word *w = slot(key);
  if (!w->location) {
    if (!add) return NULL;
    if (2 * ++L.words > L.word_capacity) {
      grow();
      w = slot(key);
    }
    w->location = key;
  }
  return w;
}

void words_reset(void) {
  for (uint32_t i = 0; i < L.word_capacity; i++)
    free(L.word[i].entry);
  free(L.word);
  L.word = NULL;
  L.words = L.word_capacity = 0;
}

static void entry_add(struct word *w, const struct view *v, struct cta *cta, int scope) {
  for (uint32_t i = 0; i < w->n; i++) {
    struct word_entry *e = &w->entry[i];
    if (e->cta != cta || e->scope != scope) continue;
    for (int k = 0; k < KNOWN; k++)
      e->v.k[k] = clock_join(e->v.k[k], v->k[k]);
    return;
  }
  if (w->n == w->capacity) {
    w->capacity = w->capacity ? w->capacity * 2 : 1;
    w->entry = realloc(w->entry, w->capacity * sizeof *w->entry);
    if (!w->entry) abort();
  }
  w->entry[w->n++] = (struct word_entry){*v, cta, scope};
}

void word_store(struct region *region, size_t offset, int release, int scope, int keeps_chain) {
  struct thread *t = L.current;
  struct word *w = find(location(region, offset), 1);
  if (!keeps_chain) w->n = 0;
  if (release) {
    const struct view v = known_view(t);
    entry_add(w, &v, t->cta, scope);
    known_tick(&t->known);
  } else if (t->fenced_scope >= 0) {
    entry_add(w, &t->fenced, t->cta, t->fenced_scope < scope ? t->fenced_scope : scope);
  }
}

void word_load(struct region *region, size_t offset, int acquire, int scope) {
  struct thread *t = L.current;
  const struct word *w = find(location(region, offset), 0);
  if (!w) return;
  for (uint32_t i = 0; i < w->n; i++) {
    const struct word_entry *e = &w->entry[i];
    const int d = distance(t->cta, e->cta);
    if (e->scope < d || scope < d) continue;
    if (acquire) {
      known_acquire(&t->known, &e->v, pass_mask(e->cta == t->cta));
    } else { /* only a fence after this load makes it an acquire */
      for (int k = 0; k < KNOWN; k++)
        if (pass_mask(e->cta == t->cta) & 1u << k)
          t->pending[d].k[k] = clock_join(t->pending[d].k[k], e->v.k[k]);
      t->pending_any = 1;
    }
  }
}

void word_overwritten(struct region *region, size_t offset, size_t bytes) {
  if (L.words) {
    for (size_t o = offset & ~(size_t)3; o < offset + bytes; o += 4) {
      struct word *w = find(location(region, o), 0);
      if (w) w->n = 0;
    }
  }
  word_wake(region, offset, bytes);
}

void word_wake(struct region *region, size_t offset, size_t bytes) {
  const uint64_t begin = location(region, offset), end = begin + bytes;
  for (struct thread **p = &L.word_waiters; *p;) {
    struct thread *t = *p;
    if ((t->word >= begin && t->word < end) || (t->error_word >= begin && t->error_word < end)) {
      *p = t->next;
      ready(t);
    } else {
      p = &t->next;
    }
  }
}

void loom_fence_acq_rel(struct loom_site *site, int scope) {
  if (enter(site)) return;
  struct thread *t = L.current;
  if (t->pending_any)
    for (int d = 0; d <= scope; d++)
      known_acquire(&t->known, &t->pending[d], ~0u);
  t->fenced = known_view(t);
  t->fenced_scope = scope;
  known_tick(&t->known);
}
