/* Teams as the operations see them: a transport is a struct of functions, and what it must offer is
 * small. An all-gather and a barrier carry everything; where peers' memory can be loaded, a pointer
 * that travels by all-gather replaces copies. Below: core. Above: ce, ep. */
#ifndef WEFT_COMM_COMM_H
#define WEFT_COMM_COMM_H

#include <stdbool.h>
#include <weft/weft.h>

#include "core/device.h"

/* What a wait is for: looks at state that the team's lock guards, and may change it. */
typedef bool (*weft__ready)(void *user);

typedef struct weft__transport {
  const char *name;
  bool loads_peers; /* a pointer sent by a peer may be dereferenced here, between two barriers */
  weft_status (*allgather)(weft_comm *comm, const void *send, void *recv, size_t bytes);
  weft_status (*barrier)(weft_comm *comm);
  weft_status (*split)(weft_comm *parent, const int64_t *members, int64_t ranks, weft_comm **team);
  weft_status (*abort)(weft_comm *comm);
  weft_status (*reset)(weft_comm *comm);
  void (*destroy)(weft_comm *comm);
  /* Keeps an error for async_error, which answers status WEFT_OK when there is none. */
  void (*report)(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                 const char *message);
  void (*async_error)(weft_comm *comm, weft_async_error *error);
  /* Where peers' memory can be loaded, an operation keeps shared state of its own under the team's
   * lock; NULL elsewhere. `await` returns when `ready` has answered true: WEFT_OK, TIMEOUT without
   * a message (the team goes on), or what has stopped the team. `change` changes the state and
   * wakes those who wait; it must not fail or block. */
  weft_status (*await)(weft_comm *comm, weft__ready ready, void *user, int64_t timeout_ms,
                       const char *call);
  void (*change)(weft_comm *comm, void (*fn)(void *user), void *user);
  /* Stops the team until a reset, with this rank's finding. Sets the thread's message. */
  weft_status (*stop)(weft_comm *comm, weft_status status, int64_t peer, const char *message);
  int64_t (*resets)(weft_comm *comm); /* how often the team was reset */
  /* Whether the team goes on: WEFT_OK, or what has stopped it, with a message. For calls that don't
   * meet. NULL where there are none. */
  weft_status (*check)(weft_comm *comm, const char *call);
} weft__transport;

/* The symmetric arena of one world rank, shared by its views of every team. */
typedef struct weft__arena weft__arena;

/* A plan, as far as its team's errors concern it. */
typedef struct weft__watch weft__watch;
struct weft__watch {
  /* Calls weft__comm_report() for errors of the plan's kernels that are new; asked by
   * weft_comm_async_error(). May be NULL, as the next. */
  void (*ask)(void *user);
  /* Brings what the plan's kernels share with their peers back to how it began; asked by
   * weft_comm_reset(), while no kernel of the team runs. */
  weft_status (*reset)(void *user);
  void *user;
  weft__watch *next;
};

/* The head of every transport's own comm struct. */
struct weft_comm {
  const weft__transport *transport;
  weft_comm_info info;
  int64_t *hosts_of;   /* [ranks] host number of each rank, relative to the team */
  int64_t plans;       /* live plans of this rank's view */
  int64_t arena_used;  /* symmetric bytes taken by this view's plans */
  int64_t arena_bytes; /* the world's limit for all views of a rank together, 0: none */
  int64_t cpu_ranks;   /* ranks of the world that share this process's cores, this one counted */
  weft__arena *arena;
  weft__gpu_rank *gpu_rank; /* in a world of several GPU ranks; NULL elsewhere */
  uint32_t *gpu_word;       /* and this rank's error word in this team, for kernels and the host */
  weft__watch *watches;
  void *scratch; /* [ranks + 1] messages of weft__comm_agree, so that it cannot run out of memory */
  const char *call; /* the public call that is in the transport, for its messages */
};

/* Collective over the team; `recv` gets ranks × bytes in rank order. Errors: TIMEOUT, ABORTED. */
weft_status weft__comm_allgather(weft_comm *comm, const void *send, void *recv, size_t bytes);

/* Every rank brings the status of its own checks, and `bytes` that must be the same on all ranks.
 * All ranks return WEFT_OK, or none does: the rank whose own status is bad gets that back, with its
 * message; the others get PEER naming the rank; where bytes differ, all get MISMATCH naming a rank
 * and the field, found in `fields`. Without a team (NULL) there is `own` alone. */
typedef struct weft__field {
  const char *name;
  size_t offset, bytes; /* bytes: 4 or 8, read as signed integers for the message */
} weft__field;

weft_status weft__comm_agree(weft_comm *comm, weft_status own, const void *data, size_t bytes,
                             const weft__field *fields, int count, const char *what);

/* The device of a plan: that of its team, or without a team (NULL) the one that its config wants;
 * ARGUMENT where the two contradict each other. */
weft_status weft__comm_device(const weft_comm *comm, int32_t wanted, int32_t *device);

/* Records an error for weft_comm_async_error(). */
void weft__comm_report(weft_comm *comm, weft_status status, int64_t peer, int64_t count,
                       const char *message);

/* The watch belongs to the caller and must be taken off before the view is destroyed. */
void weft__comm_watch(weft_comm *comm, weft__watch *watch);
void weft__comm_unwatch(weft_comm *comm, weft__watch *watch);

/* Takes `bytes` of the symmetric arena's allowance, or gives them back with a negative count. */
weft_status weft__comm_arena_take(weft_comm *comm, int64_t bytes);

#endif
