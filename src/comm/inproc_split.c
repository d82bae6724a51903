/* Sub-teams of an in-process team. Members meet in a gathering of the parent's; all take their new
 * view, or none does. A member without memory says so through the spare gathering that the parent
 * holds for it, so that the others need not wait for it. */
#define _POSIX_C_SOURCE 200809L
#include "comm/inproc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static const char *const call = "comm_split";

/* What the last member out leaves behind, once no rank will look at it; the parent's lock is held,
 * or the parent is going. */
static void release(gathering *group) {
  if (group->team != NULL)
    weft__inproc_team_drop(group->team);
  else
    group->linked = false;
}

static void unlink_group(inproc_team *parent, gathering *group) {
  gathering **link = &parent->pending;
  while (*link != NULL && *link != group)
    link = &(*link)->next;
  if (*link == group) *link = group->next;
}

void weft__inproc_forget(inproc_team *team) {
  while (team->pending != NULL) {
    gathering *const group = team->pending;
    team->pending = group->next;
    release(group);
  }
}

/* The oldest gathering of this list that the list's rank `self` has not joined. */
static gathering *find(const inproc_team *parent, const int64_t *members, int64_t ranks,
                       int64_t self) {
  for (gathering *group = parent->pending; group != NULL; group = group->next)
    if (group->ranks == ranks && !group->joined[self] &&
        memcmp(group->members, members, (size_t)ranks * sizeof *members) == 0)
      return group;
  return NULL;
}

static void open_group(inproc_team *parent, gathering *group, const int64_t *members,
                       int64_t ranks) {
  memcpy(group->members, members, (size_t)ranks * sizeof *members);
  memset(group->joined, 0, (size_t)ranks);
  group->ranks = ranks;
  group->arrived = group->inside = 0;
  group->status = WEFT_OK;
  group->linked = true;
  group->next = NULL;
  gathering **link = &parent->pending;
  while (*link != NULL)
    link = &(*link)->next;
  *link = group;
}

/* The first failure decides what the other members are told. */
static void fail_group(inproc_team *parent, gathering *group, weft_status status,
                       const char *message) {
  if (group->status != WEFT_OK) return;
  group->status = status;
  snprintf(group->message, sizeof group->message, "%s", message);
  pthread_cond_broadcast(&parent->wake);
}

/* Fails the gathering when a member that has not joined has destroyed its view of the parent. */
static bool lost_member(inproc_team *parent, gathering *group) {
  if (parent->gone_count == 0) return false;
  for (int64_t i = 0; i < group->ranks; i++) {
    if (group->joined[i] || !parent->gone[group->members[i]]) continue;
    char message[128];
    snprintf(message, sizeof message, "%s: rank %lld of the parent has destroyed its comm", call,
             (long long)group->members[i]);
    fail_group(parent, group, WEFT_ERR_PEER, message);
    return true;
  }
  return false;
}

/* Waits until all members have joined or the gathering has failed. A member that failed itself
 * (`stays`) waits for all the same, as long as they may come: it has one spare gathering to tell
 * them by, which must be free for its next call. The parent's lock is held. */
static weft_status wait_for_members(inproc_team *parent, gathering *group, bool stays) {
  const struct timespec deadline = weft__inproc_deadline(parent->timeout_ms);
  int waited = 0;
  while (group->arrived < group->ranks && (group->status == WEFT_OK || stays)) {
    if (parent->stopped != WEFT_OK) {
      const weft_status status = weft__inproc_stopped(parent, call);
      fail_group(parent, group, status, weft_last_error());
      break;
    }
    if (lost_member(parent, group)) break;
    if (waited == ETIMEDOUT) {
      char who[128], message[256];
      weft__inproc_missing(group->joined, group->members, group->ranks, who, sizeof who);
      snprintf(message, sizeof message,
               "%s: %s of the parent did not come within %lld ms to make a team of %lld", call, who,
               (long long)parent->timeout_ms, (long long)group->ranks);
      fail_group(parent, group, WEFT_ERR_TIMEOUT, message);
      break;
    }
    waited = pthread_cond_timedwait(&parent->wake, &parent->lock, &deadline);
  }
  return group->status == WEFT_OK ? WEFT_OK : weft__fail(group->status, "%s", group->message);
}

/* Fills a candidate team, which becomes the team if this rank is the first to come. */
static weft_status prepare(inproc_team *parent, const int64_t *members, int64_t ranks,
                           inproc_team **team) {
  WEFT__TRY(weft__inproc_team_new(parent, ranks, team));
  for (int64_t i = 0; i < ranks; i++)
    (*team)->members[i] = parent->members[members[i]];
  return WEFT_OK;
}

/* The last one out releases the gathering. Where all have come, the owner of a spare waits for the
 * others to leave, which they do at once, so that it is free for the owner's next call. */
static void leave(inproc_team *parent, gathering *group, int64_t rank) {
  const bool complete = group->arrived == group->ranks;
  while (group == &parent->spares[rank] && complete && group->inside > 1)
    pthread_cond_wait(&parent->wake, &parent->lock);
  group->inside--;
  if (group->team == NULL) pthread_cond_broadcast(&parent->wake);
  if (complete && group->inside == 0) release(group);
}

weft_status weft__inproc_split(weft_comm *comm, const int64_t *members, int64_t ranks,
                               weft_comm **out) {
  inproc_team *const parent = ((inproc_comm *)comm)->team;
  inproc_team *candidate = NULL;
  weft_comm *view = NULL;
  char own_message[256] = "";
  int64_t self = 0;
  while (members[self] != comm->info.rank)
    self++;

  weft_status own = WEFT_OK;
  if (out == NULL)
    own = weft__fail(WEFT_ERR_ARGUMENT, "%s: team is NULL, expected room for a handle", call);
  if (own == WEFT_OK) own = prepare(parent, members, ranks, &candidate);
  if (own == WEFT_OK) own = weft__inproc_view_new(candidate, self, comm, comm->gpu_rank, &view);
  if (own != WEFT_OK) snprintf(own_message, sizeof own_message, "%s", weft_last_error());

  weft_status status = WEFT_OK;
  pthread_mutex_lock(&parent->lock);
  if (parent->stopped != WEFT_OK) {
    status = weft__inproc_stopped(parent, call);
    goto unlock;
  }
  gathering *group = find(parent, members, ranks, self);
  if (group == NULL) {
    group = own == WEFT_OK ? &candidate->own : &parent->spares[comm->info.rank];
    /* the spare is in use when an earlier failure waits for members that did not come in time */
    if (group->linked) {
      status = weft__fail(own, "%s", own_message);
      goto unlock;
    }
    open_group(parent, group, members, ranks);
    if (group->team != NULL) candidate = NULL; /* the gathering holds it from now on */
  }
  group->joined[self] = 1;
  group->inside++;
  group->arrived++;
  if (own != WEFT_OK) {
    char message[256];
    snprintf(message, sizeof message, "%s: rank %lld of the parent failed (%s): %.160s", call,
             (long long)comm->info.rank, weft_status_string(own), own_message);
    fail_group(parent, group, WEFT_ERR_PEER, message);
  }
  if (group->arrived == ranks) {
    unlink_group(parent, group);
    pthread_cond_broadcast(&parent->wake);
  }
  status = wait_for_members(parent, group, own != WEFT_OK);
  if (own != WEFT_OK) status = weft__fail(own, "%s", own_message);
  if (status == WEFT_OK) {
    pthread_mutex_lock(&group->team->lock);
    group->team->references++;
    pthread_mutex_unlock(&group->team->lock);
    weft__inproc_view_join(view, group->team);
    *out = view;
    view = NULL;
  }
  leave(parent, group, comm->info.rank);
unlock:
  pthread_mutex_unlock(&parent->lock);
  weft__comm_free(view);
  weft__inproc_team_drop(candidate);
  return status;
}
