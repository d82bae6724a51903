/* Teams: worlds in this process, over the caller's exchange (two functions of Python's) or over
 * NVSHMEM; their parts; what they say of themselves, as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handles.h"
#include "tensors.h"
#include "text.h"

/* Two functions of the caller's, kept for the life of a world. They take addresses and a size, and
 * return 0 for success. */
typedef struct exchange_functions {
  void *allgather, *barrier;
} exchange_functions;

static void free_exchange(void *extra) {
  exchange_functions *e = (exchange_functions *)extra;
  if (e == NULL) return;
  TVMFFIObjectDecRef(e->allgather);
  TVMFFIObjectDecRef(e->barrier);
  free(e);
}

static int call_back(void *function, ffi_any *args, int32_t count) {
  ffi_any result = {FFI_NONE, 0, {0}};
  if (TVMFFIFunctionCall(function, args, count, &result) != 0) {
    void *error = NULL; /* the caller's function keeps what it has to say */
    TVMFFIErrorMoveFromRaised(&error);
    if (error != NULL) TVMFFIObjectDecRef(error);
    return -1;
  }
  if (result.type == FFI_INT) return (int)result.u.integer;
  if (result.type >= FFI_STRING - 1) TVMFFIObjectDecRef(result.u.object);
  return result.type == FFI_NONE ? 0 : -1;
}

static int exchange_allgather(void *user, const void *send, void *recv, size_t bytes) {
  ffi_any args[3];
  give_int(&args[0], (int64_t)(intptr_t)send);
  give_int(&args[1], (int64_t)(intptr_t)recv);
  give_int(&args[2], (int64_t)bytes);
  return call_back(((exchange_functions *)user)->allgather, args, 3);
}

static int exchange_barrier(void *user) {
  return call_back(((exchange_functions *)user)->barrier, NULL, 0);
}

/* ranks, hosts, arena_bytes, timeout_ms, device */
static weft_world_config take_world(ffi_call *call) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  config.ranks = take_int(call, "ranks");
  config.hosts = take_int(call, "hosts");
  config.arena_bytes = take_int(call, "arena_bytes");
  config.timeout_ms = take_int(call, "timeout_ms");
  config.device = take_int32(call, "device");
  return config;
}

static weft_status destroy(void *comm) {
  return weft_comm_destroy((weft_comm *)comm);
}

/* Gives a new team out by its number, or destroys it again. */
static weft_status keep(ffi_call *call, weft_status status, weft_comm *comm, ffi_any *result) {
  if (status != WEFT_OK) return status;
  const int64_t number = handle_keep(call, COMM, comm, NULL, NULL);
  if (number == 0) weft_comm_destroy(comm);
  give_int(result, number);
  return WEFT_OK;
}

EXPORT(comm_create_inproc) { /* world…, handles: an int64 array that gets a handle for each rank */
  CALL("comm_create_inproc");
  weft_world_config config = take_world(call);
  const dl_tensor *out = take_tensor(call, "handles");
  const tensor_rule rule = {"handles", 1, {config.ranks, 0, 0}, WEFT_I64, {DL_CPU, 0}};
  int64_t *numbers = (int64_t *)tensor_address(call, out, &rule, NULL);
  weft_comm **comms = NULL;
  weft_status status = WEFT_OK;
  if (taken(call) && config.ranks > 0 && numbers == NULL)
    raise_error(call, "TypeError", "comm_create_inproc: handles is None, expected an array");
  if (!call->failed) {
    comms = (weft_comm **)calloc(config.ranks > 0 ? (size_t)config.ranks : 1, sizeof *comms);
    if (comms == NULL)
      raise_error(call, "MemoryError", "comm_create_inproc: no memory for handles");
  }
  if (!call->failed) status = weft_comm_create_inproc(&config, comms);
  if (!call->failed && status == WEFT_OK)
    for (int64_t i = 0; i < config.ranks; i++) {
      numbers[i] = handle_keep(call, COMM, comms[i], NULL, NULL);
      if (numbers[i] == 0) weft_comm_destroy(comms[i]);
    }
  free(comms);
  return finish(call, status);
}

EXPORT(comm_create_external) { /* world…, rank, allgather(send, recv, bytes), barrier() */
  CALL("comm_create_external");
  weft_world_config config = take_world(call);
  weft_exchange exchange = WEFT_EXCHANGE_INIT;
  weft_comm *comm = NULL;
  exchange.rank = take_int(call, "rank");
  exchange_functions functions = {take_function(call, "allgather"), take_function(call, "barrier")};
  exchange_functions *kept = taken(call) ? (exchange_functions *)malloc(sizeof *kept) : NULL;
  if (kept == NULL) {
    raise_error(call, "MemoryError", "comm_create_external: no memory for an exchange");
    return finish(call, WEFT_OK);
  }
  *kept = functions;
  TVMFFIObjectIncRef(kept->allgather);
  TVMFFIObjectIncRef(kept->barrier);
  exchange.user = kept;
  exchange.allgather = exchange_allgather;
  exchange.barrier = exchange_barrier;
  const weft_status status = weft_comm_create_external(&config, &exchange, &comm);
  const int64_t number = status == WEFT_OK ? handle_keep(call, COMM, comm, kept, free_exchange) : 0;
  if (number == 0) {
    weft_comm_destroy(comm);
    free_exchange(kept);
  }
  give_int(result, number);
  return finish(call, status);
}

EXPORT(comm_unique_id) { /* → bytes */
  CALL("comm_unique_id");
  weft_unique_id id;
  weft_status status = WEFT_OK;
  memset(&id, 0, sizeof id);
  if (taken(call)) status = weft_unique_id_create(&id);
  const ffi_bytes view = {(const char *)id.bytes, sizeof id.bytes};
  if (!call->failed && status == WEFT_OK && TVMFFIBytesFromByteArray(&view, result) != 0)
    call->failed = true;
  return finish(call, status);
}

EXPORT(comm_create_nvshmem) { /* world…, unique id, rank */
  CALL("comm_create_nvshmem");
  weft_world_config config = take_world(call);
  const ffi_bytes text = take_text(call, "unique_id");
  const int64_t rank = take_int(call, "rank");
  weft_unique_id id;
  weft_comm *comm = NULL;
  weft_status status = WEFT_OK;
  if (!call->failed && text.size != sizeof id.bytes)
    raise_error(call, "ValueError", "comm_create_nvshmem: unique_id has %zu bytes, expected %zu",
                text.size, sizeof id.bytes);
  if (taken(call)) {
    memcpy(id.bytes, text.data, sizeof id.bytes);
    status = keep(call, weft_comm_create_nvshmem(&config, &id, rank, &comm), comm, result);
  }
  return finish(call, status);
}

EXPORT(comm_split_stride) { /* parent, start, stride, ranks */
  CALL("comm_split_stride");
  weft_comm *parent = (weft_comm *)take_handle(call, "parent", COMM), *team = NULL;
  const int64_t start = take_int(call, "start"), stride = take_int(call, "stride"),
                ranks = take_int(call, "ranks");
  weft_status status = WEFT_OK;
  if (taken(call)) {
    status = weft_comm_split_stride(parent, start, stride, ranks, &team);
    status = keep(call, status, team, result);
  }
  return finish(call, status);
}

EXPORT(comm_split_list) { /* parent, members: an int64 array */
  CALL("comm_split_list");
  weft_comm *parent = (weft_comm *)take_handle(call, "parent", COMM), *team = NULL;
  const dl_tensor *members = take_tensor(call, "members");
  const int64_t ranks = tensor_rows(call, members, "members", 1);
  const tensor_rule rule = {"members", 1, {ranks, 0, 0}, WEFT_I64, {DL_CPU, 0}};
  const int64_t *list = (const int64_t *)tensor_address(call, members, &rule, NULL);
  weft_status status = WEFT_OK;
  if (taken(call)) {
    status = weft_comm_split_list(parent, list, ranks, &team);
    status = keep(call, status, team, result);
  }
  return finish(call, status);
}

EXPORT(comm_info) { /* team → JSON */
  CALL("comm_info");
  weft_comm *comm = (weft_comm *)take_handle(call, "team", COMM);
  weft_comm_info i = WEFT_COMM_INFO_INIT;
  char text[768];
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_comm_info_get(comm, &i);
  if (call->failed || status != WEFT_OK) return finish(call, status);
  snprintf(text, sizeof text,
           "{\"rank\":%" PRId64 ",\"ranks\":%" PRId64 ",\"world_rank\":%" PRId64
           ",\"world_ranks\":%" PRId64 ",\"host\":%" PRId64 ",\"hosts\":%" PRId64
           ",\"local_rank\":%" PRId64 ",\"local_ranks\":%" PRId64 ",\"ranks_per_host\":%" PRId64
           ",\"timeout_ms\":%" PRId64 ",\"device\":%d,\"gpu\":%d,\"transport\":\"%s\"}",
           i.rank, i.ranks, i.world_rank, i.world_ranks, i.host, i.hosts, i.local_rank,
           i.local_ranks, i.ranks_per_host, i.timeout_ms, i.device, i.gpu, i.transport);
  give_text(call, result, text);
  return finish(call, WEFT_OK);
}

EXPORT(comm_async_error) { /* team → JSON */
  CALL("comm_async_error");
  weft_comm *comm = (weft_comm *)take_handle(call, "team", COMM);
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_comm_async_error(comm, &error);
  if (!call->failed && status == WEFT_OK) give_async_error(call, result, &error);
  return finish(call, status);
}

/* Calls that take a team alone. */
static int with_team(ffi_call *call, weft_status (*act)(weft_comm *)) {
  weft_comm *comm = (weft_comm *)take_handle(call, "team", COMM);
  return finish(call, taken(call) ? act(comm) : WEFT_OK);
}

EXPORT(comm_barrier) {
  CALL("comm_barrier");
  return with_team(call, weft_comm_barrier);
}

EXPORT(comm_abort) {
  CALL("comm_abort");
  return with_team(call, weft_comm_abort);
}

EXPORT(comm_reset) {
  CALL("comm_reset");
  return with_team(call, weft_comm_reset);
}

EXPORT(comm_destroy) {
  CALL("comm_destroy");
  take_handle(call, "team", COMM);
  return finish(call, taken(call) ? handle_destroy(call, destroy) : WEFT_OK);
}

EXPORT(group_start) {
  CALL("group_start");
  return finish(call, taken(call) ? weft_group_start() : WEFT_OK);
}

EXPORT(group_end) {
  CALL("group_end");
  return finish(call, taken(call) ? weft_group_end() : WEFT_OK);
}
