/* Agreement: all ranks return WEFT_OK or none does, and the words say who and what. Also the arena
 * and the record of asynchronous errors, which agreement's users lean on. */
#include "check.h"
#include "comm/comm.h"
#include "core/error.h"
#include "ranks.h"

enum { RANKS = 4 };

typedef struct sample {
  int64_t first, second;
  int32_t third, unnamed;
  int64_t rest[60]; /* carries the struct over several rounds */
  int64_t last;
} sample;

static const weft__field fields[] = {
    {"first", offsetof(sample, first), 8},
    {"second", offsetof(sample, second), 8},
    {"third", offsetof(sample, third), 4},
    {"last", offsetof(sample, last), 8},
};

static weft_status agree(weft_comm *comm, weft_status own, const sample *data, size_t bytes,
                         const char *what) {
  return weft__comm_agree(comm, own, data, bytes, fields, 4, what);
}

static sample make(void) {
  sample data = {.first = 11, .second = -5000000000, .third = -3, .unnamed = 4, .last = 9};
  for (int i = 0; i < 60; i++)
    data.rest[i] = i;
  return data;
}

/* What is wrong on rank `odd`. */
typedef enum fault {
  NOTHING,
  FIRST,
  SECOND,
  THIRD,
  UNNAMED,
  LAST,
  REFUSES,
  SHORTER,
  LONGER,
  EMPTY,
  OTHER_CALL,
  FAULTS
} fault;

typedef struct scene {
  fault fault;
  int64_t odd;
} scene;

static weft_status act(int64_t rank, weft_comm *comm, void *user) {
  const scene *const now = (const scene *)user;
  const fault fault = rank == now->odd ? now->fault : NOTHING;
  sample data = make();
  weft_status own = WEFT_OK;
  size_t bytes = sizeof data;
  const char *what = "ce_forward";
  if (fault == FIRST) data.first = 12;
  if (fault == SECOND) data.second = 5000000001;
  if (fault == THIRD) data.third = 7;
  if (fault == UNNAMED) data.unnamed = 5;
  if (fault == LAST) data.last = -10;
  if (fault == SHORTER) bytes = 16;
  if (fault == EMPTY) bytes = 0;
  if (now->fault == LONGER && rank != now->odd) bytes = 16;
  if (fault == OTHER_CALL) what = "ce_backward";
  if (fault == REFUSES) own = weft__fail(WEFT_ERR_ARGUMENT, "ce_forward: tokens is -1");
  const weft_status status = agree(comm, own, &data, bytes, what);
  char first_words[512];
  snprintf(first_words, sizeof first_words, "%s", weft_last_error());
  /* whatever came out, the team goes on */
  data = make();
  RANK_CHECK(agree(comm, WEFT_OK, &data, sizeof data, "ce_step") == WEFT_OK);
  RANK_CHECK(weft_comm_barrier(comm) == WEFT_OK);
  return status == WEFT_OK ? WEFT_OK : weft__fail(status, "%s", first_words);
}

static void test_faults(void **state) {
  (void)state;
  for (int which = 0; which < FAULTS; which++)
    for (int64_t odd = 0; odd < RANKS; odd++) {
      scene now = {(fault)which, odd};
      ranks_result results[RANKS];
      assert_int_equal(ranks_run_simple(RANKS, 1, 20000, act, &now, results), WEFT_OK);
      const long long other = odd == 0 ? 1 : odd; /* rank 0 is the yardstick: it differs from 1 */
      char text[128];
      for (int64_t rank = 0; rank < RANKS; rank++) {
        const char *const error = results[rank].error;
        if (which == NOTHING) {
          assert_int_equal(results[rank].status, WEFT_OK);
          continue;
        }
        if (which == REFUSES) {
          assert_int_equal(results[rank].status, rank == odd ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
          if (rank == odd) assert_string_equal(error, "ce_forward: tokens is -1");
          snprintf(text, sizeof text, "rank %lld refused the call (argument)", (long long)odd);
          if (rank != odd) assert_says(error, text);
          assert_says(error, "tokens is -1");
          continue;
        }
        assert_int_equal(results[rank].status, WEFT_ERR_MISMATCH);
        assert_string_equal(error, results[0].error);
        snprintf(text, sizeof text, "rank %lld", other);
        assert_says(error, text);
        assert_says(error, "rank 0");
      }
      const char *const error = results[0].error;
      if (which == FIRST) {
        assert_says(error,
                    odd == 0 ? "first is 12 on rank 0 and 11 on" : "first is 11 on rank 0 and 12");
      } else if (which == SECOND) {
        assert_says(error, "second is ");
        assert_says(error, "-5000000000 on");
        assert_says(error, "5000000001 on");
      } else if (which == THIRD) {
        assert_says(error,
                    odd == 0 ? "third is 7 on rank 0 and -3 on" : "third is -3 on rank 0 and 7 on");
      } else if (which == UNNAMED) {
        assert_says(error, "byte 20 is");
      } else if (which == LAST) {
        assert_says(error, "last is ");
        assert_says(error, "-10 on");
      } else if (which == SHORTER || which == EMPTY || which == LONGER) {
        assert_says(error, which == EMPTY ? " 0" : "16");
        assert_says(error, "512"); /* sizeof(sample) */
      } else if (which == OTHER_CALL) {
        assert_says(error, "calls ce_forward");
        assert_says(error, "calls ce_backward");
      }
    }
}

/* No byte escapes, wherever the rounds of a long comparison meet. */
static weft_status every_byte(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  for (size_t length = 1; length <= 512; length = length < 500 ? length + 83 : length + 6) {
    for (size_t at = 0; at < length; at++) {
      unsigned char data[512] = {0};
      char text[64];
      if (rank == 1) data[at] = 200;
      RANK_CHECK(weft__comm_agree(comm, WEFT_OK, data, length, NULL, 0, "bytes") ==
                 WEFT_ERR_MISMATCH);
      snprintf(text, sizeof text, "bytes: byte %zu is 0 on rank 0 and 200 on rank 1", at);
      RANK_CHECK(strcmp(weft_last_error(), text) == 0);
    }
  }
  return WEFT_OK;
}

static void test_every_byte(void **state) {
  (void)state;
  ranks_result results[2];
  assert_int_equal(ranks_run_simple(2, 1, 20000, every_byte, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
}

/* Two refuse: each keeps its own words, the others are told of one. */
static weft_status two_refuse(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  sample data = make();
  weft_status own = WEFT_OK;
  if (rank == 1) own = weft__fail(WEFT_ERR_MEMORY, "one has no memory");
  if (rank == 3) own = weft__fail(WEFT_ERR_ARGUMENT, "three is wrong");
  return agree(comm, own, &data, sizeof data, "ce_plan_create");
}

static void test_two_refuse(void **state) {
  (void)state;
  ranks_result results[RANKS];
  assert_int_equal(ranks_run_simple(RANKS, 1, 20000, two_refuse, NULL, results), WEFT_OK);
  assert_int_equal(results[1].status, WEFT_ERR_MEMORY);
  assert_string_equal(results[1].error, "one has no memory");
  assert_int_equal(results[3].status, WEFT_ERR_ARGUMENT);
  assert_string_equal(results[3].error, "three is wrong");
  for (int rank = 0; rank < RANKS; rank += 2) {
    assert_int_equal(results[rank].status, WEFT_ERR_PEER);
    assert_says(results[rank].error, "rank 1 refused");
  }
}

/* One rank is in another call altogether. */
static weft_status other_collective(int64_t rank, weft_comm *comm, void *user) {
  const int which = *(const int *)user;
  unsigned char bytes[RANKS * 4000] = {0};
  sample data = make();
  weft_status status;
  if (which == 0) /* agreement against barrier */
    status = rank == 2 ? weft_comm_barrier(comm) : agree(comm, WEFT_OK, &data, 8, "ce_forward");
  else if (which == 1) /* a large all-gather against a small one */
    status = weft__comm_allgather(comm, bytes, bytes + 4000 * (RANKS - 1) / 2, rank == 2 ? 8 : 900);
  else { /* two large ones that differ */
    unsigned char *const send = bytes;
    unsigned char recv[RANKS * 4000];
    memset(bytes, 1, sizeof bytes);
    status = weft__comm_allgather(comm, send, recv, rank == 2 ? 3000 : 4000);
  }
  char words[512];
  snprintf(words, sizeof words, "%s", weft_last_error());
  RANK_CHECK(weft_comm_barrier(comm) == WEFT_OK);
  return status == WEFT_OK ? WEFT_OK : weft__fail(status, "%s", words);
}

static void test_other_collective(void **state) {
  (void)state;
  for (int which = 0; which < 3; which++) {
    ranks_result results[RANKS];
    assert_int_equal(ranks_run_simple(RANKS, 1, 20000, other_collective, &which, results), WEFT_OK);
    assert_int_equal(ranks_first_not(results, RANKS, WEFT_ERR_MISMATCH), -1);
    for (int rank = 0; rank < RANKS; rank++) {
      assert_says(results[rank].error, "rank 0 ");
      assert_says(results[rank].error, "rank 2 ");
    }
  }
}

static weft_status alone(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  sample data = make();
  RANK_CHECK(agree(comm, WEFT_OK, &data, sizeof data, "ce_forward") == WEFT_OK);
  const weft_status own = weft__fail(WEFT_ERR_ARGUMENT, "own words");
  RANK_CHECK(agree(comm, own, &data, sizeof data, "ce_forward") == WEFT_ERR_ARGUMENT);
  RANK_CHECK(strcmp(weft_last_error(), "own words") == 0);
  RANK_CHECK(weft_comm_abort(comm) == WEFT_OK);
  return agree(comm, WEFT_OK, &data, sizeof data, "ce_forward");
}

static void test_alone(void **state) {
  (void)state;
  ranks_result result;
  assert_int_equal(ranks_run_simple(1, 1, 20000, alone, NULL, &result), WEFT_OK);
  assert_int_equal(result.status, WEFT_ERR_ABORTED);
}

/* One allowance for all views of a rank. */
static weft_status arena(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_comm *team = NULL;
  RANK_TRY(weft_comm_split_stride(comm, 0, 1, 2, &team));
  RANK_CHECK(weft__comm_arena_take(comm, 600) == WEFT_OK);
  RANK_CHECK(weft__comm_arena_take(team, 300) == WEFT_OK);
  RANK_CHECK(comm->arena_used == 600 && team->arena_used == 300);
  RANK_CHECK(weft__comm_arena_take(team, 200) == WEFT_ERR_MEMORY);
  RANK_CHECK(strstr(weft_last_error(), "200 bytes asked for, 900 of 1000 are in use") != NULL);
  RANK_CHECK(weft__comm_arena_take(team, INT64_MAX) == WEFT_ERR_MEMORY);
  RANK_CHECK(team->arena_used == 300);
  RANK_CHECK(weft__comm_arena_take(comm, -600) == WEFT_OK);
  RANK_CHECK(weft__comm_arena_take(team, 700) == WEFT_OK);
  RANK_CHECK(weft__comm_arena_take(comm, 1) == WEFT_ERR_MEMORY);
  RANK_CHECK(weft__comm_arena_take(team, -1000) == WEFT_OK);
  return weft_comm_destroy(team);
}

static weft_status arena_without_limit(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  RANK_CHECK(weft__comm_arena_take(comm, INT64_C(1) << 60) == WEFT_OK);
  RANK_CHECK(weft__comm_arena_take(comm, INT64_MAX) == WEFT_ERR_MEMORY);
  return weft__comm_arena_take(comm, -(INT64_C(1) << 60));
}

static void test_arena(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  ranks_result results[2];
  config.ranks = 2;
  config.arena_bytes = 1000;
  config.timeout_ms = 20000;
  assert_int_equal(ranks_run(&config, arena, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
  config.arena_bytes = 0;
  assert_int_equal(ranks_run(&config, arena_without_limit, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
}

/* The record is the team's: the first error stays, more of the same counts, what stops the team
 * takes its place, and a reset clears it. */
static weft_status record(int64_t rank, weft_comm *comm, void *user) {
  (void)user;
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
  RANK_CHECK(error.status == WEFT_OK && error.count == 0 && error.peer == -1);
  RANK_TRY(weft_comm_barrier(comm));
  if (rank == 1) {
    weft__comm_report(comm, WEFT_ERR_TARGET, -1, 3, "forward: target 7");
    weft__comm_report(comm, WEFT_ERR_TARGET, -1, 2, "forward: target 8");
    weft__comm_report(comm, WEFT_ERR_MISMATCH, 0, 1, "forward: tokens");
  }
  RANK_TRY(weft_comm_barrier(comm)); /* a reported target does not stop the team */
  RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
  RANK_CHECK(error.status == WEFT_ERR_TARGET && error.rank == 1 && error.count == 5);
  RANK_CHECK(strcmp(error.message, "forward: target 7") == 0);
  RANK_TRY(weft_comm_barrier(comm));
  if (rank == 0) weft__comm_report(comm, WEFT_ERR_TIMEOUT, 1, 1, "forward: rank 1");
  RANK_TRY(weft_comm_barrier(comm));
  RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
  RANK_CHECK(error.status == WEFT_ERR_TIMEOUT && error.rank == 0 && error.peer == 1);
  RANK_TRY(weft_comm_reset(comm));
  RANK_CHECK(weft_comm_async_error(comm, &error) == WEFT_OK);
  RANK_CHECK(error.status == WEFT_OK && error.count == 0);
  return WEFT_OK;
}

static void test_record(void **state) {
  (void)state;
  ranks_result results[2];
  assert_int_equal(ranks_run_simple(2, 1, 20000, record, NULL, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, 2, WEFT_OK), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_faults),     cmocka_unit_test(test_every_byte),
      cmocka_unit_test(test_two_refuse), cmocka_unit_test(test_other_collective),
      cmocka_unit_test(test_alone),      cmocka_unit_test(test_arena),
      cmocka_unit_test(test_record),
  };
  return cmocka_run_group_tests_name("comm/agree", tests, NULL, NULL);
}
