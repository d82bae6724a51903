/* Teams at work: all-gathers of every size class, sub-teams made at different times and in several
 * at once, and sixteen ranks that stagger at random. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "check.h"
#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 16 };

static uint64_t next_random(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return *state >> 33;
}

/* Byte i of what a rank sends in a round. */
static unsigned char pattern(int64_t rank, int64_t round, size_t i) {
  return (unsigned char)(rank * 37 + round * 11 + (int64_t)(i * 7) + (int64_t)(i >> 8));
}

/* One all-gather with its own buffers, freed at once: a peer that read late would be caught. */
static weft_status gather(int64_t rank, weft_comm *comm, int64_t who, int64_t round,
                          const int64_t *members, int64_t ranks, size_t bytes) {
  unsigned char *send = malloc(bytes + 1), *recv = malloc(bytes * (size_t)ranks + 1);
  RANK_CHECK(send != NULL && recv != NULL);
  for (size_t i = 0; i < bytes; i++)
    send[i] = pattern(who, round, i);
  recv[bytes * (size_t)ranks] = 0x5a;
  weft_status status = weft__comm_allgather(comm, send, recv, bytes);
  memset(send, 0xee, bytes);
  free(send);
  if (status == WEFT_OK) {
    for (int64_t r = 0; r < ranks; r++)
      for (size_t i = 0; i < bytes; i++)
        if (recv[(size_t)r * bytes + i] != pattern(members[r], round, i)) status = RANK_WRONG;
    if (recv[bytes * (size_t)ranks] != 0x5a) status = RANK_WRONG;
  }
  free(recv);
  return status;
}

static const int64_t identity[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static weft_status all_sizes(int64_t rank, weft_comm *comm, void *user) {
  const int64_t ranks = *(const int64_t *)user;
  static const size_t sizes[] = {0, 1, 8, 255, 1023, 1024, 1025, 4096, 100003};
  for (int64_t round = 0; round < 40; round++) {
    RANK_TRY(gather(rank, comm, rank, round, identity, ranks, sizes[round % 9]));
    if (round % 5 == 0) RANK_TRY(weft_comm_barrier(comm));
  }
  return WEFT_OK;
}

static void test_allgather(void **state) {
  (void)state;
  static const int64_t counts[] = {1, 2, 3, 4, 8, 16};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    ranks_result results[RANKS];
    int64_t ranks = counts[i];
    assert_int_equal(ranks_run_simple(ranks, 1, 20000, all_sizes, &ranks, results), WEFT_OK);
    assert_int_equal(ranks_first_not(results, ranks, WEFT_OK), -1);
  }
}

/* The own block may already stand in its place. */
static weft_status in_place(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  static const size_t sizes[] = {16, 3000};
  for (int s = 0; s < 2; s++) {
    unsigned char all[4 * 3000];
    memset(all, 0xff, sizeof all);
    memset(all + (size_t)rank * sizes[s], (int)rank, sizes[s]);
    RANK_TRY(weft__comm_allgather(comm, all + (size_t)rank * sizes[s], all, sizes[s]));
    for (size_t i = 0; i < 4 * sizes[s]; i++)
      RANK_CHECK(all[i] == i / sizes[s]);
  }
  return WEFT_OK;
}

static void test_in_place(void **state) {
  (void)state;
  ranks_result results[4];
  assert_int_equal(ranks_run_simple(4, 1, 20000, in_place, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 4, WEFT_OK), -1);
}

/* A pointer that travels may be followed between two meetings. */
static weft_status follow(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  RANK_CHECK(comm->transport->loads_peers);
  for (int64_t round = 0; round < 50; round++) {
    int64_t value = rank * 1000 + round;
    const int64_t *mine = &value, *all[8];
    RANK_TRY(weft__comm_allgather(comm, &mine, all, sizeof mine));
    for (int64_t r = 0; r < 8; r++)
      RANK_CHECK(*all[r] == r * 1000 + round);
    RANK_TRY(weft_comm_barrier(comm));
  }
  return WEFT_OK;
}

static void test_peer_loads(void **state) {
  (void)state;
  ranks_result results[8];
  assert_int_equal(ranks_run_simple(8, 2, 20000, follow, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 8, WEFT_OK), -1);
}

/* Two teams at once in a world of eight: the upper half makes its own late, in reverse order, while
 * the lower half is already at work; then each takes part in a second, crosswise team. */
static weft_status at_different_times(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  static const int64_t lower[4] = {0, 1, 2, 3}, upper[4] = {7, 6, 5, 4};
  const int64_t *const members = rank < 4 ? lower : upper;
  weft_comm *half = NULL, *cross = NULL;
  if (rank >= 4) ranks_sleep_ms(30 + rank * 5);
  RANK_TRY(weft_comm_split_list(comm, members, 4, &half));
  for (int64_t round = 0; round < 60; round++)
    RANK_TRY(gather(rank, half, rank, round, members, 4, round % 2 ? 24 : 2000));
  RANK_TRY(weft_comm_split_stride(comm, rank % 4, 4, 2, &cross));
  const int64_t pair[2] = {rank % 4, rank % 4 + 4};
  for (int64_t round = 0; round < 60; round++) {
    RANK_TRY(gather(rank, cross, rank, round, pair, 2, 40));
    RANK_TRY(gather(rank, half, rank, round, members, 4, 40));
  }
  RANK_CHECK(weft_comm_destroy(half) == WEFT_OK);
  /* the teams stand on their own */
  RANK_TRY(weft_comm_barrier(cross));
  RANK_CHECK(weft_comm_destroy(cross) == WEFT_OK);
  return weft_comm_barrier(comm);
}

static void test_different_times(void **state) {
  (void)state;
  ranks_result results[8];
  assert_int_equal(ranks_run_simple(8, 2, 20000, at_different_times, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 8, WEFT_OK), -1);
}

/* The k-th creation of a list meets the k-th, however the ranks are staggered: each rank numbers
 * its creations, and all members of a team must hold the same number. The same members in another
 * order are another list. */
static weft_status repeated(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  static const int64_t forward[3] = {0, 1, 2}, backward[3] = {2, 1, 0};
  uint64_t random = 77 + (uint64_t)rank;
  for (int64_t k = 0; k < 30; k++) {
    const int64_t *const members = k % 3 == 2 ? backward : forward;
    weft_comm *team = NULL;
    if (next_random(&random) % 3 == 0) ranks_sleep_ms(1 + (int64_t)(next_random(&random) % 3));
    RANK_TRY(weft_comm_split_list(comm, members, 3, &team));
    int64_t all[3] = {-1, -1, -1};
    RANK_TRY(weft__comm_allgather(team, &k, all, sizeof k));
    for (int64_t i = 0; i < 3; i++)
      RANK_CHECK(all[i] == k);
    weft_comm_info info = WEFT_COMM_INFO_INIT;
    RANK_TRY(weft_comm_info_get(team, &info));
    RANK_CHECK(members[info.rank] == rank);
    RANK_CHECK(weft_comm_destroy(team) == WEFT_OK);
  }
  return WEFT_OK;
}

static void test_repeated(void **state) {
  (void)state;
  ranks_result results[3];
  assert_int_equal(ranks_run_simple(3, 1, 20000, repeated, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 3, WEFT_OK), -1);
}

/* A team of a team: ranks count in the team they are taken from. */
static weft_status nested(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_comm *odd_even = NULL, *pair = NULL;
  RANK_TRY(weft_comm_split_stride(comm, rank % 2, 2, 4, &odd_even));
  const int64_t inner = rank / 2;
  const int64_t members[2] = {inner % 2 + 2, inner % 2};
  RANK_TRY(weft_comm_split_list(odd_even, members, 2, &pair));
  RANK_CHECK(weft_comm_destroy(odd_even) == WEFT_OK);
  int64_t all[2];
  RANK_TRY(weft__comm_allgather(pair, &rank, all, sizeof rank));
  RANK_CHECK(all[0] == members[0] * 2 + rank % 2 && all[1] == members[1] * 2 + rank % 2);
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  RANK_TRY(weft_comm_info_get(pair, &info));
  RANK_CHECK(info.world_rank == rank && info.world_ranks == 8 && info.ranks == 2);
  RANK_CHECK(info.timeout_ms == 20000 && strcmp(info.transport, "inproc") == 0);
  RANK_CHECK(info.hosts == 2 && info.host == info.rank); /* 8 ranks on 2 hosts, 4 apart */
  return weft_comm_destroy(pair);
}

static void test_nested(void **state) {
  (void)state;
  ranks_result results[8];
  assert_int_equal(ranks_run_simple(8, 2, 20000, nested, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 8, WEFT_OK), -1);
}

/* What a round does is drawn from a seed that all ranks share; when a rank does it, from its own.
 */
static weft_status staggered(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  uint64_t shared = 2024, own = 99 + (uint64_t)rank * 1000;
  for (int64_t round = 0; round < 150; round++) {
    const uint64_t what = next_random(&shared) % 4;
    const size_t bytes = (size_t)(next_random(&shared) % 3000);
    const int64_t stride = INT64_C(1) << (next_random(&shared) % 4);
    if (next_random(&own) % 8 == 0) ranks_sleep_ms((int64_t)(next_random(&own) % 3));
    if (what == 0) {
      RANK_TRY(weft_comm_barrier(comm));
    } else if (what == 1) {
      RANK_TRY(gather(rank, comm, rank, round, identity, RANKS, bytes));
    } else if (what == 2) {
      weft_comm *team = NULL;
      int64_t members[RANKS];
      for (int64_t i = 0; i < RANKS / stride; i++)
        members[i] = rank % stride + i * stride;
      RANK_TRY(weft_comm_split_stride(comm, rank % stride, stride, RANKS / stride, &team));
      RANK_TRY(gather(rank, team, rank, round, members, RANKS / stride, bytes));
      RANK_CHECK(weft_comm_destroy(team) == WEFT_OK);
    } else {
      RANK_TRY(weft__comm_agree(comm, WEFT_OK, &round, sizeof round, NULL, 0, "stagger"));
    }
  }
  return WEFT_OK;
}

static void test_stagger(void **state) {
  (void)state;
  ranks_result results[RANKS];
  assert_int_equal(ranks_run_simple(RANKS, 4, 60000, staggered, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_allgather),  cmocka_unit_test(test_in_place),
      cmocka_unit_test(test_peer_loads), cmocka_unit_test(test_different_times),
      cmocka_unit_test(test_repeated),   cmocka_unit_test(test_nested),
      cmocka_unit_test(test_stagger),
  };
  return cmocka_run_group_tests_name("comm/teams", tests, NULL, NULL);
}
