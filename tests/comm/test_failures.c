/* What goes wrong in a team while it runs: late ranks, aborts, ranks that leave, sub-teams that do
 * not come about. Each ends in bounded time with a status that says who, and a reset mends what can
 * be mended. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 4, SHORT_MS = 150, LATE_MS = 500, LONG_MS = 60000 };

/* Ranks line up outside the library, so that a test's own order holds. */
static pthread_barrier_t outside;

static void line_up(void) {
  pthread_barrier_wait(&outside);
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void run(int64_t ranks, int64_t timeout_ms, ranks_fn fn, void *user, ranks_result *results) {
  pthread_barrier_init(&outside, NULL, (unsigned)ranks);
  assert_int_equal(ranks_run_simple(ranks, 1, timeout_ms, fn, user, results), WEFT_OK);
  pthread_barrier_destroy(&outside);
}

/* Rank 2 is late: the others say so, the state sticks for all, and a reset brings the team back. */
static weft_status late(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  for (int round = 0; round < 2; round++) {
    RANK_TRY(weft_comm_barrier(comm));
    line_up();
    if (rank == 2) ranks_sleep_ms(LATE_MS);
    const int64_t start = now_ms();
    int64_t value = rank, all[RANKS];
    weft_status status = round == 0 ? weft_comm_barrier(comm)
                                    : weft__comm_allgather(comm, &value, all, sizeof value);
    const int64_t waited = now_ms() - start;
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "rank 2 of 4 did not come within 150 ms") != NULL);
    RANK_CHECK(round == 1 || strstr(weft_last_error(), "comm_barrier") != NULL);
    RANK_CHECK(rank == 2 || waited >= SHORT_MS - 20);
    RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
    RANK_CHECK(error.status == WEFT_ERR_TIMEOUT && error.peer == 2 && error.rank != 2);
    RANK_CHECK(strstr(error.message, "rank 2") != NULL);
    /* sticky: every collective answers at once */
    RANK_CHECK(weft_comm_barrier(comm) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "weft_comm_reset") != NULL);
    RANK_CHECK(weft__comm_allgather(comm, &value, all, sizeof value) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(weft__comm_agree(comm, WEFT_OK, &value, 8, NULL, 0, "x") == WEFT_ERR_TIMEOUT);
    weft_comm *team = NULL;
    RANK_CHECK(weft_comm_split_stride(comm, 0, 1, RANKS, &team) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(team == NULL);
    line_up();
    RANK_TRY(weft_comm_reset(comm));
    RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK && error.status == WEFT_OK);
    RANK_TRY(weft__comm_allgather(comm, &value, all, sizeof value));
    for (int64_t i = 0; i < RANKS; i++)
      RANK_CHECK(all[i] == i);
  }
  return weft_comm_barrier(comm);
}

static void test_late(void **state) {
  (void)state;
  ranks_result results[RANKS];
  run(RANKS, SHORT_MS, late, NULL, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* Many are late: the message stays short and counts the rest. */
static weft_status many_late(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_status status = WEFT_OK;
  if (rank == 5) status = weft_comm_barrier(comm);
  if (rank == 5) RANK_CHECK(strstr(weft_last_error(), "ranks 0, 1, 2, 3, 4, 6, 7, 8 and 3 more"));
  line_up();
  return rank == 5 ? status : WEFT_ERR_TIMEOUT;
}

static void test_many_late(void **state) {
  (void)state;
  ranks_result results[12];
  run(12, SHORT_MS, many_late, NULL, results);
  assert_int_equal(ranks_first_not(results, 12, WEFT_ERR_TIMEOUT), -1);
}

/* A reset that not all ranks come to times out, names the rank, and leaves the team as it was. */
static weft_status reset_alone(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  if (rank == 1) RANK_TRY(weft_comm_abort(comm));
  line_up();
  if (rank != 3) {
    RANK_CHECK(weft_comm_reset(comm) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "comm_reset: rank") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "3 of 4 did not come within 150 ms") != NULL);
  }
  line_up();
  RANK_CHECK(weft_comm_barrier(comm) == WEFT_ERR_ABORTED);
  line_up();
  RANK_TRY(weft_comm_reset(comm));
  return weft_comm_barrier(comm);
}

static void test_reset_alone(void **state) {
  (void)state;
  ranks_result results[RANKS];
  run(RANKS, SHORT_MS, reset_alone, NULL, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* An abort ends a barrier, a split and a reset that wait. Rank 0 aborts from where it never waits.
 */
static weft_status aborted(int64_t rank, weft_comm *comm, void *user) {
  const int where = *(const int *)user;
  weft_comm *team = NULL;
  weft_status status = WEFT_OK;
  const int64_t start = now_ms();
  if (rank == 0) {
    ranks_sleep_ms(60);
    RANK_TRY(weft_comm_abort(comm));
    status = weft_comm_barrier(comm);
  } else if (where == 0)
    status = weft_comm_barrier(comm);
  else if (where == 1)
    status = weft_comm_split_stride(comm, 0, 1, RANKS, &team);
  else
    status = weft_comm_reset(comm);
  RANK_CHECK(status == WEFT_ERR_ABORTED);
  RANK_CHECK(now_ms() - start < LONG_MS / 2);
  RANK_CHECK(strstr(weft_last_error(), "abort") != NULL);
  line_up();
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
  RANK_CHECK(error.status == WEFT_ERR_ABORTED && error.rank == 0 && error.peer == -1);
  line_up();
  RANK_TRY(weft_comm_reset(comm));
  RANK_TRY(weft_comm_split_stride(comm, 0, 1, RANKS, &team));
  RANK_TRY(weft_comm_barrier(team));
  return weft_comm_destroy(team);
}

static void test_abort(void **state) {
  (void)state;
  for (int where = 0; where < 3; where++) {
    ranks_result results[RANKS];
    run(RANKS, LONG_MS, aborted, &where, results);
    assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  }
}

/* Aborts from a thread of nobody's end each round of large all-gathers: a sender's buffer is freed
 * as soon as its call returns, so a peer that still read from it would be caught by the sanitizers.
 */
typedef struct storm {
  weft_comm *comms[RANKS];
  atomic_int running;
} storm;

static weft_status in_the_storm(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  storm *const weather = (storm *)user;
  weft_comm *const comm = weather->comms[rank];
  enum { BYTES = 70000 };
  weft_status result = WEFT_OK;
  int completed = 0;
  for (int round = 0; round < 40 && result == WEFT_OK; round++) {
    for (weft_status status = WEFT_OK; status == WEFT_OK;) {
      unsigned char *send = malloc(BYTES), *recv = malloc(BYTES * RANKS);
      status = WEFT_ERR_MEMORY;
      if (send != NULL && recv != NULL) {
        memset(send, (int)(rank + round), BYTES);
        status = weft__comm_allgather(comm, send, recv, BYTES);
        memset(send, 0xee, BYTES);
      }
      free(send);
      if (status == WEFT_OK) {
        for (int r = 0; r < RANKS; r++)
          if (recv[(size_t)r * BYTES + BYTES - 1] != (unsigned char)(r + round))
            result = RANK_WRONG;
        completed++;
      } else if (status != WEFT_ERR_ABORTED)
        result = status;
      free(recv);
    }
    line_up();
    /* an abort may come into the reset: then all try again */
    weft_status mended;
    do {
      mended = weft_comm_reset(comm);
    } while (mended == WEFT_ERR_ABORTED);
    if (mended != WEFT_OK) result = mended;
    line_up();
  }
  atomic_fetch_sub(&weather->running, 1);
  if (completed == 0) result = RANK_WRONG;
  return result;
}

static void *abort_now_and_then(void *argument) {
  storm *const weather = (storm *)argument;
  for (int i = 0; atomic_load(&weather->running) == RANKS; i++) {
    ranks_sleep_ms(1 + i % 7);
    weft_comm_abort(weather->comms[i % RANKS]);
  }
  return NULL;
}

static void test_abort_storm(void **state) {
  (void)state;
  storm weather;
  ranks_result results[RANKS];
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  pthread_t thread;
  config.ranks = RANKS;
  config.timeout_ms = LONG_MS;
  assert_int_equal(weft_comm_create_inproc(&config, weather.comms), WEFT_OK);
  atomic_init(&weather.running, RANKS);
  pthread_barrier_init(&outside, NULL, RANKS);
  assert_int_equal(pthread_create(&thread, NULL, abort_now_and_then, &weather), 0);
  assert_int_equal(ranks_run_bare(RANKS, in_the_storm, &weather, results), WEFT_OK);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&outside);
  for (int i = 0; i < RANKS; i++)
    assert_int_equal(weft_comm_destroy(weather.comms[i]), WEFT_OK);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* An abort of one team is nothing to another. */
static weft_status abort_one_team(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_comm *team = NULL;
  RANK_TRY(weft_comm_split_stride(comm, rank % 2, 2, 2, &team));
  if (rank == 1) RANK_TRY(weft_comm_abort(team));
  line_up();
  const weft_status status = weft_comm_barrier(team);
  RANK_CHECK(status == (rank % 2 ? WEFT_ERR_ABORTED : WEFT_OK));
  RANK_TRY(weft_comm_barrier(comm));
  return weft_comm_destroy(team);
}

static void test_abort_one_team(void **state) {
  (void)state;
  ranks_result results[RANKS];
  run(RANKS, LONG_MS, abort_one_team, NULL, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* Rank 3 leaves a team that the others wait in: in a barrier, a split or a reset. */
static weft_status leave(int64_t rank, weft_comm *comm, void *user) {
  const int where = *(const int *)user;
  weft_comm *team = NULL, *inner = NULL;
  const int64_t start = now_ms();
  RANK_TRY(weft_comm_split_stride(comm, 0, 1, RANKS, &team));
  if (rank == 3) {
    ranks_sleep_ms(where == 3 ? 0 : 60);
    return weft_comm_destroy(team);
  }
  if (where == 3) ranks_sleep_ms(60); /* it has left before they come */
  weft_status status;
  if (where == 1)
    status = weft_comm_split_stride(team, 0, 1, RANKS, &inner);
  else if (where == 2)
    status = weft_comm_reset(team);
  else
    status = weft_comm_barrier(team);
  RANK_CHECK(status == WEFT_ERR_PEER);
  RANK_CHECK(inner == NULL);
  RANK_CHECK(strstr(weft_last_error(), "destroyed") != NULL);
  if (where != 2) RANK_CHECK(strstr(weft_last_error(), "rank 3") != NULL);
  RANK_CHECK(now_ms() - start < LONG_MS / 2);
  if (where == 0) RANK_CHECK(weft_comm_reset(team) == WEFT_ERR_PEER);
  return weft_comm_destroy(team);
}

static void test_leave(void **state) {
  (void)state;
  for (int where = 0; where < 4; where++) {
    ranks_result results[RANKS];
    run(RANKS, LONG_MS, leave, &where, results);
    assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  }
}

/* Each rank leaves as soon as its last barrier returns: that must disturb nobody's barrier. */
static weft_status leave_at_once(int64_t rank, weft_comm *comm, void *user) {
  (void)rank;
  (void)user;
  for (int i = 0; i < 200; i++) {
    weft_comm *team = NULL;
    RANK_TRY(weft_comm_split_stride(comm, 0, 1, RANKS, &team));
    unsigned char send[2000] = {0}, recv[RANKS * 2000];
    RANK_TRY(i % 2 ? weft_comm_barrier(team) : weft__comm_allgather(team, send, recv, sizeof send));
    RANK_TRY(weft_comm_destroy(team));
  }
  return WEFT_OK;
}

static void test_leave_at_once(void **state) {
  (void)state;
  ranks_result results[RANKS];
  run(RANKS, LONG_MS, leave_at_once, NULL, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* A split that one member is late for fails on all of them, the late one included; the parent goes
 * on, and the next creation of the list meets the next. */
static weft_status late_for_split(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_comm *team = NULL, *pair = NULL;
  const int64_t members[3] = {3, 0, 1};
  if (rank != 2) {
    if (rank == 1) ranks_sleep_ms(LATE_MS);
    RANK_CHECK(weft_comm_split_list(comm, members, 3, &team) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(team == NULL);
    RANK_CHECK(strstr(weft_last_error(), "rank 1 of the parent did not come within 150 ms"));
  }
  line_up();
  if (rank != 2) {
    RANK_TRY(weft_comm_split_list(comm, members, 3, &team));
    RANK_TRY(weft_comm_barrier(team));
    RANK_TRY(weft_comm_destroy(team));
  }
  RANK_TRY(weft_comm_barrier(comm));
  /* one that nobody else comes to leaves nothing behind once the parent is reset */
  if (rank == 0) {
    const int64_t two[2] = {0, 1};
    RANK_CHECK(weft_comm_split_list(comm, two, 2, &pair) == WEFT_ERR_TIMEOUT);
  }
  line_up();
  RANK_TRY(weft_comm_reset(comm));
  if (rank < 2) {
    RANK_TRY(weft_comm_split_stride(comm, 0, 1, 2, &pair));
    RANK_TRY(weft_comm_barrier(pair));
    RANK_TRY(weft_comm_destroy(pair));
  }
  /* and one that is never cleared goes with the parent */
  if (rank == 3) {
    const int64_t two[2] = {2, 3};
    RANK_CHECK(weft_comm_split_list(comm, two, 2, &pair) == WEFT_ERR_TIMEOUT);
  }
  return WEFT_OK;
}

static void test_late_for_split(void **state) {
  (void)state;
  ranks_result results[RANKS];
  run(RANKS, SHORT_MS, late_for_split, NULL, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* A member that has no place for the handle refuses, and the others are told. */
static weft_status refuses_split(int64_t rank, weft_comm *comm, void *user) {
  const int64_t odd = *(const int64_t *)user;
  weft_comm *team = NULL;
  const int64_t start = now_ms();
  if (rank == odd) ranks_sleep_ms(20);
  const weft_status status = weft_comm_split_stride(comm, 0, 1, RANKS, rank == odd ? NULL : &team);
  RANK_CHECK(status == (rank == odd ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER));
  char text[64];
  snprintf(text, sizeof text, "rank %lld of the parent failed (argument)", (long long)odd);
  RANK_CHECK(strstr(weft_last_error(), rank == odd ? "team is NULL" : text) != NULL);
  RANK_CHECK(team == NULL && now_ms() - start < LONG_MS / 2);
  RANK_TRY(weft_comm_barrier(comm));
  RANK_TRY(weft_comm_split_stride(comm, 0, 1, RANKS, &team));
  RANK_TRY(weft_comm_barrier(team));
  return weft_comm_destroy(team);
}

static void test_refuses_split(void **state) {
  (void)state;
  for (int64_t odd = 0; odd < RANKS; odd += 3) {
    ranks_result results[RANKS];
    run(RANKS, LONG_MS, refuses_split, &odd, results);
    assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  }
}

/* WEFT_TIMEOUT_MS counts where the config says 0; the config wins where it says more. */
static void test_environment(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_comm *comm = NULL;
  const struct {
    const char *value;
    int64_t config, expected;
  } cases[] = {{"1234", 0, 1234}, {"1234", 77, 77}, {NULL, 0, 600000}, {"soon", 0, 600000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (cases[i].value != NULL)
      setenv("WEFT_TIMEOUT_MS", cases[i].value, 1);
    else
      unsetenv("WEFT_TIMEOUT_MS");
    config.timeout_ms = cases[i].config;
    assert_int_equal(weft_comm_create_inproc(&config, &comm), WEFT_OK);
    assert_int_equal(weft_comm_info_get(comm, &info), WEFT_OK);
    assert_int_equal(info.timeout_ms, cases[i].expected);
    assert_int_equal(weft_comm_destroy(comm), WEFT_OK);
  }
  unsetenv("WEFT_TIMEOUT_MS");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_late),           cmocka_unit_test(test_many_late),
      cmocka_unit_test(test_reset_alone),    cmocka_unit_test(test_abort),
      cmocka_unit_test(test_abort_storm),    cmocka_unit_test(test_abort_one_team),
      cmocka_unit_test(test_leave),          cmocka_unit_test(test_leave_at_once),
      cmocka_unit_test(test_late_for_split), cmocka_unit_test(test_refuses_split),
      cmocka_unit_test(test_environment),
  };
  return cmocka_run_group_tests_name("comm/failures", tests, NULL, NULL);
}
