/* See loom_seeds.h. Knows loom's public header. */
#include "loom_seeds.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the processes share. */
struct shared {
  atomic_int next; /* the next seed that nobody has taken */
  atomic_int refused;
  struct loom_tally
      tally[]; /* one a process; behind them a byte for each site, one row a process */
};

static void add_finding(struct loom_tally *t, const struct loom_finding *f) {
  int k = 0;
  while (k < t->findings && (t->key[k].kind != f->kind || t->key[k].now != f->now.site ||
                             t->key[k].before != f->before.site))
    k++;
  if (k == LOOM_TEXTS_MAX) return;
  if (k == t->findings) {
    t->findings++;
    t->key[k].kind = f->kind;
    t->key[k].now = f->now.site;
    t->key[k].before = f->before.site;
    memcpy(t->text[k], f->text, sizeof t->text[k]);
  }
  t->seen[k]++;
}

static void merge(struct loom_tally *to, const struct loom_tally *from) {
  to->seeds += from->seeds;
  to->flagged += from->flagged;
  to->cpu_ms += from->cpu_ms;
  for (int i = 0; i < from->findings; i++) {
    int k = 0;
    while (k < to->findings && memcmp(&to->key[k], &from->key[i], sizeof to->key[k]) != 0)
      k++;
    if (k == LOOM_TEXTS_MAX) continue;
    if (k == to->findings) {
      to->findings++;
      to->key[k] = from->key[i];
      memcpy(to->text[k], from->text[i], sizeof to->text[k]);
    }
    to->seen[k] += from->seen[i];
  }
}

/* One process: seeds until there are none. */
static void work(const struct loom_request *r, struct shared *shared, struct loom_tally *t,
                 unsigned char *executed) {
  int sites;
  struct loom_site *const *site = loom_sites(&sites);
  const clock_t start = clock();
  for (int seed; (seed = atomic_fetch_add(&shared->next, 1)) < r->seeds;) {
    struct loom_config config = LOOM_CONFIG_INIT;
    config.seed = (uint64_t)seed;
    config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
    config.lenient = r->lenient;
    config.trace_path = seed == 0 ? r->trace : NULL;
    const int n = loom_protocol_run(r->protocol, &r->options, &config);
    if (n < 0) {
      atomic_store(&shared->refused, 1);
      break;
    }
    t->seeds++;
    t->flagged += n > 0;
    for (int i = 0; i < n; i++)
      add_finding(t, loom_finding_at(i));
    for (int i = 0; i < sites; i++)
      executed[i] |= site[i]->hits > 0;
  }
  loom_end(); /* closes the trace */
  t->cpu_ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
}

bool loom_seeds_run(const struct loom_request *request, struct loom_tally *tally,
                    unsigned char *executed, error *error) {
  enum { WORKERS_MAX = 256 };
  pid_t child[WORKERS_MAX];
  int sites, started = 0, broken = 0;
  loom_sites(&sites);
  int workers = core_count();
  if (workers > request->seeds) workers = request->seeds;
  if (workers > WORKERS_MAX) workers = WORKERS_MAX;
  const size_t tallies = sizeof(struct shared) + (size_t)workers * sizeof(struct loom_tally);
  const size_t bytes = tallies + (size_t)workers * (size_t)sites + 1;
  struct shared *shared =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return error_set(error, "no memory for %d processes", workers);
  unsigned char *ran = (unsigned char *)shared + tallies;
  fflush(NULL); /* what is buffered belongs to this process */
  for (; started < workers; started++) {
    child[started] = fork();
    if (child[started] < 0) break;
    if (child[started] == 0) {
      work(request, shared, &shared->tally[started], ran + (size_t)started * (size_t)sites);
      _exit(0);
    }
  }
  for (int i = 0; i < started; i++) {
    int status = 0;
    if (waitpid(child[i], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
      broken = 1;
  }
  memset(tally, 0, sizeof *tally);
  for (int i = 0; i < started; i++) {
    merge(tally, &shared->tally[i]);
    for (int j = 0; executed != NULL && j < sites; j++)
      executed[j] |= ran[(size_t)i * (size_t)sites + (size_t)j];
  }
  const int refused = atomic_load(&shared->refused);
  munmap(shared, bytes);
  if (refused)
    return error_set(error, "%s cannot run with these options (trace file, ranks)",
                     request->protocol->name);
  if (broken || tally->seeds != request->seeds)
    return error_set(error, "%s: a process ended before its seeds were run",
                     request->protocol->name);
  return true;
}
