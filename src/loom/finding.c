/* Makes findings. The same kind between the same two sites is one finding with a count: the first
 * occurrence gives the parties and the words. */
#include "finding.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_name[LOOM_FINDING_KINDS] = {
    "data race",
    "missing proxy fence",
    "missing alias fence",
    "ld.nc of written data",
    "unwritten memory",
    "illegal access",
    "misaligned access",
    "barrier misuse",
    "parity aliasing",
    "divergent warp",
    "register hazard",
    "not co-resident",
    "deadlock",
    "livelock",
    "timeout",
    "access to an exited CTA",
    "wrong result",
};

const char *loom_finding_kind_name(enum loom_finding_kind kind) {
  return (unsigned)kind < LOOM_FINDING_KINDS ? kind_name[kind] : "?";
}

int loom_finding_count(void) {
  return (int)L.findings;
}

const struct loom_finding *loom_finding_at(int i) {
  return i >= 0 && (uint32_t)i < L.findings ? &L.finding[i] : NULL;
}

void findings_reset(void) {
  free(L.finding);
  L.finding = NULL;
  L.findings = L.finding_capacity = 0;
}

const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* The finding of this kind and these sites; *fresh says whether it is new. */
static struct loom_finding *find_or_add(enum loom_finding_kind kind, const struct loom_site *now,
                                        const struct loom_site *before, int *fresh) {
  for (uint32_t i = 0; i < L.findings; i++) {
    struct loom_finding *f = &L.finding[i];
    if (f->kind == kind && f->now.site == now && f->before.site == before) {
      f->count++;
      *fresh = 0;
      return f;
    }
  }
  if (L.findings == L.finding_capacity) {
    L.finding_capacity = L.finding_capacity ? L.finding_capacity * 2 : 16;
    L.finding = realloc(L.finding, L.finding_capacity * sizeof *L.finding);
    if (!L.finding) abort();
  }
  struct loom_finding *f = &L.finding[L.findings++];
  memset(f, 0, sizeof *f);
  f->kind = kind;
  f->now.site = now;
  f->before.site = before;
  f->count = 1;
  *fresh = 1;
  return f;
}

static int put_party(char *out, size_t size, const struct loom_party *p) {
  return snprintf(out, size, "%s %s at %s:%d (%s%srank %u, CTA %u, thread %u, %s proxy)",
                  p->site->op, p->write ? "writes" : "reads", base_name(p->site->file),
                  p->site->line, p->site->name, p->site->name[0] ? ", " : "", p->rank, p->cta,
                  p->thread, p->async ? "async" : "generic");
}

void finding_conflict(enum loom_finding_kind kind, const struct access *now,
                      const struct record *before, const struct region *region, size_t offset,
                      const char *fence) {
  int fresh;
  struct loom_site *const *sites = loom_sites(NULL);
  struct loom_finding *f = find_or_add(kind, now->site, sites[before->site], &fresh);
  if (!fresh) return;
  const struct cta *before_cta = L.cta[before->cta];
  f->now.rank = now->cta->gpu;
  f->now.cta = now->cta->index;
  f->now.thread = now->thread;
  f->now.async = (now->flags & REC_ASYNC) != 0;
  f->now.write = (now->flags & REC_WRITE) != 0;
  f->before.rank = before_cta->gpu;
  f->before.cta = before_cta->index;
  f->before.thread = before->thread;
  f->before.async = (before->flags & REC_ASYNC) != 0;
  f->before.write = (before->flags & REC_WRITE) != 0;
  f->fence = fence;
  f->address = region->cta ? offset : region->address + offset;
  char a[200], b[200];
  put_party(a, sizeof a, &f->now);
  put_party(b, sizeof b, &f->before);
  char where[64];
  if (region->cta)
    snprintf(where, sizeof where, "shared %#zx of CTA %u", offset, region->cta->index);
  else
    snprintf(where, sizeof where, "global %#llx", (unsigned long long)f->address);
  snprintf(f->text, sizeof f->text, "%s: %s; earlier %s; %s%s%s", kind_name[kind], a, b, where,
           fence ? "; would be ordered by " : "", fence ? fence : "");
}

static void finding_one(enum loom_finding_kind kind, struct loom_site *site, const struct cta *cta,
                        uint32_t thread, uint64_t address, const char *format, va_list list) {
  int fresh;
  struct loom_finding *f = find_or_add(kind, site, NULL, &fresh);
  if (!fresh) return;
  f->address = address;
  int n = snprintf(f->text, sizeof f->text, "%s: ", kind_name[kind]);
  if (site && cta) {
    f->now.rank = cta->gpu;
    f->now.cta = cta->index;
    f->now.thread = thread;
    n += snprintf(f->text + n, sizeof f->text - (size_t)n,
                  "%s at %s:%d (rank %u, CTA %u, thread %u): ", site->op, base_name(site->file),
                  site->line, cta->gpu, cta->index, thread);
  }
  vsnprintf(f->text + n, sizeof f->text - (size_t)n, format, list);
}

void finding_here(enum loom_finding_kind kind, struct loom_site *site, uint64_t address,
                  const char *format, ...) {
  va_list list;
  va_start(list, format);
  finding_one(kind, site, L.current->cta, L.current->index, address, format, list);
  va_end(list);
}

void finding_at(enum loom_finding_kind kind, struct loom_site *site, const struct cta *cta,
                uint32_t thread, uint64_t address, const char *format, ...) {
  va_list list;
  va_start(list, format);
  finding_one(kind, site, cta, thread, address, format, list);
  va_end(list);
}

void finding_run(enum loom_finding_kind kind, const char *format, ...) {
  va_list list;
  va_start(list, format);
  finding_one(kind, NULL, NULL, 0, 0, format, list);
  va_end(list);
}

void loom_report_wrong(const char *text) {
  finding_run(LOOM_WRONG_RESULT, "%s", text);
}
