/* Call sites: the list that the linker made, their labels, dropping, and what every operation does
 * first. */
#include "finding.h"

#include <stdio.h>
#include <string.h>

extern struct loom_site *const __start_loom_sites[] __attribute__((weak));
extern struct loom_site *const __stop_loom_sites[] __attribute__((weak));

struct loom_site *const *loom_sites(int *count) {
  if (count) *count = (int)(__stop_loom_sites - __start_loom_sites);
  return __start_loom_sites;
}

void loom_site_label(const struct loom_site *site, char *out, size_t size) {
  if (site->name[0])
    snprintf(out, size, "%s", site->name);
  else
    snprintf(out, size, "%s:%d", base_name(site->file), site->line);
}

int loom_drop(const char *label) {
  int n, found = 0;
  struct loom_site *const *site = loom_sites(&n);
  for (int i = 0; i < n; i++) {
    char own[256];
    loom_site_label(site[i], own, sizeof own);
    const int match = label && site[i]->kind != LOOM_KIND_plain && !strcmp(own, label);
    site[i]->drop = match;
    found += match;
  }
  return found;
}

int enter(struct loom_site *site) {
  struct thread *t = L.current;
  site->hits++;
  if (L.trace)
    fprintf((FILE *)L.trace, "%llu rank %u CTA %u thread %u %s %s:%d%s%s%s\n",
            (unsigned long long)L.stats.steps, t->cta->gpu, t->cta->index, t->index, site->op,
            base_name(site->file), site->line, site->name[0] ? " " : "", site->name,
            site->drop ? " dropped" : "");
  if (random_below(L.config.preempt) == 0) yield_turn();
  return site->drop;
}
