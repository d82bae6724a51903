/* The layout of the public structs on teams: fields never move, structs grow only at the end, and
 * each _INIT macro gives its struct's size and the documented defaults. 64-bit machines. */
#include "check.h"

#define AT(type, field, offset) assert_int_equal(offsetof(type, field), (offset))

static void test_world_config(void **state) {
  (void)state;
  AT(weft_world_config, size, 0);
  AT(weft_world_config, ranks, 8);
  AT(weft_world_config, hosts, 16);
  AT(weft_world_config, arena_bytes, 24);
  AT(weft_world_config, timeout_ms, 32);
  AT(weft_world_config, device, 40);
  AT(weft_world_config, reserved, 44);
  AT(weft_world_config, gpus, 48);
  assert_int_equal(sizeof(weft_world_config), 56);
  const weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  assert_int_equal(config.size, 56);
  assert_int_equal(config.ranks, 1);
  assert_int_equal(config.hosts, 1);
  assert_int_equal(config.arena_bytes, 0);
  assert_int_equal(config.timeout_ms, 0);
  assert_int_equal(config.device, WEFT_DEVICE_AUTO);
  assert_null(config.gpus);
}

static void test_exchange(void **state) {
  (void)state;
  AT(weft_exchange, size, 0);
  AT(weft_exchange, rank, 8);
  AT(weft_exchange, user, 16);
  AT(weft_exchange, allgather, 24);
  AT(weft_exchange, barrier, 32);
  assert_int_equal(sizeof(weft_exchange), 40);
  const weft_exchange exchange = WEFT_EXCHANGE_INIT;
  assert_int_equal(exchange.size, 40);
  assert_int_equal(exchange.rank, 0);
  assert_null(exchange.user);
  assert_true(exchange.allgather == NULL && exchange.barrier == NULL);
  assert_int_equal(sizeof(weft_unique_id), 256);
}

static void test_comm_info(void **state) {
  (void)state;
  AT(weft_comm_info, size, 0);
  AT(weft_comm_info, rank, 8);
  AT(weft_comm_info, ranks, 16);
  AT(weft_comm_info, world_rank, 24);
  AT(weft_comm_info, world_ranks, 32);
  AT(weft_comm_info, host, 40);
  AT(weft_comm_info, hosts, 48);
  AT(weft_comm_info, local_rank, 56);
  AT(weft_comm_info, local_ranks, 64);
  AT(weft_comm_info, ranks_per_host, 72);
  AT(weft_comm_info, timeout_ms, 80);
  AT(weft_comm_info, device, 88);
  AT(weft_comm_info, gpu, 92);
  AT(weft_comm_info, transport, 96);
  assert_int_equal(sizeof(weft_comm_info), 104);
  const weft_comm_info info = WEFT_COMM_INFO_INIT;
  assert_int_equal(info.size, 104);
}

static void test_async_error(void **state) {
  (void)state;
  AT(weft_async_error, size, 0);
  AT(weft_async_error, status, 8);
  AT(weft_async_error, reserved, 12);
  AT(weft_async_error, rank, 16);
  AT(weft_async_error, peer, 24);
  AT(weft_async_error, count, 32);
  AT(weft_async_error, message, 40);
  assert_int_equal(sizeof(weft_async_error), 272);
  const weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  assert_int_equal(error.size, 272);
  assert_int_equal(error.status, WEFT_OK);
  assert_int_equal(error.peer, -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_world_config),
      cmocka_unit_test(test_exchange),
      cmocka_unit_test(test_comm_info),
      cmocka_unit_test(test_async_error),
  };
  return cmocka_run_group_tests_name("comm/layout", tests, NULL, NULL);
}
