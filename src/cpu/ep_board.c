/* Slots of ranks that can load each other's memory. A board, shared by the plans of a team, says
 * which operation each rank has posted in each of its slots, who has read them, who reads them just
 * now, and who is masked for whom. All of it is under the team's lock; the slots themselves are
 * not: a rank writes one only while nobody reads it.
 *
 * A rank that does not come in time is masked, or stops the team. Masking works both ways: a rank
 * that finds itself masked by another leaves that one out as well. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/memory.h"
#include "cpu/ep.h"

/* One rank's part. Numbers of operations only grow, also over resets. */
typedef struct seat {
  const weft__ep_slot *slots[WEFT__EP_FLIGHTS];
  int64_t posted[WEFT__EP_FLIGHTS]; /* the operation in the slot, 0: none yet */
  bool refused[WEFT__EP_FLIGHTS];   /* it is a refusal: this rank reads nothing of the others' */
  bool gone;                        /* its plan was destroyed */
} seat;

struct weft__ep_board {
  int64_t references, ranks;
  seat *seats;     /* [R] */
  int64_t *acked;  /* [owner, slot, reader] last operation that the reader has done with */
  bool *reading;   /* [owner, slot, reader] */
  int64_t *masked; /* [by, rank] resets + 1 when it was masked; of an earlier reset: not masked */
};

static int64_t at(const weft__ep_board *b, int64_t owner, int64_t slot, int64_t reader) {
  return (owner * WEFT__EP_FLIGHTS + slot) * b->ranks + reader;
}

static bool masks(const weft_ep_plan *plan, int64_t by, int64_t rank) {
  const weft__ep_board *b = weft__ep_state(plan)->board;
  return b->masked[by * b->ranks + rank] == plan->resets + 1;
}

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* What is left of the call's time. */
static int64_t left_ms(const weft_ep_plan *plan, double began) {
  const double spent = now_ms() - began, all = (double)plan->config.timeout_ms;
  return spent >= all ? 0 : (int64_t)(all - spent) + 1;
}

static void change(weft_ep_plan *plan, void (*fn)(void *user), void *user) {
  plan->comm->transport->change(plan->comm, fn, user);
}

/* ---- Making and ending ---- */

weft_status weft__ep_board_create(weft_ep_plan *plan) {
  const int64_t n = plan->ranks, pairs = n * n;
  weft__ep_board *b = NULL;
  if (plan->rank != 0) return WEFT_OK;
  const size_t head = weft__align(sizeof *b), seats = weft__align((size_t)n * sizeof(seat));
  const size_t acked = weft__align((size_t)(pairs * WEFT__EP_FLIGHTS) * sizeof(int64_t));
  const size_t masked = weft__align((size_t)pairs * sizeof(int64_t));
  WEFT__TRY(weft__alloc(
      (void **)&b, head + seats + acked + masked + (size_t)(pairs * WEFT__EP_FLIGHTS), "ep board"));
  unsigned char *memory = (unsigned char *)b;
  b->references = 1;
  b->ranks = n;
  b->seats = (seat *)(memory + head);
  b->acked = (int64_t *)(memory + head + seats);
  b->masked = (int64_t *)(memory + head + seats + acked);
  b->reading = (bool *)(memory + head + seats + acked + masked);
  weft__ep_state(plan)->board = b;
  return WEFT_OK;
}

static void sit_down(void *user) {
  weft_ep_plan *plan = (weft_ep_plan *)user;
  weft__cpu_ep *s = weft__ep_state(plan);
  if (plan->rank != 0) s->board->references++;
  for (int i = 0; i < WEFT__EP_FLIGHTS; i++)
    s->board->seats[plan->rank].slots[i] = (const weft__ep_slot *)s->slots[i];
}

/* The pointer is small enough for a slot of the meeting, so that what comes back is whole. */
weft_status weft__ep_board_connect(weft_ep_plan *plan) {
  weft__cpu_ep *s = weft__ep_state(plan);
  weft__ep_board *const own = s->board;
  /* views hold a pointer for each rank and are not in use yet */
  WEFT__TRY(weft__comm_allgather(plan->comm, &own, s->views, sizeof own));
  memcpy(&s->board, s->views, sizeof s->board);
  change(plan, sit_down, plan);
  plan->resets = s->resets = plan->comm->transport->resets(plan->comm);
  return weft_comm_barrier(plan->comm);
}

typedef struct leaving {
  weft_ep_plan *plan;
  bool read, last;
} leaving;

static void note_readers(void *user) {
  leaving *l = (leaving *)user;
  const weft__ep_board *b = weft__ep_state(l->plan)->board;
  l->read = false;
  for (int slot = 0; slot < WEFT__EP_FLIGHTS; slot++)
    for (int64_t r = 0; r < b->ranks; r++)
      l->read = l->read || b->reading[at(b, l->plan->rank, slot, r)];
}

/* Comes back when no peer is in the middle of reading this rank's slots. They are inside the
 * library and only copy, so this ends, whatever has become of the team. */
static void drain(weft_ep_plan *plan) {
  const struct timespec pause = {0, 100000};
  leaving l = {plan, false, false};
  for (change(plan, note_readers, &l); l.read; change(plan, note_readers, &l))
    nanosleep(&pause, NULL);
}

static void stand_up(void *user) {
  leaving *l = (leaving *)user;
  weft__ep_board *b = weft__ep_state(l->plan)->board;
  b->seats[l->plan->rank].gone = true;
  l->last = --b->references == 0;
  note_readers(user);
}

void weft__ep_board_destroy(weft_ep_plan *plan) {
  weft__cpu_ep *s = weft__ep_state(plan);
  weft__ep_board *const b = s->board;
  leaving l = {plan, false, false};
  drain(plan);
  change(plan, stand_up, &l);
  if (l.last) weft__free(b);
}

/* ---- Masks ---- */

typedef struct masking {
  weft_ep_plan *plan;
  int64_t rank;
} masking;

static void set_mask(void *user) {
  const masking *m = (const masking *)user;
  weft__ep_board *b = weft__ep_state(m->plan)->board;
  b->masked[m->plan->rank * b->ranks + m->rank] = m->plan->resets + 1;
}

/* A rank is missing: it is masked and told of, or the team stops. `status` and words say why. */
static weft_status missing(weft_ep_plan *plan, int64_t rank, weft_status status,
                           const char *message) {
  masking m = {plan, rank};
  if (!plan->config.masking) return plan->comm->transport->stop(plan->comm, status, rank, message);
  change(plan, set_mask, &m);
  weft__comm_report(plan->comm, status, rank, 1, message);
  return WEFT_OK;
}

typedef struct question {
  const weft_ep_plan *plan;
  int64_t resets;
  int32_t *mask;
} question;

static void read_masks(void *user) {
  const question *q = (const question *)user;
  const weft__ep_board *b = weft__ep_state(q->plan)->board;
  for (int64_t r = 0; r < b->ranks; r++)
    q->mask[r] = b->masked[q->plan->rank * b->ranks + r] == q->resets + 1;
}

void weft__ep_board_mask(weft_ep_plan *plan, int32_t *out) {
  question q = {plan, plan->comm->transport->resets(plan->comm), out};
  change(plan, read_masks, &q);
}

/* ---- Sending ---- */

/* Waits until nobody reads, or will still read, an operation in a slot of this rank's. */
typedef struct freeing {
  weft_ep_plan *plan;
  int slot;
  int64_t operation;
  int64_t awaited; /* a rank that is not done yet */
  bool reading;    /* it is reading just now */
} freeing;

static bool is_free(void *user) {
  freeing *f = (freeing *)user;
  const weft_ep_plan *plan = f->plan;
  const weft__ep_board *b = weft__ep_state(plan)->board;
  const int64_t me = plan->rank;
  for (int64_t r = 0; r < b->ranks; r++) {
    if (r == me) continue;
    f->reading = b->reading[at(b, me, f->slot, r)];
    f->awaited = r;
    if (f->reading) return false;
    if (b->acked[at(b, me, f->slot, r)] >= f->operation || b->seats[r].gone) continue;
    if (masks(plan, me, r) || masks(plan, r, me)) continue;
    return false;
  }
  return true;
}

static weft_status wait_until_free(weft_ep_plan *plan, int slot, const char *call) {
  const double began = now_ms();
  freeing f = {plan, slot, weft__ep_state(plan)->slot_op[slot], 0, false};
  for (;;) {
    const weft_status status =
        plan->comm->transport->await(plan->comm, is_free, &f, left_ms(plan, began), call);
    if (status != WEFT_ERR_TIMEOUT) return status;
    if (f.reading) {
      drain(plan);
      continue;
    }
    char message[160];
    snprintf(message, sizeof message,
             "%s: rank %" PRId64 " did not receive the operation before within %" PRId64 " ms",
             call, f.awaited, plan->config.timeout_ms);
    WEFT__TRY(missing(plan, f.awaited, WEFT_ERR_TIMEOUT, message));
  }
}

weft_status weft__ep_board_begin(weft_ep_plan *plan, int *slot, const char *call) {
  weft__cpu_ep *s = weft__ep_state(plan);
  if (s->resets != plan->resets) memset(s->slot_op, 0, sizeof s->slot_op);
  s->resets = plan->resets;
  /* the free slot whose last operation is the older */
  if (!s->taken[0] && !s->taken[1]) *slot = s->slot_op[1] < s->slot_op[0];
  return wait_until_free(plan, *slot, call);
}

typedef struct posting {
  weft_ep_plan *plan;
  int slot;
} posting;

/* A rank that refuses an operation has done with the others' part of it: whoever posts later sees
 * to that. */
static void post(void *user) {
  const posting *p = (const posting *)user;
  const weft__cpu_ep *s = weft__ep_state(p->plan);
  weft__ep_board *b = s->board;
  const int64_t me = p->plan->rank;
  seat *own = &b->seats[me];
  const int64_t number = own->slots[p->slot]->operation.number;
  own->posted[p->slot] = number;
  own->refused[p->slot] = own->slots[p->slot]->status != WEFT_OK;
  for (int64_t r = 0; r < b->ranks; r++)
    for (int slot = 0; slot < WEFT__EP_FLIGHTS; slot++) {
      if (r == me || b->seats[r].posted[slot] != number) continue;
      if (b->seats[r].refused[slot]) b->acked[at(b, me, p->slot, r)] = number;
      if (own->refused[p->slot]) b->acked[at(b, r, slot, me)] = number;
    }
}

void weft__ep_board_post(weft_ep_plan *plan, int slot) {
  weft__cpu_ep *s = weft__ep_state(plan);
  posting p = {plan, slot};
  s->slot_op[slot] = ((const weft__ep_slot *)s->slots[slot])->operation.number;
  change(plan, post, &p);
}

/* ---- Receiving ---- */

typedef struct claim {
  weft_ep_plan *plan;
  int64_t rank, operation;
  const weft__ep_slot *found; /* marked as being read */
  bool masked, gone;
} claim;

/* A rank that has gone, or that has masked this one, may have posted before: that still counts for
 * the first, not for the second, which writes its slots without waiting for this rank. */
static bool is_claimed(void *user) {
  claim *c = (claim *)user;
  const int64_t me = c->plan->rank;
  weft__ep_board *b = weft__ep_state(c->plan)->board;
  const seat *theirs = &b->seats[c->rank];
  c->masked = masks(c->plan, me, c->rank) || masks(c->plan, c->rank, me);
  c->gone = theirs->gone;
  if (c->masked || c->gone) return true;
  for (int slot = 0; slot < WEFT__EP_FLIGHTS; slot++)
    if (theirs->posted[slot] == c->operation) {
      c->found = theirs->slots[slot];
      b->reading[at(b, c->rank, slot, me)] = true;
      return true;
    }
  return false;
}

/* One rank's slot, or NULL in its view where it is masked. */
static weft_status claim_rank(weft_ep_plan *plan, int64_t rank, int64_t operation, double began,
                              const char *call) {
  weft__cpu_ep *s = weft__ep_state(plan);
  claim c = {plan, rank, operation, NULL, false, false};
  char message[160];
  const double waited_from = now_ms();
  const weft_status status =
      plan->comm->transport->await(plan->comm, is_claimed, &c, left_ms(plan, began), call);
  s->wait_ms[rank] += now_ms() - waited_from;
  s->views[rank] = c.found;
  if (status == WEFT_OK && c.found != NULL) return WEFT_OK;
  if (status == WEFT_OK && c.masked) {
    masking m = {plan, rank};
    change(plan, set_mask, &m);
    return WEFT_OK;
  }
  if (status == WEFT_OK) {
    snprintf(message, sizeof message, "%s: rank %" PRId64 " has destroyed its plan", call, rank);
    return missing(plan, rank, WEFT_ERR_PEER, message);
  }
  if (status != WEFT_ERR_TIMEOUT) return status;
  snprintf(message, sizeof message, "%s: rank %" PRId64 " did not come within %" PRId64 " ms", call,
           rank, plan->config.timeout_ms);
  return missing(plan, rank, WEFT_ERR_TIMEOUT, message);
}

weft_status weft__ep_board_collect(weft_ep_plan *plan, int slot, const char *call) {
  weft__cpu_ep *s = weft__ep_state(plan);
  const double began = now_ms();
  for (int64_t r = 0; r < plan->ranks; r++)
    if (r != plan->rank) s->views[r] = NULL;
  for (int64_t r = 0; r < plan->ranks; r++)
    if (r != plan->rank) WEFT__TRY(claim_rank(plan, r, s->slot_op[slot], began, call));
  return WEFT_OK;
}

/* This rank has done with everyone's part of its operation. */
static void release(void *user) {
  const posting *p = (const posting *)user;
  const weft__cpu_ep *s = weft__ep_state(p->plan);
  weft__ep_board *b = s->board;
  const int64_t me = p->plan->rank;
  for (int64_t r = 0; r < b->ranks; r++)
    for (int slot = 0; slot < WEFT__EP_FLIGHTS; slot++) {
      if (r == me || s->views[r] != b->seats[r].slots[slot] || s->views[r] == NULL) continue;
      b->reading[at(b, r, slot, me)] = false;
      b->acked[at(b, r, slot, me)] = s->slot_op[p->slot];
    }
}

weft_status weft__ep_board_let_go(weft_ep_plan *plan, int slot, bool wait, const char *call) {
  posting p = {plan, slot};
  change(plan, release, &p);
  if (!wait) return WEFT_OK;
  const weft_status status = wait_until_free(plan, slot, call);
  if (status != WEFT_OK) drain(plan);
  return status;
}
