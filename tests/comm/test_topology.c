/* The topology contract, for every strided subgroup and many lists of worlds up to 16 ranks,
 * against a plain enumeration: hosts are met one after the other in team order, each gets the next
 * number, and the ranks of a host are counted as they come. */
#include "check.h"
#include "comm/topology.h"
#include "ranks.h"

enum { MOST = 16 };

/* The oracle tabulates the world's hosts first and never divides. */
typedef struct expected {
  int64_t host_of[MOST], local_rank_of[MOST];
  int64_t hosts, count_of[MOST];
  int64_t ranks_per_host;
} expected;

static expected enumerate(const int64_t *members, int64_t ranks, int64_t world, int64_t hosts) {
  expected answer = {0};
  int64_t world_host[MOST] = {0}, number_of[MOST];
  int64_t next = 0;
  for (int64_t h = 0; h < hosts; h++)
    for (int64_t i = 0; i * hosts < world; i++)
      world_host[next++] = h;
  assert_int_equal(next, world);
  for (int64_t h = 0; h < hosts; h++)
    number_of[h] = -1;
  for (int64_t i = 0; i < ranks; i++) {
    int64_t *const number = &number_of[world_host[members[i]]];
    if (*number < 0) *number = answer.hosts++;
    answer.host_of[i] = *number;
    answer.local_rank_of[i] = answer.count_of[*number]++;
  }
  int64_t least = MOST + 1, most = 0;
  for (int64_t h = 0; h < answer.hosts; h++) {
    if (answer.count_of[h] < least) least = answer.count_of[h];
    if (answer.count_of[h] > most) most = answer.count_of[h];
  }
  answer.ranks_per_host = least == most ? most : 0;
  return answer;
}

static void check(const int64_t *members, int64_t ranks, int64_t world, int64_t hosts) {
  const expected want = enumerate(members, ranks, world, hosts);
  for (int64_t rank = 0; rank < ranks; rank++) {
    int64_t hosts_of[MOST + 1];
    hosts_of[ranks] = -7;
    const weft__place got = weft__topology(members, ranks, world, hosts, rank, hosts_of);
    assert_int_equal(hosts_of[ranks], -7);
    assert_memory_equal(hosts_of, want.host_of, (size_t)ranks * sizeof *hosts_of);
    assert_int_equal(got.host, want.host_of[rank]);
    assert_int_equal(got.hosts, want.hosts);
    assert_int_equal(got.local_rank, want.local_rank_of[rank]);
    assert_int_equal(got.local_ranks, want.count_of[want.host_of[rank]]);
    assert_int_equal(got.ranks_per_host, want.ranks_per_host);
  }
}

static void test_strided(void **state) {
  (void)state;
  int64_t checked = 0;
  for (int64_t world = 1; world <= MOST; world++)
    for (int64_t hosts = 1; hosts <= world; hosts++) {
      if (world % hosts != 0) continue;
      for (int64_t start = 0; start < world; start++)
        for (int64_t stride = 1; stride <= world; stride++)
          for (int64_t ranks = 1; start + (ranks - 1) * stride < world; ranks++) {
            int64_t members[MOST];
            for (int64_t i = 0; i < ranks; i++)
              members[i] = start + i * stride;
            check(members, ranks, world, hosts);
            checked++;
          }
    }
  assert_true(checked > 10000);
}

static void test_listed(void **state) {
  (void)state;
  uint64_t random = 12345;
  for (int64_t world = 1; world <= MOST; world++)
    for (int64_t hosts = 1; hosts <= world; hosts++) {
      if (world % hosts != 0) continue;
      for (int round = 0; round < 100; round++) {
        int64_t members[MOST];
        for (int64_t i = 0; i < world; i++)
          members[i] = i;
        for (int64_t i = world - 1; i > 0; i--) {
          random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
          const int64_t j = (int64_t)((random >> 33) % (uint64_t)(i + 1));
          const int64_t kept = members[i];
          members[i] = members[j];
          members[j] = kept;
        }
        check(members, 1 + round % world, world, hosts);
      }
    }
}

/* A few by hand, so that a fault shared by code and oracle shows. */
static void test_by_hand(void **state) {
  (void)state;
  int64_t hosts_of[4];
  const int64_t across[4] = {6, 1, 7, 0}; /* 8 ranks, hosts {0..3} {4..7} */
  weft__place place = weft__topology(across, 4, 8, 2, 3, hosts_of);
  const int64_t alternating[4] = {0, 1, 0, 1};
  assert_memory_equal(hosts_of, alternating, sizeof hosts_of);
  assert_int_equal(place.host, 1);
  assert_int_equal(place.local_rank, 1);
  assert_int_equal(place.ranks_per_host, 2);
  const int64_t uneven[3] = {0, 1, 5};
  place = weft__topology(uneven, 3, 8, 2, 2, hosts_of);
  assert_int_equal(place.hosts, 2);
  assert_int_equal(place.local_ranks, 1);
  assert_int_equal(place.ranks_per_host, 0);
}

/* The same through the public functions: every stride of a world of 12 on 3 hosts. */
static weft_status split_and_compare(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  for (int64_t stride = 1; stride <= 6; stride++) {
    const int64_t start = rank % stride;
    const int64_t ranks = (12 - start + stride - 1) / stride;
    weft_comm *team = NULL;
    RANK_TRY(weft_comm_split_stride(comm, start, stride, ranks, &team));
    weft_comm_info info = WEFT_COMM_INFO_INIT;
    RANK_TRY(weft_comm_info_get(team, &info));
    int64_t order[3] = {-1, -1, -1}, hosts = 0, count[3] = {0};
    for (int64_t i = 0; i < ranks; i++) {
      const int64_t at = (start + i * stride) / 4;
      if (order[at] < 0) order[at] = hosts++;
      count[at]++;
    }
    RANK_CHECK(info.ranks == ranks && info.rank == rank / stride);
    RANK_CHECK(info.world_rank == rank && info.world_ranks == 12);
    RANK_CHECK(info.hosts == hosts && info.host == order[rank / 4]);
    RANK_CHECK(info.local_ranks == count[rank / 4]);
    RANK_CHECK(weft_comm_destroy(team) == WEFT_OK);
  }
  return WEFT_OK;
}

static void test_public(void **state) {
  (void)state;
  ranks_result results[12];
  assert_int_equal(ranks_run_simple(12, 3, 20000, split_and_compare, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 12, WEFT_OK), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_strided),
      cmocka_unit_test(test_listed),
      cmocka_unit_test(test_by_hand),
      cmocka_unit_test(test_public),
  };
  return cmocka_run_group_tests_name("comm/topology", tests, NULL, NULL);
}
