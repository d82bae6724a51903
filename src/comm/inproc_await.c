/* Waits of in-process ranks for state that an operation keeps itself, under the team's lock, so
 * that aborts, stops and resets of the team end them too. Knows the team, not what is waited for.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>

#include "comm/inproc.h"
#include "core/error.h"

weft_status weft__inproc_await(weft_comm *comm, weft__ready ready, void *user, int64_t timeout_ms,
                               const char *call) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  const struct timespec deadline = weft__inproc_deadline(timeout_ms);
  weft_status status = WEFT_OK;
  int waited = 0;
  pthread_mutex_lock(&team->lock);
  for (;;) {
    if (team->stopped != WEFT_OK) {
      status = weft__inproc_stopped(team, call);
      break;
    }
    if (ready(user)) break;
    if (waited == ETIMEDOUT) {
      status = WEFT_ERR_TIMEOUT;
      break;
    }
    waited = pthread_cond_timedwait(&team->wake, &team->lock, &deadline);
  }
  pthread_mutex_unlock(&team->lock);
  return status;
}

void weft__inproc_change(weft_comm *comm, void (*fn)(void *user), void *user) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  fn(user);
  pthread_cond_broadcast(&team->wake);
  pthread_mutex_unlock(&team->lock);
}

weft_status weft__inproc_stop_team(weft_comm *comm, weft_status status, int64_t peer,
                                   const char *message) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  const weft_status stopped = weft__inproc_stop(team, status, comm->info.rank, peer, message);
  pthread_mutex_unlock(&team->lock);
  return stopped;
}

int64_t weft__inproc_resets(weft_comm *comm) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  pthread_mutex_lock(&team->lock);
  const int64_t resets = team->resets;
  pthread_mutex_unlock(&team->lock);
  return resets;
}
