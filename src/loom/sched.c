/* The scheduler: which thread or async operation goes next is drawn from the seed, by a policy.
 * Time is virtual and jumps only when nothing can run. */
#include "async.h"
#include "fiber.h"
#include "finding.h"
#include "word.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct loom_self *loom_self;

/* Chance, one in so many, that a pending async operation goes before a runnable thread. */
#define ASYNC_CHANCE 16u
/* Turns in a row that the batched policies give one CTA, on average. */
#define BATCH             64u
#define MAX_STEPS_DEFAULT 50000000ull

uint32_t random_next(void) {
  L.random ^= L.random << 13;
  L.random ^= L.random >> 7;
  L.random ^= L.random << 17;
  return (uint32_t)(L.random >> 32);
}

uint32_t random_below(uint32_t n) {
  return (uint32_t)((uint64_t)random_next() * n >> 32);
}

void ready(struct thread *t) {
  t->state = THREAD_READY;
  if (L.readies == L.ready_capacity) {
    L.ready_capacity = L.ready_capacity ? L.ready_capacity * 2 : 1024;
    L.ready = realloc(L.ready, L.ready_capacity * sizeof *L.ready);
    if (!L.ready) abort();
  }
  L.ready[L.readies++] = t;
}

static void leave(void) {
  struct thread *t = L.current;
  L.stats.switches++;
  fiber_switch(&t->sp, L.scheduler);
}

void block(struct loom_site *site) {
  L.current->state = THREAD_BLOCKED;
  L.current->site = site;
  leave();
}

void yield_turn(void) {
  ready(L.current);
  leave();
}

void wake_all(struct thread **list) {
  for (struct thread *t = *list, *next; t; t = next) {
    next = t->next;
    ready(t);
  }
  *list = NULL;
}

void stop_run(void) {
  L.stopped = 1;
  for (;;)
    leave();
}

void pending_add(struct op *op) {
  if (L.pendings == L.pending_capacity) {
    L.pending_capacity = L.pending_capacity ? L.pending_capacity * 2 : 256;
    L.pending = realloc(L.pending, L.pending_capacity * sizeof *L.pending);
    if (!L.pending) abort();
  }
  L.pending[L.pendings++] = op;
}

/* What a fiber runs. */
void thread_main(void) {
  struct thread *t = L.current;
  t->cta->launch->config.kernel->entry(t->cta->launch->args);
  t = L.current;
  t->state = THREAD_DONE;
  L.live--;
  thread_exited(t);
  for (;;)
    fiber_switch(&t->sp, L.scheduler);
}

static int async_goes_first(void) {
  if (!L.pendings) return 0;
  if (!L.readies) return 1;
  switch (L.config.policy) {
  case LOOM_ASYNC_FIRST:
    return 1;
  case LOOM_ASYNC_LAST:
    return 0;
  default:
    return random_below(ASYNC_CHANCE) == 0;
  }
}

static void run_async(void) {
  const uint32_t i = random_below(L.pendings);
  struct op *op = L.pending[i];
  if (op_step(op)) L.pending[i] = L.pending[--L.pendings];
}

static void run_thread(void) {
  uint32_t i = random_below(L.readies);
  if (L.config.policy == LOOM_CTA_BATCHED && L.last_cta && random_below(BATCH)) {
    /* the newest runnable thread of the same CTA, if one is near the end of the list */
    for (uint32_t back = 1; back <= L.readies && back <= 8; back++)
      if (L.ready[L.readies - back]->cta == L.last_cta) {
        i = L.readies - back;
        break;
      }
  }
  struct thread *t = L.ready[i];
  L.ready[i] = L.ready[--L.readies];
  L.current = t;
  L.last_cta = t->cta;
  loom_self = &t->self;
  fiber_switch(&L.scheduler, t->sp);
}

/* Nothing can run: lets the earliest time limit pass. */
static int jump_in_time(void) {
  struct thread **earliest = NULL;
  for (struct thread **p = &L.word_waiters; *p; p = &(*p)->next)
    if (!earliest || (*p)->deadline < (*earliest)->deadline) earliest = p;
  if (!earliest) return 0;
  struct thread *t = *earliest;
  *earliest = t->next;
  if (t->deadline > L.time) L.time = t->deadline;
  t->timed_out = 1;
  ready(t);
  return 1;
}

/* Where the blocked threads stand, in words. */
static void describe_blocked(char *out, size_t size) {
  size_t n = 0;
  int sites;
  struct loom_site *const *site = loom_sites(&sites);
  out[0] = 0;
  for (int s = 0; s < sites && n < size; s++) {
    uint32_t count = 0;
    const struct thread *example = NULL;
    for (uint32_t c = 0; c < L.ctas; c++)
      for (uint32_t i = 0; L.cta[c]->started && i < L.cta[c]->threads; i++) {
        const struct thread *t = &L.cta[c]->thread[i];
        if (t->state != THREAD_BLOCKED || t->site != site[s]) continue;
        count++;
        example = t;
      }
    if (count)
      n += (size_t)snprintf(out + n, size - n, "%s%u at %s %s:%d (rank %u, CTA %u, thread %u)",
                            n ? ", " : "", count, site[s]->op, base_name(site[s]->file),
                            site[s]->line, example->cta->gpu, example->cta->index, example->index);
  }
}

static void stuck(void) {
  char where[400];
  describe_blocked(where, sizeof where);
  const int waiting = ctas_waiting_for_room();
  if (waiting)
    finding_run(LOOM_NOT_CORESIDENT, "%d CTAs cannot start while others wait: %s", waiting, where);
  else
    finding_run(LOOM_DEADLOCK, "%u threads wait for ever: %s", L.live, where);
  L.stopped = 1;
}

void schedule(void) {
  const uint64_t limit = L.config.max_steps ? L.config.max_steps : MAX_STEPS_DEFAULT;
  while ((L.live || L.pendings || ctas_waiting_to_start()) && !L.stopped) {
    L.time++;
    if (++L.stats.steps > limit) {
      finding_run(LOOM_LIVELOCK, "still running after %llu steps", (unsigned long long)limit);
      return;
    }
    if (async_goes_first())
      run_async();
    else if (L.readies)
      run_thread();
    else if (ctas_waiting_for_room() || !jump_in_time())
      stuck();
  }
}

uint64_t loom_globaltimer(void) {
  return L.time;
}
