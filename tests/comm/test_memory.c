/* Every allocation of a team's life fails once, by number, and then for good: each call ends with a
 * status, peers are told and do not wait for their timeouts, and nothing leaks. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 4, TIMEOUT_MS = 60000 };

typedef struct meter {
  atomic_llong live;   /* blocks in use */
  atomic_llong number; /* allocations so far */
  atomic_llong failed;
  long long first, last; /* numbers of allocations that fail: first <= number < last */
} meter;

static void *metered_alloc(void *user, size_t alignment, size_t bytes) {
  meter *const m = (meter *)user;
  const long long number = atomic_fetch_add(&m->number, 1);
  void *pointer = NULL;
  if (number >= m->first && number < m->last) {
    atomic_fetch_add(&m->failed, 1);
    return NULL;
  }
  if (posix_memalign(&pointer, alignment, bytes) != 0) return NULL;
  atomic_fetch_add(&m->live, 1);
  return pointer;
}

static void metered_free(void *user, void *pointer) {
  meter *const m = (meter *)user;
  free(pointer);
  atomic_fetch_sub(&m->live, 1);
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A world is made without failures; its ranks then make and use sub-teams with them. */
typedef struct trial {
  weft_comm *comms[RANKS];
  weft_status split[RANKS], second[RANKS];
} trial;

static weft_status life(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  trial *const now = (trial *)user;
  weft_comm *const comm = now->comms[rank];
  weft_comm *team = NULL, *pair = NULL;
  int64_t big[400] = {rank}, all[RANKS * 400];
  now->split[rank] = weft_comm_split_stride(comm, 0, 1, RANKS, &team);
  RANK_CHECK((now->split[rank] == WEFT_OK) == (team != NULL));
  if (now->split[rank] == WEFT_ERR_MEMORY)
    RANK_CHECK(strstr(weft_last_error(), "no memory for") != NULL);
  if (now->split[rank] == WEFT_ERR_PEER)
    RANK_CHECK(strstr(weft_last_error(), "failed (memory)") != NULL);
  now->second[rank] = weft_comm_split_stride(comm, rank % 2, 2, 2, &pair);
  RANK_CHECK((now->second[rank] == WEFT_OK) == (pair != NULL));
  /* collectives need no memory */
  weft_comm *const teams[3] = {comm, team, pair};
  for (int i = 0; i < 3; i++) {
    if (teams[i] == NULL) continue;
    RANK_CHECK(weft_comm_barrier(teams[i]) == WEFT_OK);
    RANK_CHECK(weft__comm_allgather(teams[i], big, all, sizeof big) == WEFT_OK);
    RANK_CHECK(weft__comm_agree(teams[i], WEFT_OK, "same", 4, NULL, 0, "memory") == WEFT_OK);
  }
  RANK_CHECK(weft_comm_destroy(pair) == WEFT_OK);
  RANK_CHECK(weft_comm_destroy(team) == WEFT_OK);
  return WEFT_OK;
}

/* All of a team succeed, or at least one lacks memory and the others know. */
static int check_team(const weft_status *statuses, int first, int stride, int ranks) {
  int good = 0, lacking = 0;
  for (int i = 0; i < ranks; i++) {
    const weft_status status = statuses[first + i * stride];
    good += status == WEFT_OK;
    lacking += status == WEFT_ERR_MEMORY;
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY || status == WEFT_ERR_PEER);
  }
  assert_true(good == ranks || (good == 0 && lacking >= 1));
  return lacking;
}

/* Returns how many allocations failed. */
static long long run(long long first, long long last) {
  meter m = {.first = 0, .last = 0};
  trial now = {0};
  ranks_result results[RANKS];
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  config.ranks = RANKS;
  config.hosts = 2;
  config.timeout_ms = TIMEOUT_MS;
  assert_int_equal(weft_allocator_set(metered_alloc, metered_free, &m), WEFT_OK);
  assert_int_equal(weft_comm_create_inproc(&config, now.comms), WEFT_OK);
  atomic_store(&m.number, 0);
  m.first = first;
  m.last = last;
  const int64_t start = now_ms();
  assert_int_equal(ranks_run_bare(RANKS, life, &now, results), WEFT_OK);
  assert_true(now_ms() - start < TIMEOUT_MS / 2);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  const int lacking = check_team(now.split, 0, 1, RANKS) + check_team(now.second, 0, 2, 2) +
                      check_team(now.second, 1, 2, 2);
  if (last == first + 1 && atomic_load(&m.failed) == 1) assert_int_equal(lacking, 1);
  if (atomic_load(&m.failed) > 0) assert_true(lacking > 0);
  /* with memory again, the same world makes the same teams */
  m.last = m.first;
  assert_int_equal(ranks_run_bare(RANKS, life, &now, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
  for (int i = 0; i < RANKS; i++)
    assert_int_equal(now.split[i], WEFT_OK);
  for (int i = 0; i < RANKS; i++)
    assert_int_equal(now.second[i], WEFT_OK);
  for (int i = 0; i < RANKS; i++)
    assert_int_equal(weft_comm_destroy(now.comms[i]), WEFT_OK);
  assert_int_equal(atomic_load(&m.live), 0);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
  return atomic_load(&m.failed);
}

static void test_split_one(void **state) {
  (void)state;
  long long k = 0;
  while (run(k, k + 1) > 0)
    k++;
  assert_true(k >= 2 * RANKS); /* a view at the least for each rank and team */
}

static void test_split_from_then_on(void **state) {
  (void)state;
  long long k = 0;
  while (run(k, k + 1000000) > 0)
    k++;
  assert_true(k >= 2 * RANKS);
}

static void test_world(void **state) {
  (void)state;
  for (int persistent = 0; persistent < 2; persistent++) {
    long long k = 0;
    for (;; k++) {
      meter m = {.first = k, .last = persistent ? k + 1000000 : k + 1};
      weft_comm *comms[RANKS] = {(weft_comm *)&m, (weft_comm *)&m};
      weft_world_config config = WEFT_WORLD_CONFIG_INIT;
      config.ranks = RANKS;
      assert_int_equal(weft_allocator_set(metered_alloc, metered_free, &m), WEFT_OK);
      const weft_status status = weft_comm_create_inproc(&config, comms);
      if (status != WEFT_OK) {
        assert_int_equal(status, WEFT_ERR_MEMORY);
        assert_says(weft_last_error(), "no memory for");
        for (int i = 0; i < RANKS; i++)
          assert_null(comms[i]);
      }
      for (int i = 0; i < RANKS; i++)
        assert_int_equal(weft_comm_destroy(comms[i]), WEFT_OK);
      assert_int_equal(atomic_load(&m.live), 0);
      assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
      if (status == WEFT_OK) break;
    }
    assert_true(k > RANKS);
  }
}

/* A member that fails twice while the others are too late: the first failure stays for them to see,
 * the second is only its own. The next creation succeeds. */
typedef struct twice {
  weft_comm *comms[2];
  meter meter;
  pthread_barrier_t outside;
} twice;

static weft_status fail_twice(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  twice *const now = (twice *)user;
  weft_comm *team = NULL;
  if (rank == 0) {
    now->meter.last = now->meter.first + 1000000;
    for (int i = 0; i < 2; i++)
      RANK_CHECK(weft_comm_split_stride(now->comms[0], 0, 1, 2, &team) == WEFT_ERR_MEMORY);
    RANK_CHECK(strstr(weft_last_error(), "no memory for") != NULL);
    now->meter.last = now->meter.first;
  }
  pthread_barrier_wait(&now->outside);
  if (rank == 1) {
    RANK_CHECK(weft_comm_split_stride(now->comms[1], 0, 1, 2, &team) == WEFT_ERR_PEER);
    RANK_CHECK(strstr(weft_last_error(), "rank 0 of the parent failed (memory)") != NULL);
  }
  RANK_TRY(weft_comm_split_stride(now->comms[rank], 0, 1, 2, &team));
  RANK_TRY(weft_comm_barrier(team));
  return weft_comm_destroy(team);
}

static void test_fail_twice(void **state) {
  (void)state;
  static twice now;
  ranks_result results[2];
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  config.ranks = 2;
  config.timeout_ms = 200;
  assert_int_equal(weft_allocator_set(metered_alloc, metered_free, &now.meter), WEFT_OK);
  assert_int_equal(weft_comm_create_inproc(&config, now.comms), WEFT_OK);
  pthread_barrier_init(&now.outside, NULL, 2);
  assert_int_equal(ranks_run_bare(2, fail_twice, &now, results), WEFT_OK);
  pthread_barrier_destroy(&now.outside);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
  for (int i = 0; i < 2; i++)
    assert_int_equal(weft_comm_destroy(now.comms[i]), WEFT_OK);
  assert_int_equal(atomic_load(&now.meter.live), 0);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split_one),
      cmocka_unit_test(test_split_from_then_on),
      cmocka_unit_test(test_world),
      cmocka_unit_test(test_fail_twice),
  };
  return cmocka_run_group_tests_name("comm/memory", tests, NULL, NULL);
}
