/* The world: its beginning, its runs, its end. */
#include "finding.h"
#include "word.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world L;

/* Seeds differ in how often a thread loses its turn, too. */
static const uint32_t preempt_of[3] = {8, 3, 40};
#define SMS_DEFAULT 132u
#define REGIONS_MAX 65536u

int loom_begin(const struct loom_config *config) {
  loom_end();
  if (config->size != sizeof *config || config->gpus == 0 || config->gpus > 4096 ||
      (unsigned)config->policy >= LOOM_POLICIES)
    return -1;
  L.config = *config;
  if (!L.config.preempt) L.config.preempt = preempt_of[config->seed / LOOM_POLICIES % 3];
  if (!L.config.sms_per_gpu) L.config.sms_per_gpu = SMS_DEFAULT;
  L.regions_capacity = REGIONS_MAX;
  L.region = calloc(L.regions_capacity, sizeof *L.region);
  if (!L.region) return -1;
  if (config->trace_path && !(L.trace = fopen(config->trace_path, "w"))) {
    free(L.region);
    memset(&L, 0, sizeof L);
    return -1;
  }
  /* never 0, and far apart for neighbouring seeds */
  L.random = (config->seed + 1) * 0x9e3779b97f4a7c15ull;
  for (int i = 0; i < 4; i++)
    random_next();
  int n;
  struct loom_site *const *site = loom_sites(&n);
  for (int i = 0; i < n; i++) {
    site[i]->id = i;
    site[i]->hits = 0;
  }
  L.begun = 1;
  return 0;
}

static void run_forget(void) {
  launches_reset();
  words_reset();
  shadow_reset();
  L.readies = 0;
  L.live = 0;
  L.word_waiters = NULL;
  L.last_cta = NULL;
  L.stacks_used = 0;
}

int loom_run(void) {
  if (!L.begun) return -1;
  L.stopped = 0;
  launches_prepare();
  L.stacks_total = 0;
  for (uint32_t i = 0; i < L.ctas; i++)
    L.stacks_total += L.cta[i]->threads;
  L.running = 1;
  launches_start();
  schedule();
  L.running = 0;
  struct clock_stats c;
  clock_statistics(&c);
  L.stats.joins += c.joins;
  L.stats.joins_memoised += c.memoised;
  L.stats.joins_computed += c.computed;
  if (c.bytes > L.stats.clock_bytes) L.stats.clock_bytes = c.bytes;
  run_forget();
  return (int)L.findings;
}

void loom_end(void) {
  if (!L.begun) return;
  run_forget();
  while (L.regions)
    region_free(&L.region[--L.regions]);
  findings_reset();
  free(L.region);
  free(L.ready);
  free(L.pending);
  if (L.trace) fclose((FILE *)L.trace);
  memset(&L, 0, sizeof L);
}

const struct loom_stats *loom_statistics(void) {
  return &L.stats;
}
