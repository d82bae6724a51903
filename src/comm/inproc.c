/* Ranks that are threads of one process. They meet under a mutex and a condition variable, since
 * ranks may outnumber cores; a short poll comes first only where they don't. A meeting carries an
 * all-gather: small blocks travel by slots, large ones are copied straight from the senders, who
 * then wait until nobody reads from them any more. */
#define _POSIX_C_SOURCE 200809L
#include "comm/inproc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

enum { MEET_BARRIER = 0, MEET_GATHER = 1 };

struct timespec weft__inproc_deadline(int64_t ms) {
  const int64_t longest = INT64_C(1000) * 3600 * 24 * 3650; /* keeps the sum inside time_t */
  if (ms > longest) ms = longest;
  struct timespec when;
  clock_gettime(CLOCK_MONOTONIC, &when);
  when.tv_sec += (time_t)(ms / 1000);
  when.tv_nsec += (long)(ms % 1000) * 1000000;
  if (when.tv_nsec >= 1000000000) {
    when.tv_nsec -= 1000000000;
    when.tv_sec++;
  }
  return when;
}

int64_t weft__inproc_missing(const unsigned char *flags, const int64_t *names, int64_t ranks,
                             char *text, size_t size) {
  enum { NAMED = 8 };
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < ranks; i++)
    count += flags[i] == 0;
  int length = snprintf(text, size, "rank%s", count > 1 ? "s" : "");
  int64_t shown = 0;
  for (int64_t i = 0; i < ranks && shown < NAMED; i++) {
    if (flags[i] != 0) continue;
    const int64_t name = names != NULL ? names[i] : i;
    if (first < 0) first = name;
    if ((size_t)length < size)
      length += snprintf(text + length, size - (size_t)length, "%s %lld", shown > 0 ? "," : "",
                         (long long)name);
    shown++;
  }
  if (count > shown && (size_t)length < size)
    snprintf(text + length, size - (size_t)length, " and %lld more", (long long)(count - shown));
  return first;
}

/* ---- Meeting -------------------------------------------------------------------------------- */

weft_status weft__inproc_stopped(const inproc_team *team, const char *call) {
  return weft__fail(team->stopped,
                    "%s: the team is stopped (%s) until weft_comm_reset(); the cause: %s", call,
                    weft_status_string(team->stopped), team->error.message);
}

weft_status weft__inproc_stop(inproc_team *team, weft_status status, int64_t rank, int64_t peer,
                              const char *message) {
  team->stopped = status;
  weft__error_keep(&team->error, status, rank, peer, 1, message);
  weft__inproc_words_stop(team);
  pthread_cond_broadcast(&team->wake);
  return weft__fail(status, "%s", message);
}

/* Stops the team when a rank that has not come has destroyed its view; the lock is held. */
static weft_status check_gone(inproc_team *team, int64_t rank, const char *call) {
  if (team->gone_count == 0) return WEFT_OK;
  for (int64_t peer = 0; peer < team->ranks; peer++) {
    if (!team->gone[peer] || team->here[peer]) continue;
    char message[128];
    snprintf(message, sizeof message, "%s: rank %lld of %lld has destroyed its comm", call,
             (long long)peer, (long long)team->ranks);
    return weft__inproc_stop(team, WEFT_ERR_PEER, rank, peer, message);
  }
  return WEFT_OK;
}

/* Whether all ranks brought the same kind and size; the ranks see the same arrivals, so they agree
 * on the answer. Rank 0 is the yardstick. */
static int64_t differing(const arrival *arrivals, int64_t ranks) {
  for (int64_t i = 1; i < ranks; i++)
    if (arrivals[i].kind != arrivals[0].kind || arrivals[i].bytes != arrivals[0].bytes) return i;
  return -1;
}

/* Polls for a short while, without the lock, until the meeting is over. */
static bool poll_meeting(inproc_team *team, long long number) {
  for (int i = 0; i < team->spins; i++)
    if (atomic_load_explicit(&team->meeting, memory_order_acquire) != number) return true;
  return false;
}

/* Waits for all ranks. On WEFT_OK, *met are the arrivals of this meeting, which stay as they are
 * until this rank has come to the next but one. */
static weft_status meet(weft_comm *comm, arrival mine, const char *call, const arrival **met) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  const int64_t rank = comm->info.rank, ranks = team->ranks;
  weft_status status = WEFT_OK;

  pthread_mutex_lock(&team->lock);
  const long long number = atomic_load_explicit(&team->meeting, memory_order_relaxed);
  arrival *const arrivals = team->arrivals + (number & 1) * ranks;
  *met = arrivals;
  if (team->stopped != WEFT_OK) {
    status = weft__inproc_stopped(team, call);
    goto unlock;
  }
  arrivals[rank] = mine;
  if (mine.kind == MEET_GATHER && mine.bytes > 0 && mine.bytes <= INPROC_SLOT)
    memcpy(team->slots + ((number & 1) * ranks + rank) * INPROC_SLOT, mine.send,
           (size_t)mine.bytes);
  team->here[rank] = 1;
  if (++team->arrived == ranks) {
    team->arrived = 0;
    memset(team->here, 0, (size_t)ranks);
    if (mine.bytes > INPROC_SLOT && differing(arrivals, ranks) < 0)
      atomic_store(&team->readers, ranks);
    atomic_store_explicit(&team->meeting, number + 1, memory_order_release);
    pthread_cond_broadcast(&team->wake);
    goto unlock;
  }
  if (team->spins > 0) {
    pthread_mutex_unlock(&team->lock);
    if (poll_meeting(team, number)) return WEFT_OK;
    pthread_mutex_lock(&team->lock);
  }
  const struct timespec deadline = weft__inproc_deadline(team->timeout_ms);
  int waited = 0;
  while (atomic_load_explicit(&team->meeting, memory_order_acquire) == number) {
    if (team->stopped != WEFT_OK) {
      status = weft__inproc_stopped(team, call);
      break;
    }
    status = check_gone(team, rank, call);
    if (status != WEFT_OK) break;
    if (waited == ETIMEDOUT) {
      char who[128], message[200];
      const int64_t peer = weft__inproc_missing(team->here, NULL, ranks, who, sizeof who);
      snprintf(message, sizeof message, "%s: %s of %lld did not come within %lld ms", call, who,
               (long long)ranks, (long long)team->timeout_ms);
      status = weft__inproc_stop(team, WEFT_ERR_TIMEOUT, rank, peer, message);
      break;
    }
    waited = pthread_cond_timedwait(&team->wake, &team->lock, &deadline);
  }
unlock:
  pthread_mutex_unlock(&team->lock);
  return status;
}

/* Every rank of the meeting comes to the same answer here. */
static weft_status compare(const arrival *met, int64_t ranks, const char *call) {
  const int64_t other = differing(met, ranks);
  if (other < 0) return WEFT_OK;
  if (met[0].kind != met[other].kind)
    return weft__fail(WEFT_ERR_MISMATCH, "%s: rank 0 is in %s, rank %lld in %s", call,
                      met[0].kind == MEET_BARRIER ? "a barrier" : "an all-gather", (long long)other,
                      met[other].kind == MEET_BARRIER ? "a barrier" : "an all-gather");
  return weft__fail(WEFT_ERR_MISMATCH, "%s: rank 0 sends %lld bytes, rank %lld sends %lld", call,
                    (long long)met[0].bytes, (long long)other, (long long)met[other].bytes);
}

static weft_status barrier(weft_comm *comm) {
  const arrival *met = NULL;
  WEFT__TRY(meet(comm, (arrival){.kind = MEET_BARRIER}, comm->call, &met));
  return compare(met, comm->info.ranks, comm->call);
}

/* This rank has read all it wants; waits until nobody reads from its buffer. The others are inside
 * the library and only copy, so this ends, whatever happens to the team meanwhile. */
static void finish_reading(inproc_team *team) {
  if (atomic_fetch_sub(&team->readers, 1) == 1) {
    pthread_mutex_lock(&team->lock);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    return;
  }
  for (int i = 0; i < team->spins; i++)
    if (atomic_load(&team->readers) == 0) return;
  pthread_mutex_lock(&team->lock);
  while (atomic_load(&team->readers) != 0)
    pthread_cond_wait(&team->wake, &team->lock);
  pthread_mutex_unlock(&team->lock);
}

static weft_status allgather(weft_comm *comm, const void *send, void *recv, size_t bytes) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  const int64_t ranks = team->ranks;
  const arrival *met = NULL;
  const arrival mine = {.kind = MEET_GATHER, .bytes = (int64_t)bytes, .send = send};
  WEFT__TRY(meet(comm, mine, comm->call, &met));
  WEFT__TRY(compare(met, ranks, comm->call));
  if (bytes == 0) return WEFT_OK;
  const unsigned char *const slots = team->slots + (met - team->arrivals) * INPROC_SLOT;
  for (int64_t i = 0; i < ranks; i++) {
    /* each rank starts at its own block, so that they don't all read from one sender at once */
    const int64_t from = (comm->info.rank + i) % ranks;
    unsigned char *const to = (unsigned char *)recv + (size_t)from * bytes;
    const void *const block = bytes <= INPROC_SLOT ? slots + from * INPROC_SLOT : met[from].send;
    if (to != block) memcpy(to, block, bytes);
  }
  if (bytes > INPROC_SLOT) finish_reading(team);
  return WEFT_OK;
}

/* ---- Errors and endings --------------------------------------------------------------------- */

static weft_status abort_team(weft_comm *comm) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  char message[96];
  snprintf(message, sizeof message, "comm_abort: rank %lld has aborted the team",
           (long long)comm->info.rank);
  pthread_mutex_lock(&team->lock);
  team->aborts++;
  team->stopped = WEFT_ERR_ABORTED;
  weft__error_keep(&team->error, WEFT_ERR_ABORTED, comm->info.rank, -1, 1, message);
  weft__inproc_words_stop(team);
  pthread_cond_broadcast(&team->wake);
  pthread_mutex_unlock(&team->lock);
  return WEFT_OK;
}

/* All ranks are in reset: none is in another call. */
static void clear(inproc_team *team) {
  const weft_async_error none = WEFT_ASYNC_ERROR_INIT;
  team->stopped = WEFT_OK;
  team->error = none;
  weft__inproc_words_clear(team);
  team->arrived = 0;
  memset(team->here, 0, (size_t)team->ranks);
  team->resetting = 0;
  memset(team->in_reset, 0, (size_t)team->ranks);
  team->resets++;
  weft__inproc_forget(team);
  pthread_cond_broadcast(&team->wake);
}

static weft_status reset(weft_comm *comm) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  const int64_t rank = comm->info.rank;
  weft_status status = WEFT_OK;
  char who[128];
  pthread_mutex_lock(&team->lock);
  const int64_t resets = team->resets, aborts = team->aborts;
  const struct timespec deadline = weft__inproc_deadline(team->timeout_ms);
  int waited = 0;
  team->in_reset[rank] = 1;
  if (++team->resetting == team->ranks) clear(team);
  while (team->resets == resets) {
    if (team->gone_count > 0)
      status = weft__fail(WEFT_ERR_PEER, "comm_reset: %lld of %lld ranks have destroyed their comm",
                          (long long)team->gone_count, (long long)team->ranks);
    else if (team->aborts != aborts)
      status = weft__fail(WEFT_ERR_ABORTED, "comm_reset: the team was aborted meanwhile");
    else if (waited == ETIMEDOUT) {
      weft__inproc_missing(team->in_reset, NULL, team->ranks, who, sizeof who);
      status = weft__fail(WEFT_ERR_TIMEOUT, "comm_reset: %s of %lld did not come within %lld ms",
                          who, (long long)team->ranks, (long long)team->timeout_ms);
    }
    if (status != WEFT_OK) {
      team->in_reset[rank] = 0;
      team->resetting--;
      break;
    }
    waited = pthread_cond_timedwait(&team->wake, &team->lock, &deadline);
  }
  pthread_mutex_unlock(&team->lock);
  return status;
}

static void destroy(weft_comm *comm) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  team->gone[comm->info.rank] = 1;
  team->gone_count++;
  pthread_cond_broadcast(&team->wake);
  pthread_mutex_unlock(&team->lock);
  weft__inproc_team_drop(team);
  weft__comm_free(comm);
}

static void report(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                   const char *message) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  weft__error_keep(&team->error, status, comm->info.rank, peer, count, message);
  pthread_mutex_unlock(&team->lock);
}

static void async_error(weft_comm *comm, weft_async_error *error) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  weft__inproc_words_poll(team);
  *error = team->error;
  pthread_mutex_unlock(&team->lock);
}

const weft__transport weft__inproc = {
    .name = "inproc",
    .loads_peers = true,
    .allgather = allgather,
    .barrier = barrier,
    .split = weft__inproc_split,
    .abort = abort_team,
    .reset = reset,
    .destroy = destroy,
    .report = report,
    .async_error = async_error,
    .await = weft__inproc_await,
    .change = weft__inproc_change,
    .stop = weft__inproc_stop_team,
    .resets = weft__inproc_resets,
    .check = weft__inproc_check,
};
