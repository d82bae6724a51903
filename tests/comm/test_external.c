/* External worlds over a tiny exchange between threads, which can be told to fail, and which checks
 * that all ranks ask for the same bytes. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"
#include "comm/comm.h"
#include "core/error.h"
#include "ranks.h"

enum { RANKS = 4 };

typedef struct plaza {
  pthread_barrier_t gate;
  int64_t ranks;
  const void *sent[RANKS];
  size_t bytes[RANKS];
  atomic_int fail_allgather, fail_barrier; /* code to return on every rank */
} plaza;

typedef struct corner {
  plaza *plaza;
  int64_t rank;
} corner;

static int plaza_allgather(void *user, const void *send, void *recv, size_t bytes) {
  const corner *const mine = (const corner *)user;
  plaza *const p = mine->plaza;
  p->sent[mine->rank] = send;
  p->bytes[mine->rank] = bytes;
  pthread_barrier_wait(&p->gate);
  int code = atomic_load(&p->fail_allgather);
  for (int64_t i = 0; i < p->ranks; i++) {
    if (p->bytes[i] != bytes) code = 77;
    if (code == 0) memcpy((unsigned char *)recv + (size_t)i * bytes, p->sent[i], bytes);
  }
  pthread_barrier_wait(&p->gate);
  return code;
}

static int plaza_barrier(void *user) {
  plaza *const p = ((const corner *)user)->plaza;
  pthread_barrier_wait(&p->gate);
  const int code = atomic_load(&p->fail_barrier);
  pthread_barrier_wait(&p->gate);
  return code;
}

/* What each rank passes; tests bend one field of one rank. */
typedef struct scene {
  plaza plaza;
  weft_world_config configs[RANKS];
  int64_t ranks_said[RANKS];
  bool no_config[RANKS], no_comm[RANKS];
} scene;

static void set_up(scene *now) {
  memset(now, 0, sizeof *now);
  pthread_barrier_init(&now->plaza.gate, NULL, RANKS);
  now->plaza.ranks = RANKS;
  for (int i = 0; i < RANKS; i++) {
    const weft_world_config good = WEFT_WORLD_CONFIG_INIT;
    now->configs[i] = good;
    now->configs[i].ranks = RANKS;
    now->configs[i].hosts = 2;
    now->ranks_said[i] = i;
  }
}

static weft_status create(scene *now, int64_t rank, corner *mine, weft_comm **comm) {
  weft_exchange exchange = WEFT_EXCHANGE_INIT;
  *mine = (corner){&now->plaza, rank};
  exchange.rank = now->ranks_said[rank];
  exchange.user = mine;
  exchange.allgather = plaza_allgather;
  exchange.barrier = plaza_barrier;
  return weft_comm_create_external(now->no_config[rank] ? NULL : &now->configs[rank], &exchange,
                                   now->no_comm[rank] ? NULL : comm);
}

static void run(scene *now, ranks_fn fn, ranks_result *results) {
  assert_int_equal(ranks_run_bare(RANKS, fn, now, results), WEFT_OK);
  pthread_barrier_destroy(&now->plaza.gate);
}

static weft_status work(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  corner mine;
  weft_comm *comm = NULL, *team = NULL;
  RANK_TRY(create((scene *)user, rank, &mine, &comm));
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  RANK_TRY(weft_comm_info_get(comm, &info));
  RANK_CHECK(info.rank == rank && info.ranks == RANKS && info.world_rank == rank);
  RANK_CHECK(info.hosts == 2 && info.host == rank / 2 && info.local_rank == rank % 2);
  RANK_CHECK(info.ranks_per_host == 2 && info.device == WEFT_DEVICE_CPU);
  RANK_CHECK(strcmp(info.transport, "external") == 0);
  RANK_CHECK(!comm->transport->loads_peers);
  static const size_t sizes[] = {0, 8, 1024, 1025, 20000};
  for (int round = 0; round < 20; round++) {
    const size_t bytes = sizes[round % 5];
    unsigned char *send = malloc(bytes + 1), *recv = malloc(bytes * RANKS + 1);
    RANK_CHECK(send != NULL && recv != NULL);
    memset(send, (int)rank + round, bytes);
    RANK_TRY(weft__comm_allgather(comm, send, recv, bytes));
    for (size_t i = 0; i < bytes * RANKS; i++)
      RANK_CHECK(recv[i] == (unsigned char)((int)(i / bytes) + round));
    free(send);
    free(recv);
    RANK_TRY(weft_comm_barrier(comm));
  }
  /* agreement stands on the all-gather alone */
  int64_t value = 5;
  const weft__field field = {"value", 0, 8};
  RANK_TRY(weft__comm_agree(comm, WEFT_OK, &value, 8, &field, 1, "external"));
  if (rank == 2) value = 6;
  RANK_CHECK(weft__comm_agree(comm, WEFT_OK, &value, 8, &field, 1, "external") ==
             WEFT_ERR_MISMATCH);
  RANK_CHECK(strstr(weft_last_error(), "value is 5 on rank 0 and 6 on rank 2") != NULL);
  const size_t bytes = rank == 1 ? 4 : 8;
  RANK_CHECK(weft__comm_agree(comm, WEFT_OK, &value, bytes, &field, 1, "external") ==
             WEFT_ERR_MISMATCH);
  const weft_status own = rank == 3 ? weft__fail(WEFT_ERR_ARGUMENT, "not so") : WEFT_OK;
  RANK_CHECK(weft__comm_agree(comm, own, &value, 8, &field, 1, "external") ==
             (rank == 3 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER));
  /* what an exchange over the whole world cannot give says so */
  RANK_CHECK(weft_comm_split_stride(comm, rank % 2, 2, 2, &team) == WEFT_ERR_UNSUPPORTED);
  RANK_CHECK(team == NULL && strstr(weft_last_error(), "2 of 4 ranks") != NULL);
  RANK_CHECK(weft_comm_abort(comm) == WEFT_ERR_UNSUPPORTED);
  RANK_TRY(weft_comm_barrier(comm));
  return weft_comm_destroy(comm);
}

static void test_work(void **state) {
  (void)state;
  static scene now;
  ranks_result results[RANKS];
  set_up(&now);
  run(&now, work, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* The caller's functions fail: SYSTEM, sticky, until a reset that works. */
static weft_status callbacks_fail(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  scene *const now = (scene *)user;
  corner mine;
  weft_comm *comm = NULL;
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  int64_t all[RANKS];
  RANK_TRY(create(now, rank, &mine, &comm));
  for (int round = 0; round < 2; round++) {
    RANK_TRY(weft_comm_barrier(comm));
    atomic_store(round == 0 ? &now->plaza.fail_allgather : &now->plaza.fail_barrier, 9);
    const weft_status status =
        round == 0 ? weft__comm_allgather(comm, &rank, all, sizeof rank) : weft_comm_barrier(comm);
    RANK_CHECK(status == WEFT_ERR_SYSTEM);
    RANK_CHECK(strstr(weft_last_error(), "returned 9, expected 0") != NULL);
    RANK_CHECK(weft_comm_barrier(comm) == WEFT_ERR_SYSTEM);
    RANK_CHECK(strstr(weft_last_error(), "weft_comm_reset") != NULL);
    RANK_CHECK(weft__comm_allgather(comm, &rank, all, sizeof rank) == WEFT_ERR_SYSTEM);
    RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
    RANK_CHECK(error.status == WEFT_ERR_SYSTEM && error.rank == rank);
    if (round == 1) {
      RANK_CHECK(weft_comm_reset(comm) == WEFT_ERR_SYSTEM);
      RANK_CHECK(weft_comm_barrier(comm) == WEFT_ERR_SYSTEM);
    }
    plaza_barrier(&mine);
    atomic_store(&now->plaza.fail_allgather, 0);
    atomic_store(&now->plaza.fail_barrier, 0);
    plaza_barrier(&mine);
    RANK_TRY(weft_comm_reset(comm));
    RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK && error.status == WEFT_OK);
    RANK_TRY(weft__comm_allgather(comm, &rank, all, sizeof rank));
    RANK_CHECK(all[3] == 3);
  }
  return weft_comm_destroy(comm);
}

static void test_callbacks_fail(void **state) {
  (void)state;
  static scene now;
  ranks_result results[RANKS];
  set_up(&now);
  run(&now, callbacks_fail, results);
  assert_int_equal(ranks_first_not(results, RANKS, WEFT_OK), -1);
}

/* Creation: all ranks get a world, or none does. */
static weft_status only_create(int64_t rank, weft_comm *unused, void *user) {
  (void)unused;
  corner mine;
  weft_comm *comm = NULL;
  const weft_status status = create((scene *)user, rank, &mine, &comm);
  RANK_CHECK((status == WEFT_OK) == (comm != NULL));
  const weft_status ended = weft_comm_destroy(comm);
  return status != WEFT_OK ? status : ended;
}

static void refused(scene *now, int64_t odd, weft_status own, weft_status others,
                    const char *own_part, const char *other_part) {
  ranks_result results[RANKS];
  run(now, only_create, results);
  for (int64_t i = 0; i < RANKS; i++) {
    assert_int_equal(results[i].status, i == odd ? own : others);
    assert_says(results[i].error, i == odd ? own_part : other_part);
  }
}

static void test_creation(void **state) {
  (void)state;
  static scene now;
  const weft_status mismatch = WEFT_ERR_MISMATCH, peer = WEFT_ERR_PEER, own = WEFT_ERR_ARGUMENT;
  set_up(&now);
  now.configs[2].ranks = 2; /* fewer than will answer: must not run over its own buffer */
  now.ranks_said[2] = 1;
  refused(&now, 2, mismatch, mismatch, "ranks is 4 on rank 0 and 2 on rank 2", "ranks is 4");
  set_up(&now);
  now.configs[0].ranks = 8;
  refused(&now, 0, mismatch, mismatch, "ranks is 8 on rank 0 and 4 on rank 1", "ranks is 8");
  set_up(&now);
  for (int i = 0; i < RANKS; i++)
    now.configs[i].ranks = 8;
  refused(&now, 0, mismatch, mismatch, "says 8 ranks", "spans 4");
  set_up(&now);
  for (int i = 0; i < RANKS; i++) {
    now.configs[i].ranks = 2;
    now.ranks_said[i] = i % 2;
  }
  refused(&now, 0, mismatch, mismatch, "says 2 ranks", "spans 4");
  set_up(&now);
  now.configs[1].hosts = 4;
  refused(&now, 1, mismatch, mismatch, "hosts is 2 on rank 0 and 4 on rank 1", "hosts is 2");
  set_up(&now);
  now.configs[3].arena_bytes = 64;
  refused(&now, 3, mismatch, mismatch, "arena_bytes is 0 on rank 0", "64 on rank 3");
  set_up(&now);
  now.ranks_said[1] = 0;
  refused(&now, 1, mismatch, mismatch, "exchange.rank 0 in place 1", "rank order");
  /* refusals of one rank */
  set_up(&now);
  now.configs[2].ranks = 0;
  refused(&now, 2, own, peer, "ranks is 0", "rank 2 refused the call (argument)");
  set_up(&now);
  now.ranks_said[3] = 4;
  refused(&now, 3, own, peer, "exchange.rank is 4, expected 0 to 3", "rank 3 refused");
  set_up(&now);
  now.ranks_said[0] = -1;
  refused(&now, 0, own, peer, "exchange.rank is -1, expected 0 to 3", "rank 0 refused");
  set_up(&now);
  now.configs[1].device = WEFT_DEVICE_CUDA;
  refused(&now, 1, WEFT_ERR_UNSUPPORTED, peer, "device is CUDA", "rank 1 refused");
  set_up(&now);
  now.no_config[0] = true;
  refused(&now, 0, own, peer, "weft_world_config is NULL", "rank 0 refused");
  set_up(&now);
  now.no_comm[2] = true;
  refused(&now, 2, own, peer, "comm is NULL", "rank 2 refused");
  set_up(&now);
  atomic_store(&now.plaza.fail_allgather, 5);
  refused(&now, 0, WEFT_ERR_SYSTEM, WEFT_ERR_SYSTEM, "returned 5", "returned 5");
}

/* An exchange that cannot be used, seen by this rank alone. */
static int lazy_allgather(void *user, const void *send, void *recv, size_t bytes) {
  (void)user;
  (void)send;
  (void)recv;
  (void)bytes;
  return 0;
}

static void test_bad_exchange(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_exchange exchange = WEFT_EXCHANGE_INIT;
  weft_comm *comm = (weft_comm *)&config;
  assert_int_equal(weft_comm_create_external(&config, NULL, &comm), WEFT_ERR_ARGUMENT);
  assert_says(weft_last_error(), "weft_exchange is NULL");
  assert_null(comm);
  assert_int_equal(weft_comm_create_external(&config, &exchange, &comm), WEFT_ERR_ARGUMENT);
  assert_says(weft_last_error(), "exchange.allgather is NULL");
  exchange.allgather = lazy_allgather;
  assert_int_equal(weft_comm_create_external(&config, &exchange, &comm), WEFT_ERR_ARGUMENT);
  assert_says(weft_last_error(), "exchange.barrier is NULL");
  exchange.barrier = plaza_barrier;
  exchange.size = 3;
  assert_int_equal(weft_comm_create_external(&config, &exchange, &comm), WEFT_ERR_ARGUMENT);
  assert_says(weft_last_error(), "weft_exchange.size is 3");
  exchange.size = sizeof exchange;
  assert_int_equal(weft_comm_create_external(&config, &exchange, &comm), WEFT_ERR_SYSTEM);
  assert_says(weft_last_error(), "wrote nothing");
  assert_null(comm);
}

/* Memory fails on one rank, at each allocation of creation in turn. The first is the buffer of the
 * first exchange: that rank cannot answer, so it is tried in a world of one. */
typedef struct meter {
  atomic_llong live;
  long long number, fails;
} meter;

static void *metered_alloc(void *user, size_t alignment, size_t bytes) {
  meter *const m = (meter *)user;
  void *pointer = NULL;
  if (m->number++ == m->fails || posix_memalign(&pointer, alignment, bytes) != 0) return NULL;
  atomic_fetch_add(&m->live, 1);
  return pointer;
}

static void metered_free(void *user, void *pointer) {
  free(pointer);
  atomic_fetch_sub(&((meter *)user)->live, 1);
}

static int self_allgather(void *user, const void *send, void *recv, size_t bytes) {
  ++*(int *)user;
  memcpy(recv, send, bytes);
  return 0;
}

static void test_memory(void **state) {
  (void)state;
  for (long long k = 0;; k++) {
    meter m = {.fails = k};
    int exchanged = 0;
    weft_world_config config = WEFT_WORLD_CONFIG_INIT;
    weft_exchange exchange = WEFT_EXCHANGE_INIT;
    weft_comm *comm = NULL;
    exchange.user = &exchanged;
    exchange.allgather = self_allgather;
    exchange.barrier = plaza_barrier;
    assert_int_equal(weft_allocator_set(metered_alloc, metered_free, &m), WEFT_OK);
    const weft_status status = weft_comm_create_external(&config, &exchange, &comm);
    if (status != WEFT_OK) {
      assert_int_equal(status, WEFT_ERR_MEMORY);
      assert_says(weft_last_error(), "no memory for");
      assert_null(comm);
      /* it has told the others, unless it had no room for their answers */
      assert_int_equal(exchanged, k == 0 ? 0 : 1);
    }
    assert_int_equal(weft_comm_destroy(comm), WEFT_OK);
    assert_int_equal(atomic_load(&m.live), 0);
    assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
    if (status == WEFT_OK) {
      assert_true(k >= 3);
      break;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_work),     cmocka_unit_test(test_callbacks_fail),
      cmocka_unit_test(test_creation), cmocka_unit_test(test_bad_exchange),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests_name("comm/external", tests, NULL, NULL);
}
