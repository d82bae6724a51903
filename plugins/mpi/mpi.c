/* The MPI plugin: weft__mpi_engine by Open MPI, or whichever MPI this file was compiled with. Every
 * call of MPI happens under one lock and is short, so MPI_THREAD_SERIALIZED is enough. Knows no
 * team and nothing else of weft. */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/mpi_engine.h"

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits its room");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int lost;

static int failed(int code, const char *what, char *why, size_t room) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code == MPI_SUCCESS) return 0;
  MPI_Error_string(code, text, &length);
  if (room > 0) snprintf(why, room, "%s: %s", what, text);
  return code;
}

/* ---- Start and end ---- */

static void end(void) {
  int finalized = 0;
  if (atomic_load(&lost) > 0) return;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Finalize();
}

static int start(char *why, size_t room) {
  int initialized = 0, finalized = 0, level = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) {
    snprintf(why, room, "MPI was finalized before");
    return 1;
  }
  if (initialized) return 0;
  const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  if (code == MPI_SUCCESS) atexit(end);
  return failed(code, "MPI_Init_thread", why, room);
}

static void pause_for(long nanoseconds) {
  const struct timespec rest = {0, nanoseconds};
  nanosleep(&rest, NULL);
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for a request with a time limit. */
static int await(MPI_Request *request, int64_t timeout_ms, const char *what, char *why,
                 size_t room) {
  const int64_t began = now_ms();
  for (int done = 0; !done;) {
    const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return failed(code, what, why, room);
    if (done) break;
    if (now_ms() - began > timeout_ms) {
      snprintf(why, room, "%s: not all processes came within %lld ms", what, (long long)timeout_ms);
      atomic_fetch_add(&lost, 1);
      return 1;
    }
    pause_for(200000);
  }
  return 0;
}

/* ---- Communicators ---- */

static int fill(MPI_Comm comm, weft__mpi_world *out, char *why, size_t room) {
  int rank = 0, ranks = 0, local = 0;
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int code = MPI_Comm_rank(comm, &rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(comm, &ranks);
  if (code == MPI_SUCCESS)
    code = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(host, &local);
  if (host != MPI_COMM_NULL) MPI_Comm_free(&host);
  if (code != MPI_SUCCESS) return failed(code, "the communicator", why, room);
  out->rank = rank;
  out->ranks = ranks;
  out->local_ranks = local;
  return 0;
}

static int keep(MPI_Comm comm, void **out) {
  MPI_Comm *handle = malloc(sizeof *handle);
  if (handle == NULL) return 1;
  *handle = comm;
  *out = handle;
  return 0;
}

static int open_world(const void *mpi_comm, int64_t timeout_ms, weft__mpi_world *out, char *why,
                      size_t room) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  pthread_mutex_lock(&lock);
  int code = start(why, room);
  if (code == 0) {
    const MPI_Comm given = mpi_comm != NULL ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD;
    code = failed(MPI_Comm_idup(given, &copy, &request), "MPI_Comm_idup", why, room);
  }
  if (code == 0) code = await(&request, timeout_ms, "MPI_Comm_idup", why, room);
  if (code == 0) code = fill(copy, out, why, room);
  if (code == 0 && (code = keep(copy, &out->handle)) != 0) snprintf(why, room, "no memory");
  pthread_mutex_unlock(&lock);
  return code;
}

static int open_group(void *handle, const int64_t *members, int64_t ranks, int tag, void **out,
                      char *why, size_t room) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  int *list = malloc((size_t)ranks * sizeof *list);
  if (list == NULL) {
    snprintf(why, room, "no memory for %lld members", (long long)ranks);
    return 1;
  }
  for (int64_t i = 0; i < ranks; i++)
    list[i] = (int)members[i];
  pthread_mutex_lock(&lock);
  int code = MPI_Comm_group(*(MPI_Comm *)handle, &all);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(all, (int)ranks, list, &some);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(*(MPI_Comm *)handle, some, tag, &comm);
  code = failed(code, "MPI_Comm_create_group", why, room);
  if (code == 0) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  if (code == 0 && (code = keep(comm, out)) != 0) snprintf(why, room, "no memory");
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  pthread_mutex_unlock(&lock);
  free(list);
  return code;
}

static void close_comm(void *handle) {
  int finalized = 0;
  pthread_mutex_lock(&lock);
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free((MPI_Comm *)handle);
  pthread_mutex_unlock(&lock);
  free(handle);
}

/* ---- Messages ---- */

static void begin(weft__mpi_request *request, MPI_Request mpi) {
  memcpy(&request->word, &mpi, sizeof mpi);
  request->busy = 1;
}

static MPI_Request of(const weft__mpi_request *request) {
  MPI_Request mpi;
  memcpy(&mpi, &request->word, sizeof mpi);
  return mpi;
}

static int send(void *handle, int64_t to, int tag, const void *data, size_t bytes,
                weft__mpi_request *request) {
  MPI_Request mpi = MPI_REQUEST_NULL;
  pthread_mutex_lock(&lock);
  const int code = MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, tag, *(MPI_Comm *)handle, &mpi);
  pthread_mutex_unlock(&lock);
  if (code == MPI_SUCCESS) begin(request, mpi);
  return code;
}

static int receive(void *handle, int64_t from, int tag, void *data, size_t bytes,
                   weft__mpi_request *request) {
  MPI_Request mpi = MPI_REQUEST_NULL;
  pthread_mutex_lock(&lock);
  const int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)from, tag, *(MPI_Comm *)handle, &mpi);
  pthread_mutex_unlock(&lock);
  if (code == MPI_SUCCESS) begin(request, mpi);
  return code;
}

static int test(weft__mpi_request *request) {
  int done = 0;
  if (!request->busy) return 0;
  MPI_Request mpi = of(request);
  pthread_mutex_lock(&lock);
  const int code = MPI_Test(&mpi, &done, MPI_STATUS_IGNORE);
  pthread_mutex_unlock(&lock);
  memcpy(&request->word, &mpi, sizeof mpi);
  if (done || code != MPI_SUCCESS) request->busy = 0;
  return code;
}

static void forget(weft__mpi_request *request, int is_receive) {
  if (!request->busy) return;
  MPI_Request mpi = of(request);
  pthread_mutex_lock(&lock);
  if (is_receive) {
    MPI_Cancel(&mpi);
    MPI_Wait(&mpi, MPI_STATUS_IGNORE);
  } else {
    MPI_Request_free(&mpi);
  }
  pthread_mutex_unlock(&lock);
  request->busy = 0;
}

static int take(void *handle, int tag, void *data, size_t bytes, int64_t *from) {
  MPI_Status status;
  int there = 0;
  *from = -1;
  pthread_mutex_lock(&lock);
  int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, *(MPI_Comm *)handle, &there, &status);
  if (code == MPI_SUCCESS && there) {
    *from = status.MPI_SOURCE;
    code = MPI_Recv(data, (int)bytes, MPI_BYTE, status.MPI_SOURCE, tag, *(MPI_Comm *)handle,
                    MPI_STATUS_IGNORE);
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static void add_lost(int count) {
  atomic_fetch_add(&lost, count);
}

/* ---- The one symbol ---- */

const weft__mpi_engine *weft_mpi_engine(void);

__attribute__((visibility("default"))) const weft__mpi_engine *weft_mpi_engine(void) {
  static char library[MPI_MAX_LIBRARY_VERSION_STRING];
  static weft__mpi_engine engine = {
      .version = WEFT__MPI_ENGINE_VERSION,
      .library = library,
      .open = open_world,
      .open_group = open_group,
      .close = close_comm,
      .send = send,
      .receive = receive,
      .test = test,
      .forget = forget,
      .take = take,
      .add_lost = add_lost,
  };
  int length = 0;
  MPI_Get_library_version(library, &length);
  for (char *c = library; *c != '\0'; c++) /* its first sentence: "Open MPI v4.1.4" */
    if (*c == ',' || *c == '\n') *c = '\0';
  return &engine;
}
