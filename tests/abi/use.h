/* A program's view of the header, for every dialect: included twice, each _INIT macro used, every
 * function called by its prototype. functions.h is written by header.sh and lists them. */
#include <weft/weft.h>

typedef void (*any_function)(void);

#define ADDRESS(name) (any_function) name,
static const any_function functions[] = {
#include "functions.h"
    0};

int main(void) {
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  weft_exchange exchange = WEFT_EXCHANGE_INIT;
  weft_comm_info comm = WEFT_COMM_INFO_INIT;
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info plan = WEFT_CE_PLAN_INFO_INIT;
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  weft_ep_config ep_config = WEFT_EP_CONFIG_INIT;
  weft_ep_machine ep_machine = WEFT_EP_MACHINE_INIT;
  weft_ep_plan_info ep_plan = WEFT_EP_PLAN_INFO_INIT;
  weft_ep_dispatch_args dispatch = WEFT_EP_DISPATCH_ARGS_INIT;
  weft_ep_combine_args combine = WEFT_EP_COMBINE_ARGS_INIT;
  weft_ep_stats stats = WEFT_EP_STATS_INIT;
  int used = info.size && world.size && exchange.size && comm.size && error.size && config.size &&
             machine.size && plan.size && args.size && ep_config.size && ep_machine.size &&
             ep_plan.size && dispatch.size && combine.size && stats.size && functions[0] != 0;
  return used && weft_status_string(WEFT_OK) && weft_version() == WEFT_VERSION_NUMBER ? 0 : 1;
}
