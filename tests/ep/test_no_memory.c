/* Every allocation of ep fails in turn: the rank that has none says MEMORY, its peers PEER, nothing
 * leaks, nothing hangs; and calls allocate nothing. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep_case.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static atomic_llong live, asked, refused; /* `refused`: the request that fails, from 1; 0: none */

static void *counting_alloc(void *user, size_t alignment, size_t bytes) {
  (void)user;
  const long long number = atomic_fetch_add(&asked, 1) + 1;
  if (number == atomic_load(&refused)) return NULL;
  atomic_fetch_add(&live, 1);
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counting_free(void *user, void *pointer) {
  (void)user;
  atomic_fetch_sub(&live, 1);
  free(pointer);
}

typedef struct team {
  ep_case c;
  weft_comm *comms[4];
  weft_status created[4], handled[4];
  long long calls_asked[4];
} team;

static weft_status make(int64_t rank, weft_comm *none, void *user) {
  (void)none;
  team *t = (team *)user;
  const weft_ep_config config = ep_config(&t->c);
  weft_ep_plan *plan = NULL;
  weft_ep_handle *handle = NULL;
  t->handled[rank] = WEFT_OK;
  t->created[rank] = weft_ep_plan_create(t->comms[rank], &config, &plan);
  if (t->created[rank] != WEFT_OK) return plan == NULL ? WEFT_OK : WEFT_ERR_SYSTEM;
  t->handled[rank] = weft_ep_handle_create(plan, &handle);
  if (t->handled[rank] == WEFT_OK) weft_ep_handle_destroy(handle);
  if (t->comms[rank] != NULL) weft_comm_barrier(t->comms[rank]);
  return weft_ep_plan_destroy(plan);
}

static void every_request_fails(int64_t ranks) {
  static team t;
  ranks_result results[4];
  memset(&t, 0, sizeof t);
  t.c = ep_case_of(ranks, 4, 8, 4, 2);
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = ranks;
  world.device = WEFT_DEVICE_CPU;
  world.timeout_ms = 20000;
  atomic_store(&refused, 0);
  assert_int_equal(weft_allocator_set(counting_alloc, counting_free, NULL), WEFT_OK);
  if (ranks > 1) assert_int_equal(weft_comm_create_inproc(&world, t.comms), WEFT_OK);
  const long long before = atomic_load(&live);
  atomic_store(&asked, 0);
  assert_int_equal(ranks_run_bare(ranks, make, &t, results), WEFT_OK);
  assert_int_equal(ranks_first_not(results, ranks, WEFT_OK), -1);
  const long long requests = atomic_load(&asked);
  assert_true(requests >= 4 * ranks);
  for (long long k = 1; k <= requests; k++) {
    int memory = 0;
    atomic_store(&asked, 0);
    atomic_store(&refused, k);
    assert_int_equal(ranks_run_bare(ranks, make, &t, results), WEFT_OK);
    assert_int_equal(ranks_first_not(results, ranks, WEFT_OK), -1);
    for (int64_t r = 0; r < ranks; r++) {
      memory += (t.created[r] == WEFT_ERR_MEMORY) + (t.handled[r] == WEFT_ERR_MEMORY);
      if (t.created[r] != WEFT_OK && t.created[r] != WEFT_ERR_MEMORY)
        assert_int_equal(t.created[r], WEFT_ERR_PEER);
    }
    assert_int_equal(memory, 1);
    assert_int_equal(atomic_load(&live), before);
  }
  atomic_store(&refused, 0);
  for (int64_t r = 0; r < ranks; r++)
    assert_int_equal(weft_comm_destroy(t.comms[r]), WEFT_OK);
  assert_int_equal(atomic_load(&live), 0);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);
}

static void one_rank(void **state) {
  (void)state;
  every_request_fails(1);
}

static void four_ranks(void **state) {
  (void)state;
  every_request_fails(4);
}

/* A whole round asks for no more than its plan and its handle did; sizes are as the query says. */
static void calls_allocate_nothing(void **state) {
  (void)state;
  char why[256];
  ep_case c = ep_case_of(1, 9, 16, 4, 3);
  weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT, small = WEFT_EP_PLAN_INFO_INIT;
  weft_ep_config config = ep_config(&c);
  weft_ep_plan *plan = NULL;
  static team t;
  ranks_result results[1];
  memset(&t, 0, sizeof t);
  t.c = c;
  atomic_store(&refused, 0);
  assert_int_equal(weft_allocator_set(counting_alloc, counting_free, NULL), WEFT_OK);
  atomic_store(&asked, 0);
  assert_int_equal(ranks_run_bare(1, make, &t, results), WEFT_OK);
  const long long requests = atomic_load(&asked);
  atomic_store(&asked, 0);
  assert_int_equal(ep_everything(&c, 0, NULL, why), WEFT_OK);
  assert_int_equal(atomic_load(&asked), requests);
  assert_int_equal(weft_allocator_set(NULL, NULL, NULL), WEFT_OK);

  assert_int_equal(weft_ep_plan_query(&config, &machine, &info), WEFT_OK);
  assert_true(info.local_bytes > 0 && info.symmetric_bytes > 0 && info.handle_bytes > 0);
  assert_int_equal(info.rows_max, 4 * 9);
  void *workspace = aligned_alloc(64, (size_t)info.local_bytes);
  config.workspace = workspace;
  config.workspace_bytes = info.local_bytes - 1;
  assert_int_equal(weft_ep_plan_create(NULL, &config, &plan), WEFT_ERR_WORKSPACE);
  config.workspace_bytes = info.local_bytes;
  assert_int_equal(weft_ep_plan_create(NULL, &config, &plan), WEFT_OK);
  assert_int_equal(weft_ep_plan_info_get(plan, &small), WEFT_OK);
  assert_int_equal(small.local_bytes, info.local_bytes);
  assert_int_equal(weft_ep_plan_destroy(plan), WEFT_OK);
  free(workspace);
  /* a GPU's plan is laid out without one */
  machine.arch = "sm90";
  assert_int_equal(weft_ep_plan_query(&config, &machine, &info), WEFT_OK);
  assert_true(info.local_bytes > 0 && info.symmetric_bytes > 0 && info.handle_bytes > 0);
  assert_int_equal(info.rows_max, 4 * 9);
  machine.arch = "sm100";
  assert_int_equal(weft_ep_plan_query(&config, &machine, &info), WEFT_ERR_UNSUPPORTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank),
      cmocka_unit_test(four_ranks),
      cmocka_unit_test(calls_allocate_nothing),
  };
  return cmocka_run_group_tests_name("ep without memory", tests, NULL, NULL);
}
