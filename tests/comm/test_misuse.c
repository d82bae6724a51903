/* Wrong arguments to every public function on teams: a status, and a message with the argument, its
 * value and what was expected. */
#include "check.h"
#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 4 };

/* Worlds ------------------------------------------------------------------------------------- */

static void refuse_world(const weft_world_config *config, weft_status status, const char *part,
                         const char *more) {
  weft_comm *comms[RANKS] = {NULL};
  assert_int_equal(weft_comm_create_inproc(config, comms), status);
  assert_says(weft_last_error(), part);
  assert_says(weft_last_error(), more);
  for (int i = 0; i < RANKS; i++)
    assert_null(comms[i]);
}

static void test_world(void **state) {
  (void)state;
  const weft_world_config good = {sizeof good, RANKS, 2, 0, 0, WEFT_DEVICE_CPU, 0, NULL};
  weft_world_config bad = good;
  weft_comm *comms[RANKS] = {NULL};
  assert_int_equal(weft_comm_create_inproc(&good, NULL), WEFT_ERR_ARGUMENT);
  assert_says(weft_last_error(), "comms is NULL");
  refuse_world(NULL, WEFT_ERR_ARGUMENT, "weft_world_config", "NULL");
  static const int64_t ranks[] = {0, -1, INT64_MIN, 513, INT64_MAX};
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
    char value[32];
    snprintf(value, sizeof value, "%lld,", (long long)ranks[i]);
    bad = good;
    bad.ranks = ranks[i];
    bad.hosts = 1;
    refuse_world(&bad, WEFT_ERR_ARGUMENT, "ranks is", value);
  }
  static const int64_t hosts[] = {0, -2, 3, 8, INT64_MAX};
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    bad = good;
    bad.hosts = hosts[i];
    refuse_world(&bad, WEFT_ERR_ARGUMENT, "hosts is", "divisor of ranks = 4");
  }
  bad = good;
  bad.arena_bytes = -1;
  refuse_world(&bad, WEFT_ERR_ARGUMENT, "arena_bytes is -1", "at least 0");
  bad = good;
  bad.timeout_ms = -5;
  refuse_world(&bad, WEFT_ERR_ARGUMENT, "timeout_ms is -5", "at least 0");
  bad = good;
  bad.device = 3;
  refuse_world(&bad, WEFT_ERR_ARGUMENT, "device is 3", "expected");
  bad.device = -1;
  refuse_world(&bad, WEFT_ERR_ARGUMENT, "device is -1", "expected");
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  assert_int_equal(weft_system_info_get(&info), WEFT_OK);
  bad.device = WEFT_DEVICE_CUDA;
  if (!info.cuda_available)
    refuse_world(&bad, WEFT_ERR_UNSUPPORTED, "comm_create_inproc: device is CUDA", "GPU");
  bad = good;
  bad.reserved = 1;
  refuse_world(&bad, WEFT_ERR_ARGUMENT, "reserved is 1", "expected 0");
  static const size_t sizes[] = {0, 8, sizeof good - 1, 1 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    bad = good;
    bad.size = sizes[i];
    refuse_world(&bad, WEFT_ERR_ARGUMENT, "size is", "INIT");
  }
  /* a newer caller: fine while what is unknown here is zero */
  struct {
    weft_world_config known;
    int64_t unknown;
  } newer = {good, 0};
  newer.known.size = sizeof newer;
  assert_int_equal(weft_comm_create_inproc(&newer.known, comms), WEFT_OK);
  for (int i = 0; i < RANKS; i++)
    assert_int_equal(weft_comm_destroy(comms[i]), WEFT_OK);
  memset(comms, 0, sizeof comms);
  newer.unknown = 1;
  refuse_world(&newer.known, WEFT_ERR_UNSUPPORTED, "offset", "does not know");
}

/* Auto means CPU here, and the longest timeout does not wrap. */
static void test_auto(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_comm *comms[2];
  config.ranks = 2;
  config.timeout_ms = INT64_MAX;
  assert_int_equal(weft_comm_create_inproc(&config, comms), WEFT_OK);
  assert_int_equal(weft_comm_info_get(comms[1], &info), WEFT_OK);
  assert_int_equal(info.device, WEFT_DEVICE_CPU);
  assert_int_equal(info.gpu, -1);
  assert_int_equal(info.rank, 1);
  assert_string_equal(info.transport, "inproc");
  for (int i = 0; i < 2; i++)
    assert_int_equal(weft_comm_destroy(comms[i]), WEFT_OK);
}

static weft_status longest_timeout(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  if (rank == 1) ranks_sleep_ms(30);
  return weft_comm_barrier(comm);
}

static void test_longest_timeout(void **state) {
  (void)state;
  ranks_result results[2];
  assert_int_equal(ranks_run_simple(2, 1, INT64_MAX, longest_timeout, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
}

/* Teams -------------------------------------------------------------------------------------- */

typedef struct world {
  weft_comm *comms[RANKS];
} world;

static int open_world(void **state) {
  static world now;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  config.ranks = RANKS;
  config.timeout_ms = 50; /* what is refused must not wait; were it to, it would say timeout */
  *state = &now;
  return weft_comm_create_inproc(&config, now.comms) == WEFT_OK ? 0 : -1;
}

static int close_world(void **state) {
  world *const now = (world *)*state;
  int failed = 0;
  for (int i = 0; i < RANKS; i++)
    failed |= weft_comm_destroy(now->comms[i]) != WEFT_OK;
  return failed;
}

static void test_null(void **state) {
  (void)state;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  const int64_t members[1] = {0};
  weft_comm *team = (weft_comm *)&info;
#define REFUSED(expr, part)                                                                        \
  do {                                                                                             \
    assert_int_equal((expr), WEFT_ERR_ARGUMENT);                                                   \
    assert_says(weft_last_error(), part);                                                          \
  } while (0)
  REFUSED(weft_comm_info_get(NULL, &info), "comm_info_get: comm is NULL");
  REFUSED(weft_comm_barrier(NULL), "comm_barrier: comm is NULL");
  REFUSED(weft_comm_allgather(NULL, &info, &info, 8), "comm_allgather: comm is NULL");
  REFUSED(weft_comm_async_error(NULL, &error), "comm_async_error: comm is NULL");
  REFUSED(weft_comm_abort(NULL), "comm_abort: comm is NULL");
  REFUSED(weft_comm_reset(NULL), "comm_reset: comm is NULL");
  REFUSED(weft_comm_split_list(NULL, members, 1, &team), "comm_split_list: parent is NULL");
  assert_null(team);
  team = (weft_comm *)&info;
  REFUSED(weft_comm_split_stride(NULL, 0, 1, 1, &team), "comm_split_stride: parent is NULL");
  assert_null(team);
  assert_int_equal(weft_comm_destroy(NULL), WEFT_OK);
}

static void test_info(void **state) {
  weft_comm *const comm = ((world *)*state)->comms[0];
  REFUSED(weft_comm_info_get(comm, NULL), "weft_comm_info is NULL");
  REFUSED(weft_comm_async_error(comm, NULL), "weft_async_error is NULL");
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  info.size = sizeof info - 1;
  REFUSED(weft_comm_info_get(comm, &info), "weft_comm_info.size is");
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  error.size = 0;
  REFUSED(weft_comm_async_error(comm, &error), "weft_async_error.size is 0");
  /* a newer caller's longer struct keeps its own tail and size */
  struct {
    weft_comm_info known;
    int64_t unknown;
  } newer = {WEFT_COMM_INFO_INIT, 42};
  newer.known.size = sizeof newer;
  assert_int_equal(weft_comm_info_get(comm, &newer.known), WEFT_OK);
  assert_int_equal(newer.known.ranks, RANKS);
  assert_int_equal(newer.known.size, sizeof newer);
  assert_int_equal(newer.unknown, 42);
}

static void test_split_list(void **state) {
  weft_comm *const comm = ((world *)*state)->comms[1];
  const int64_t good[RANKS] = {0, 1, 2, 3};
  weft_comm *team = comm;
  static const int64_t counts[] = {0, -1, INT64_MIN, 5, INT64_MAX};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    team = comm;
    REFUSED(weft_comm_split_list(comm, good, counts[i], &team), "expected 1 to the parent's 4");
    assert_null(team);
  }
  REFUSED(weft_comm_split_list(comm, NULL, 2, &team), "members is NULL");
  static const int64_t outside[] = {-1, 4, INT64_MIN, INT64_MAX};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    const int64_t members[3] = {1, outside[i], 2};
    char text[64];
    snprintf(text, sizeof text, "members[1] is %lld, expected 0 to 3", (long long)outside[i]);
    REFUSED(weft_comm_split_list(comm, members, 3, &team), text);
  }
  const int64_t twice[4] = {3, 1, 0, 1}, others[2] = {0, 2};
  REFUSED(weft_comm_split_list(comm, twice, 4, &team), "members[1] and members[3] are both 1");
  REFUSED(weft_comm_split_list(comm, others, 2, &team), "do not hold the calling rank 1");
  const int64_t alone[1] = {1};
  REFUSED(weft_comm_split_list(comm, alone, 1, NULL), "team is NULL");
  assert_int_equal(weft_comm_split_list(comm, alone, 1, &team), WEFT_OK);
  assert_int_equal(weft_comm_barrier(team), WEFT_OK);
  assert_int_equal(weft_comm_destroy(team), WEFT_OK);
}

static void test_split_stride(void **state) {
  weft_comm *const comm = ((world *)*state)->comms[1];
  const struct {
    int64_t start, stride, ranks;
    const char *part;
  } cases[] = {
      {0, 1, 0, "ranks is 0"},
      {0, 1, -3, "ranks is -3"},
      {0, 1, 5, "ranks is 5"},
      {-1, 1, 2, "start is -1, expected 0 to 3"},
      {4, 1, 1, "start is 4, expected 0 to 3"},
      {INT64_MIN, 1, 1, "start is"},
      {INT64_MAX, 1, 1, "start is"},
      {0, 0, 2, "stride is 0, expected at least 1"},
      {0, -1, 2, "stride is -1, expected at least 1"},
      {1, INT64_MAX, 2, "reach past the parent's last rank 3"},
      {1, INT64_MAX / 2, 4, "reach past the parent's last rank 3"},
      {1, 1, 4, "reach past the parent's last rank 3"},
      {1, 3, 2, "reach past the parent's last rank 3"},
      {0, 2, 2, "do not hold the calling rank 1"},
      {2, 1, 2, "do not hold the calling rank 1"},
      {0, 1, 1, "do not hold the calling rank 1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weft_comm *team = comm;
    REFUSED(weft_comm_split_stride(comm, cases[i].start, cases[i].stride, cases[i].ranks, &team),
            cases[i].part);
    assert_null(team);
  }
  weft_comm *team = NULL;
  REFUSED(weft_comm_split_stride(comm, 1, 1, 1, NULL), "team is NULL");
  assert_int_equal(weft_comm_split_stride(comm, 1, INT64_MAX, 1, &team), WEFT_OK);
  assert_int_equal(weft_comm_destroy(team), WEFT_OK);
}

static void test_destroy_with_plans(void **state) {
  weft_comm *const comm = ((world *)*state)->comms[2];
  comm->plans = 2;
  assert_int_equal(weft_comm_destroy(comm), WEFT_ERR_BUSY);
  assert_says(weft_last_error(), "2 plans");
  comm->plans = 0; /* the handle has stayed */
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  assert_int_equal(weft_comm_info_get(comm, &info), WEFT_OK);
}

static void *never_alloc(void *user, size_t alignment, size_t bytes) {
  (void)user;
  (void)alignment;
  (void)bytes;
  return NULL;
}

static void never_free(void *user, void *pointer) {
  (void)user;
  (void)pointer;
}

static void test_allocator_while_teams_live(void **state) {
  (void)state;
  assert_int_equal(weft_allocator_set(never_alloc, never_free, NULL), WEFT_ERR_BUSY);
  assert_says(weft_last_error(), "in use");
}

/* What is not here says what is missing, and leaves no handle. */
static void test_unsupported(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_unique_id id;
  weft_comm *comm = (weft_comm *)&config;
#define MISSING(expr, part)                                                                        \
  do {                                                                                             \
    assert_int_equal((expr), WEFT_ERR_UNSUPPORTED);                                                \
    assert_says(weft_last_error(), part);                                                          \
  } while (0)
  MISSING(weft_comm_create_mpi(&config, &config, &comm), "MPI");
  assert_null(comm);
  comm = (weft_comm *)&config;
  MISSING(weft_comm_create_nvshmem(&config, &id, 0, &comm), "NVSHMEM");
  assert_null(comm);
  MISSING(weft_comm_create_mpi(NULL, NULL, NULL), "MPI");
  MISSING(weft_comm_create_nvshmem(NULL, NULL, 0, NULL), "NVSHMEM");
  MISSING(weft_unique_id_create(&id), "NVSHMEM");
  MISSING(weft_unique_id_create(NULL), "NVSHMEM");
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  assert_int_equal(weft_system_info_get(&info), WEFT_OK);
  if (info.cuda_available) return;
  MISSING(weft_group_start(), "no GPU backend");
  MISSING(weft_group_end(), "no GPU backend");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_world),
      cmocka_unit_test(test_auto),
      cmocka_unit_test(test_longest_timeout),
      cmocka_unit_test(test_null),
      cmocka_unit_test_setup_teardown(test_info, open_world, close_world),
      cmocka_unit_test_setup_teardown(test_split_list, open_world, close_world),
      cmocka_unit_test_setup_teardown(test_split_stride, open_world, close_world),
      cmocka_unit_test_setup_teardown(test_destroy_with_plans, open_world, close_world),
      cmocka_unit_test_setup_teardown(test_allocator_while_teams_live, open_world, close_world),
      cmocka_unit_test(test_unsupported),
  };
  return cmocka_run_group_tests_name("comm/misuse", tests, NULL, NULL);
}
