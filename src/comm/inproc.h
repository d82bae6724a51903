/* The shared half of an in-process team: what its ranks, all threads of this process, meet in.
 * inproc_team.c holds its memory, inproc.c the meeting itself, inproc_split.c the making of
 * sub-teams, inproc_await.c waits for state of the operations' own. Knows base, core and POSIX
 * threads. */
#ifndef WEFT_COMM_INPROC_H
#define WEFT_COMM_INPROC_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "comm/base.h"

typedef struct inproc_team inproc_team;

/* The making of one sub-team, kept in the parent's list until every member has come, so that the
 * k-th creation of a list by one rank meets the k-th by the others: a member joins the oldest
 * gathering of its list that it has not joined. One that failed stays for those still to come. */
typedef struct gathering {
  struct gathering *next;
  int64_t *members; /* [ranks] parent ranks */
  int64_t ranks;
  unsigned char *joined; /* [ranks] */
  int64_t arrived;       /* members that have joined */
  int64_t inside;        /* members that have joined and not left again */
  weft_status status;    /* why it failed, or WEFT_OK */
  char message[256];     /* of the failure, for the other members */
  inproc_team *team;     /* the team to be; NULL in a rank's spare gathering */
  bool linked;
} gathering;

/* What a rank brings to a meeting. */
typedef struct arrival {
  int32_t kind; /* 0: barrier, 1: all-gather */
  int64_t bytes;
  const void *send;
} arrival;

enum { INPROC_SLOT = 1024 }; /* all-gathers up to this go through a slot: one meeting, not two */
enum { INPROC_WORD_STRIDE = 16 }; /* of error words: one of 64 bytes for each rank */

struct inproc_team {
  pthread_mutex_t lock; /* guards all that is not atomic or written before the team is shared */
  pthread_cond_t wake;  /* every change that a waiting rank may wait for */
  int64_t ranks;
  int64_t references; /* views, and the gathering that made it */
  int64_t world_ranks, world_hosts;
  int64_t timeout_ms, arena_bytes;
  int32_t device, gpu;
  int64_t *members; /* [ranks] world ranks */
  int spins;        /* polls before a wait blocks; 0 where ranks outnumber cores */

  /* Meetings. Arrivals and slots are double-buffered by the meeting's parity: a rank writes those
   * of the next meeting while others still read those of the last. */
  atomic_llong meeting; /* number of meetings completed */
  int64_t arrived;
  unsigned char *here;  /* [ranks] */
  arrival *arrivals;    /* [2][ranks] */
  unsigned char *slots; /* [2][ranks][INPROC_SLOT] */
  atomic_llong readers; /* ranks that may still read from a peer's send buffer */

  unsigned char *gone; /* [ranks] views destroyed */
  int64_t gone_count;
  weft_status stopped; /* sticky: every call fails by this until a reset */
  weft_async_error error;

  int64_t aborts; /* abort calls, so that one ends a reset that waits */
  int64_t resets; /* resets completed */
  int64_t resetting;
  unsigned char *in_reset; /* [ranks] */

  uint32_t *words; /* [ranks · INPROC_WORD_STRIDE] error words of GPU ranks' kernels, else NULL */

  gathering *pending; /* sub-teams in the making, oldest first */
  gathering own;      /* of this team's own making */
  gathering *spares;  /* [ranks] for a member that has no memory for a team, to say so */
};

typedef struct inproc_comm {
  weft_comm base; /* first */
  inproc_team *team;
} inproc_comm;

extern const weft__transport weft__inproc;

/* A team with one reference. Its `members` are for the caller to fill, and what the world's config
 * gives is taken from `like`, of which only those fields are read. */
weft_status weft__inproc_team_new(const inproc_team *like, int64_t ranks, inproc_team **out);
/* Gives back one reference; the caller does not hold the lock. NULL is allowed. */
void weft__inproc_team_drop(inproc_team *team);
/* `like` is another view of the same world rank, or NULL for the first one, on `gpu_rank` (NULL on
 * CPUs). */
weft_status weft__inproc_view_new(inproc_team *team, int64_t rank, const weft_comm *like,
                                  weft__gpu_rank *gpu_rank, weft_comm **out);
/* Once the view is to belong to this team. */
void weft__inproc_view_join(weft_comm *view, inproc_team *team);

/* Absolute time on the monotonic clock, `ms` from now. */
struct timespec weft__inproc_deadline(int64_t ms);

/* "rank 3" or "ranks 3, 5, 6 and 9 more": those whose flag is 0, as `names` (NULL: their index).
 * Returns the first number printed, -1 when all flags are set. */
int64_t weft__inproc_missing(const unsigned char *flags, const int64_t *names, int64_t ranks,
                             char *text, size_t size);

/* Sets the thread's message for a team that is stopped; the lock is held. */
weft_status weft__inproc_stopped(const inproc_team *team, const char *call);

/* Stops the team by this rank's finding, which becomes the thread's message; the lock is held. */
weft_status weft__inproc_stop(inproc_team *team, weft_status status, int64_t rank, int64_t peer,
                              const char *message);

/* Shared state of operations: weft__transport says what they do. */
weft_status weft__inproc_await(weft_comm *comm, weft__ready ready, void *user, int64_t timeout_ms,
                               const char *call);
void weft__inproc_change(weft_comm *comm, void (*fn)(void *user), void *user);
weft_status weft__inproc_stop_team(weft_comm *comm, weft_status status, int64_t peer,
                                   const char *message);
int64_t weft__inproc_resets(weft_comm *comm);

/* Error words of GPU ranks; the lock is held. Nothing happens on CPUs. */
void weft__inproc_words_stop(inproc_team *team);  /* ends the waits of the team's kernels */
void weft__inproc_words_clear(inproc_team *team); /* no kernel of the team runs */
void weft__inproc_words_poll(inproc_team *team);  /* what kernels found stops the team */
weft_status weft__inproc_check(weft_comm *comm, const char *call);

/* Ends what is left of sub-teams in the making; the lock is held, or nobody else is left. */
void weft__inproc_forget(inproc_team *team);

weft_status weft__inproc_split(weft_comm *parent, const int64_t *members, int64_t ranks,
                               weft_comm **out);

#endif
