/* What the MPI plugin (plugins/mpi, a shared object of its own) offers to the transport: messages
 * between the processes of a communicator, none of which blocks, and the making of communicators. A
 * plain struct of functions, so that neither side links the other. Functions return 0 for success;
 * otherwise `why` gets words, where there is room for them. */
#ifndef WEFT_COMM_MPI_ENGINE_H
#define WEFT_COMM_MPI_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum {
  WEFT__MPI_ENGINE_VERSION = 1, /* of this struct */
  WEFT__MPI_TAG_END = 32768     /* tags are below this, which every MPI has */
};

/* A message under way: room for an MPI_Request. */
typedef struct weft__mpi_request {
  uint64_t word;
  int32_t busy; /* 0: there is none, or it is done */
} weft__mpi_request;

typedef struct weft__mpi_world {
  void *handle; /* a copy of the communicator, whose messages nobody else sees */
  int64_t rank, ranks, local_ranks; /* local: processes of this communicator on this host */
} weft__mpi_world;

typedef struct weft__mpi_engine {
  int32_t version;
  const char *library; /* what MPI says it is */
  /* Collective over the communicator that `mpi_comm` points to (NULL: all processes); initialises
   * MPI where nobody has. */
  int (*open)(const void *mpi_comm, int64_t timeout_ms, weft__mpi_world *out, char *why,
              size_t room);
  /* Collective over the members, which have all come. */
  int (*open_group)(void *handle, const int64_t *members, int64_t ranks, int tag, void **out,
                    char *why, size_t room);
  void (*close)(void *handle);
  int (*send)(void *handle, int64_t to, int tag, const void *data, size_t bytes,
              weft__mpi_request *request);
  int (*receive)(void *handle, int64_t from, int tag, void *data, size_t bytes,
                 weft__mpi_request *request);
  int (*test)(weft__mpi_request *request); /* clears `busy` when it is done */
  /* A receive is taken back; of a send, nothing is heard any more, though it may still happen. */
  void (*forget)(weft__mpi_request *request, int receive);
  /* Takes a message of `bytes` with this tag from whoever sent one: *from, or −1. */
  int (*take)(void *handle, int tag, void *data, size_t bytes, int64_t *from);
  /* Counts teams that wait for processes which may never come: while there are any, the process
   * ends without MPI_Finalize, which would wait for those too. */
  void (*add_lost)(int count);
} weft__mpi_engine;

/* The plugin's one symbol. */
#define WEFT__MPI_ENGINE_SYMBOL "weft_mpi_engine"

#endif
