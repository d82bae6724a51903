/* A rank's view of an MPI team from the inside: mpi.c holds rounds of messages and the transport on
 * them, mpi_team.c the making of worlds and sub-teams. Knows base, core and the engine. */
#ifndef WEFT_COMM_MPI_COMM_H
#define WEFT_COMM_MPI_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/base.h"
#include "comm/mpi.h"

enum {
  INLINE_BYTES = 1024,    /* data that travel with a round */
  PIECE = 1 << 28,        /* bytes of one message of large data: MPI counts in int */
  EPOCHS = 1024,          /* resets that tags tell apart */
  SPLIT_TAGS = 8192,      /* of sub-teams in the making, from this number on */
  BUSY_POLLS = 2000,      /* before a waiting rank gives its core away for longer */
  LONGEST_PAUSE = 1000000 /* ns */
};

/* Tags of an epoch. Messages of an earlier one are never taken for this one's. */
enum { TAG_ROUND, TAG_LARGE, TAG_STOP, TAG_RESET, TAGS };

enum { BARRIER, GATHER, SPLIT_HELLO, SPLIT_READY, RESET };

typedef struct round_message {
  int32_t kind, status;
  int64_t bytes; /* of the data; of a split: a hash of its members */
  unsigned char data[INLINE_BYTES];
} round_message;

enum { HEADER = sizeof(round_message) - INLINE_BYTES };

typedef struct stop_message {
  int32_t status;
  int32_t reserved;
  int64_t rank, peer;
  char text[200];
} stop_message;

typedef struct mpi_comm {
  weft_comm base; /* first */
  const weft__mpi_engine *engine;
  void *handle;
  int64_t *world_of; /* [ranks] world rank of each team rank */
  int64_t *self;     /* [ranks] 0, 1, …: the members of a round of the whole team */
  round_message *in; /* [ranks + 1], the last is this rank's own */
  weft__mpi_request *sends, *receives; /* [ranks] */
  pthread_mutex_t lock;                /* guards error, and what stop() sends */
  stop_message stop_out;
  atomic_int stopped; /* a weft_status: every call fails by it until a reset */
  bool told;          /* the others know; the engine counts this team as lost */
  weft_async_error error;
  int64_t epoch;
  int64_t world_hosts;
} mpi_comm;

extern const weft__transport weft__mpi_transport;

/* One message to and from each of `members`, ranks of this team with this one at place `own`, of
 * what stands in in[ranks]; what came is in `in`, by place. Waits for the team's time limit; a rank
 * that does not come stops the team, unless the round is `quiet` (a reset, which a stop does not
 * end). */
weft_status weft__mpi_meet(mpi_comm *self, const int64_t *members, int64_t count, int64_t own,
                           int tag, bool quiet, const char *call);

/* Takes what other ranks have said of a stop; the team is as `stopped` says then. */
void weft__mpi_listen(mpi_comm *self);
weft_status weft__mpi_stopped(mpi_comm *self, const char *call);

/* Ends a view, of which parts may be missing. */
void weft__mpi_destroy(weft_comm *comm);

weft_status weft__mpi_split(weft_comm *parent, const int64_t *members, int64_t ranks,
                            weft_comm **out);

#endif
