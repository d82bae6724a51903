/* Without a usable GPU everything that asks for one says so, and touches nothing. Skipped (77)
 * where there is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

static void memory(void **state) {
  (void)state;
  int somewhere = 0, word = 0;
  void *pointer = &somewhere;
  assert_int_equal(weft_memory_alloc(-1, 64, NULL), WEFT_ERR_ARGUMENT);
  assert_int_equal(weft_memory_alloc(-1, 0, &pointer), WEFT_ERR_ARGUMENT);
  assert_non_null(strstr(weft_last_error(), "bytes is 0"));
  pointer = &somewhere;
  assert_int_equal(weft_memory_alloc(-1, 64, &pointer), WEFT_ERR_UNSUPPORTED);
  assert_null(pointer);
  assert_int_equal(weft_memory_alloc(3, 64, &pointer), WEFT_ERR_UNSUPPORTED);
  assert_int_equal(weft_memory_copy(0, &word, &somewhere, -1, NULL), WEFT_ERR_ARGUMENT);
  assert_int_equal(weft_memory_copy(0, NULL, &somewhere, 4, NULL), WEFT_ERR_ARGUMENT);
  assert_int_equal(weft_memory_copy(0, &word, &somewhere, 4, NULL), WEFT_ERR_UNSUPPORTED);
  assert_int_equal(weft_memory_free(0, &somewhere), WEFT_ERR_UNSUPPORTED);
  assert_int_equal(weft_memory_free(0, NULL), WEFT_OK);
  assert_int_equal(weft_memory_synchronize(-1, NULL), WEFT_ERR_UNSUPPORTED);
}

static void plan(void **state) {
  (void)state;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_plan *plan = (weft_ce_plan *)state;
  config.max_tokens = 8;
  config.hidden = 16;
  config.vocab = config.vocab_local = 32;
  config.dtype = WEFT_BF16;
  config.device = WEFT_DEVICE_CUDA;
  assert_int_equal(weft_ce_plan_create(NULL, &config, &plan), WEFT_ERR_UNSUPPORTED);
  assert_null(plan);
  assert_true(strlen(weft_last_error()) > 0);
}

static void team(void **state) {
  (void)state;
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm *comm = NULL;
  config.device = WEFT_DEVICE_CUDA;
  assert_int_equal(weft_comm_create_inproc(&config, &comm), WEFT_ERR_UNSUPPORTED);
  assert_null(comm);
}

int main(void) {
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  if (weft_system_info_get(&info) != WEFT_OK) return 1;
  if (info.cuda_available) {
    printf("skipped: there is a GPU: %s\n", info.cuda_reason);
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(memory), cmocka_unit_test(plan),
                                     cmocka_unit_test(team)};
  return cmocka_run_group_tests_name("no GPU", tests, NULL, NULL);
}
