/* Ranks that are processes of an MPI communicator. A collective call is one round of messages from
 * each rank to each other: what the call is, how large, and small data at once; large data follow
 * when all have come and agree. So a rank that does not come is known by name, and a wait has an
 * end. A rank that stops the team tells all others. Knows base, core and the engine, not MPI. */
#define _POSIX_C_SOURCE 200809L
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/mpi_comm.h"
#include "core/error.h"
#include "core/memory.h"

static int tag_of(const mpi_comm *self, int kind) {
  return (int)(self->epoch % EPOCHS) * TAGS + kind;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- Stopping ------------------------------------------------------------------------------- */

weft_status weft__mpi_stopped(mpi_comm *self, const char *call) {
  char cause[sizeof self->error.message];
  pthread_mutex_lock(&self->lock);
  memcpy(cause, self->error.message, sizeof cause);
  pthread_mutex_unlock(&self->lock);
  const weft_status status = (weft_status)atomic_load(&self->stopped);
  return weft__fail(status, "%s: the team is stopped (%s) until weft_comm_reset(); the cause: %s",
                    call, weft_status_string(status), cause);
}

static void keep_stop(mpi_comm *self, weft_status status, int64_t rank, int64_t peer,
                      const char *message) {
  pthread_mutex_lock(&self->lock);
  weft__error_keep(&self->error, status, rank, peer, 1, message);
  if (atomic_load(&self->stopped) == WEFT_OK) {
    atomic_store(&self->stopped, (int)status);
    self->engine->add_lost(1);
  }
  pthread_mutex_unlock(&self->lock);
}

/* Stops the team by this rank's finding and tells the others, without waiting for them. */
static weft_status stop(mpi_comm *self, weft_status status, int64_t peer, const char *message) {
  const int64_t ranks = self->base.info.ranks, rank = self->base.info.rank;
  keep_stop(self, status, rank, peer, message);
  pthread_mutex_lock(&self->lock);
  const bool first = !self->told;
  self->told = true;
  if (first) {
    self->stop_out = (stop_message){.status = (int32_t)status, .rank = rank, .peer = peer};
    snprintf(self->stop_out.text, sizeof self->stop_out.text, "%s", message);
    for (int64_t i = 0; i < ranks; i++) {
      weft__mpi_request request = {0};
      if (i == rank) continue;
      if (self->engine->send(self->handle, i, tag_of(self, TAG_STOP), &self->stop_out,
                             sizeof self->stop_out, &request) == 0)
        self->engine->forget(&request, 0);
    }
  }
  pthread_mutex_unlock(&self->lock);
  return weft__fail(status, "%s", message);
}

/* Takes what other ranks have said of a stop. */
void weft__mpi_listen(mpi_comm *self) {
  stop_message word;
  int64_t from = -1;
  while (self->engine->take(self->handle, tag_of(self, TAG_STOP), &word, sizeof word, &from) == 0 &&
         from >= 0) {
    word.text[sizeof word.text - 1] = '\0';
    keep_stop(self, (weft_status)word.status, word.rank, word.peer, word.text);
  }
}

/* ---- Rounds --------------------------------------------------------------------------------- */

/* "rank 3" or "ranks 3, 5 and 2 more": those whose receive is not done. Returns the first. */
static int64_t missing(const mpi_comm *self, const int64_t *members, int64_t count, char *text,
                       size_t size) {
  enum { NAMED = 8 };
  int64_t first = -1, late = 0, shown = 0;
  for (int64_t i = 0; i < count; i++)
    late += self->receives[i].busy;
  int length = snprintf(text, size, "rank%s", late > 1 ? "s" : "");
  for (int64_t i = 0; i < count && shown < NAMED; i++) {
    if (!self->receives[i].busy) continue;
    if (first < 0) first = members[i];
    length += snprintf(text + length, size - (size_t)length, "%s %lld", shown++ > 0 ? "," : "",
                       (long long)members[i]);
  }
  if (late > shown)
    snprintf(text + length, size - (size_t)length, " and %lld more", (long long)(late - shown));
  return first;
}

static void forget_all(mpi_comm *self, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    self->engine->forget(&self->receives[i], 1);
    self->engine->forget(&self->sends[i], 0);
  }
}

static weft_status engine_failed(mpi_comm *self, int64_t count, const char *call) {
  char text[128];
  forget_all(self, count);
  snprintf(text, sizeof text, "%s: MPI could not send or receive", call);
  return stop(self, WEFT_ERR_SYSTEM, -1, text);
}

/* Waits until all messages under way are done. `quiet`: a reset, which a stop does not end, nor
 * does its own timeout stop anything. */
static weft_status await_messages(mpi_comm *self, const int64_t *members, int64_t count, bool quiet,
                                  const char *call) {
  const int64_t began = now_ms(), limit = self->base.info.timeout_ms;
  struct timespec rest = {0, 1000};
  for (int64_t polls = 0;; polls++) {
    bool waiting = false;
    for (int64_t i = 0; i < count; i++) {
      if (self->engine->test(&self->receives[i]) != 0 || self->engine->test(&self->sends[i]) != 0)
        return engine_failed(self, count, call);
      waiting = waiting || self->receives[i].busy || self->sends[i].busy;
    }
    /* also when all is here: what a late rank finds may be of a round that the others gave up */
    if (!quiet && (!waiting || polls % 16 == 15)) weft__mpi_listen(self);
    if (!quiet && atomic_load(&self->stopped) != WEFT_OK) {
      forget_all(self, count);
      return weft__mpi_stopped(self, call);
    }
    if (!waiting) return WEFT_OK;
    if (now_ms() - began > limit) {
      char who[160], text[200];
      const int64_t peer = missing(self, members, count, who, sizeof who);
      snprintf(text, sizeof text, "%s: %.100s of %lld did not come within %lld ms", call, who,
               (long long)self->base.info.ranks, (long long)limit);
      forget_all(self, count);
      return quiet ? weft__fail(WEFT_ERR_TIMEOUT, "%s", text)
                   : stop(self, WEFT_ERR_TIMEOUT, peer, text);
    }
    if (polls < BUSY_POLLS) {
      sched_yield();
      continue;
    }
    nanosleep(&rest, NULL);
    if (rest.tv_nsec < LONGEST_PAUSE) rest.tv_nsec += rest.tv_nsec / 2;
  }
}

/* One message to and from each of `members` (this rank among them, `own` its place); what came is
 * in self->in, by place. */
weft_status weft__mpi_meet(mpi_comm *self, const int64_t *members, int64_t count, int64_t own,
                           int tag, bool quiet, const char *call) {
  round_message *const mine = &self->in[self->base.info.ranks];
  const bool small = mine->kind == GATHER && mine->bytes <= INLINE_BYTES;
  const size_t bytes = HEADER + (small ? (size_t)mine->bytes : 0);
  memcpy(&self->in[own], mine, bytes);
  for (int64_t i = 0; i < count; i++) {
    if (i == own) continue;
    if (self->engine->receive(self->handle, members[i], tag, &self->in[i], sizeof self->in[i],
                              &self->receives[i]) != 0 ||
        self->engine->send(self->handle, members[i], tag, mine, bytes, &self->sends[i]) != 0)
      return engine_failed(self, count, call);
  }
  return await_messages(self, members, count, quiet, call);
}

/* All ranks hold the same messages and come to the same answer. */
static weft_status compare(const mpi_comm *self, const char *call) {
  static const char *const kinds[] = {"a barrier", "an all-gather"};
  const round_message *const in = self->in;
  for (int64_t i = 1; i < self->base.info.ranks; i++) {
    if (in[i].kind != in[0].kind)
      return weft__fail(WEFT_ERR_MISMATCH, "%s: rank 0 is in %s, rank %lld in %s", call,
                        kinds[in[0].kind == GATHER], (long long)i, kinds[in[i].kind == GATHER]);
    if (in[i].bytes != in[0].bytes)
      return weft__fail(WEFT_ERR_MISMATCH, "%s: rank 0 sends %lld bytes, rank %lld sends %lld",
                        call, (long long)in[0].bytes, (long long)i, (long long)in[i].bytes);
  }
  return WEFT_OK;
}

static weft_status round_of_all(mpi_comm *self, int kind, const void *send, size_t bytes) {
  const char *call = self->base.call;
  round_message *const mine = &self->in[self->base.info.ranks];
  weft__mpi_listen(self);
  if (atomic_load(&self->stopped) != WEFT_OK) return weft__mpi_stopped(self, call);
  mine->kind = kind;
  mine->status = WEFT_OK;
  mine->bytes = (int64_t)bytes;
  if (bytes > 0 && bytes <= INLINE_BYTES) memcpy(mine->data, send, bytes);
  WEFT__TRY(weft__mpi_meet(self, self->self, self->base.info.ranks, self->base.info.rank,
                           tag_of(self, TAG_ROUND), false, call));
  return compare(self, call);
}

static weft_status barrier(weft_comm *comm) {
  return round_of_all((mpi_comm *)comm, BARRIER, NULL, 0);
}

static weft_status large_data(mpi_comm *self, const unsigned char *send, unsigned char *recv,
                              size_t bytes) {
  const int64_t ranks = self->base.info.ranks, rank = self->base.info.rank;
  const int tag = tag_of(self, TAG_LARGE);
  if (recv + (size_t)rank * bytes != send) memcpy(recv + (size_t)rank * bytes, send, bytes);
  for (size_t at = 0; at < bytes; at += PIECE) {
    const size_t piece = bytes - at < PIECE ? bytes - at : PIECE;
    for (int64_t i = 0; i < ranks; i++)
      if (i != rank && self->engine->receive(self->handle, i, tag, recv + (size_t)i * bytes + at,
                                             piece, &self->receives[i]) != 0)
        return engine_failed(self, ranks, self->base.call);
    for (int64_t k = 1; k < ranks; k++) { /* not all to one rank at a time */
      const int64_t to = (rank + k) % ranks;
      if (self->engine->send(self->handle, to, tag, send + at, piece, &self->sends[to]) != 0)
        return engine_failed(self, ranks, self->base.call);
    }
    WEFT__TRY(await_messages(self, self->self, ranks, false, self->base.call));
  }
  return WEFT_OK;
}

static weft_status allgather(weft_comm *comm, const void *send, void *recv, size_t bytes) {
  mpi_comm *const self = (mpi_comm *)comm;
  WEFT__TRY(round_of_all(self, GATHER, send, bytes));
  if (bytes > INLINE_BYTES)
    return large_data(self, (const unsigned char *)send, (unsigned char *)recv, bytes);
  for (int64_t i = 0; i < comm->info.ranks && bytes > 0; i++)
    memcpy((unsigned char *)recv + (size_t)i * bytes, self->in[i].data, bytes);
  return WEFT_OK;
}

/* ---- Endings -------------------------------------------------------------------------------- */

static weft_status abort_team(weft_comm *comm) {
  char message[96];
  snprintf(message, sizeof message, "comm_abort: rank %lld has aborted the team",
           (long long)comm->info.rank);
  stop((mpi_comm *)comm, WEFT_ERR_ABORTED, -1, message);
  return WEFT_OK;
}

static weft_status reset(weft_comm *comm) {
  mpi_comm *const self = (mpi_comm *)comm;
  const int64_t ranks = comm->info.ranks;
  self->in[ranks] = (round_message){.kind = RESET};
  WEFT__TRY(weft__mpi_meet(self, self->self, ranks, comm->info.rank, tag_of(self, TAG_RESET), true,
                           "comm_reset"));
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  weft__mpi_listen(self); /* what belongs to the epoch that ends */
  pthread_mutex_lock(&self->lock);
  if (atomic_exchange(&self->stopped, WEFT_OK) != WEFT_OK) self->engine->add_lost(-1);
  self->told = false;
  self->error = none;
  self->epoch++;
  pthread_mutex_unlock(&self->lock);
  return WEFT_OK;
}

void weft__mpi_destroy(weft_comm *comm) {
  mpi_comm *const self = (mpi_comm *)comm;
  /* After a stop, messages may still be under way: their memory and communicator stay. */
  const bool quiet = atomic_load(&self->stopped) == WEFT_OK && self->epoch == 0;
  if (self->handle != NULL && quiet) self->engine->close(self->handle);
  if (self->handle == NULL || quiet) weft__free(self->in);
  weft__free(self->self);
  weft__free(self->world_of);
  weft__free(self->sends);
  weft__free(self->receives);
  pthread_mutex_destroy(&self->lock);
  weft__comm_free(comm);
}

static void report(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                   const char *message) {
  mpi_comm *const self = (mpi_comm *)comm;
  pthread_mutex_lock(&self->lock);
  weft__error_keep(&self->error, status, comm->info.rank, peer, count, message);
  pthread_mutex_unlock(&self->lock);
}

static void async_error(weft_comm *comm, weft_async_error *error) {
  mpi_comm *const self = (mpi_comm *)comm;
  pthread_mutex_lock(&self->lock);
  *error = self->error;
  pthread_mutex_unlock(&self->lock);
}

const weft__transport weft__mpi_transport = {
    .name = "mpi",
    .loads_peers = false,
    .allgather = allgather,
    .barrier = barrier,
    .split = weft__mpi_split,
    .abort = abort_team,
    .reset = reset,
    .destroy = weft__mpi_destroy,
    .report = report,
    .async_error = async_error,
};
