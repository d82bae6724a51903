/* The calls: check what this rank passes, number the operation, run the backend's halves. */
#include <inttypes.h>

#include "core/error.h"
#include "ep/check.h"

enum { SEQUENCE_BITS = 32 };

/* After a reset of the team nothing that was in flight will come any more. */
static void look_for_reset(weft_ep_plan *plan, weft_ep_handle *handle) {
  if (plan->comm != NULL && plan->comm->transport->resets != NULL) {
    const int64_t resets = plan->comm->transport->resets(plan->comm);
    if (resets != plan->resets) {
      plan->resets = resets;
      plan->flights = 0;
      plan->sequence = 0;
    }
  }
  if (handle->resets != plan->resets) handle->flight.kind = WEFT__EP_NONE;
  handle->resets = plan->resets;
}

static weft_status enter(weft_ep_handle *handle, const char *call) {
  if (handle == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "%s: handle is NULL", call);
  if (atomic_exchange(&handle->plan->busy, 1) != 0)
    return weft__fail(WEFT_ERR_BUSY, "%s: another call of this plan is running", call);
  look_for_reset(handle->plan, handle);
  return WEFT_OK;
}

static void leave(weft_ep_handle *handle) {
  atomic_store(&handle->plan->busy, 0);
}

/* Refusals that every rank comes to, since all issue the same operations: peers are not told. */
static weft_status check_flights(const weft_ep_handle *handle, const char *call) {
  if (handle->flight.kind != WEFT__EP_NONE)
    return weft__fail(WEFT_ERR_BUSY, "%s: an operation of this handle is in flight", call);
  if (handle->plan->flights >= WEFT__EP_FLIGHTS)
    return weft__fail(WEFT_ERR_BUSY, "%s: %d operations of this plan are in flight, expected fewer",
                      call, WEFT__EP_FLIGHTS);
  return WEFT_OK;
}

static void number(weft_ep_plan *plan, weft__ep_operation *operation) {
  operation->number = plan->resets << SEQUENCE_BITS | ++plan->sequence;
}

/* After the receive half, whatever became of it. */
static void settle(weft_ep_handle *handle, const weft__ep_operation *operation, int64_t tokens,
                   weft_status status) {
  if (operation->kind != WEFT__EP_DISPATCH || operation->routing != 0) return;
  handle->routing = status == WEFT_OK ? operation->number : 0;
  handle->tokens = status == WEFT_OK ? tokens : 0;
}

/* `own` is the status of this rank's checks. */
static weft_status send(weft_ep_handle *handle, weft__ep_operation operation,
                        const weft__ep_args *args, weft_status own, const char *call) {
  weft_ep_plan *const plan = handle->plan;
  number(plan, &operation);
  WEFT__TRY(plan->backend->send(handle, &operation, args, own, call));
  handle->flight = operation;
  handle->flight_tokens =
      operation.kind == WEFT__EP_DISPATCH ? args->dispatch.tokens : handle->tokens;
  plan->flights++;
  return WEFT_OK;
}

static weft_status receive(weft_ep_handle *handle, const weft__ep_args *args, const char *call) {
  weft_ep_plan *const plan = handle->plan;
  const weft__ep_operation flight = handle->flight;
  const weft_status status = plan->backend->receive(handle, args, call);
  handle->flight.kind = WEFT__EP_NONE;
  plan->flights--;
  settle(handle, &flight, handle->flight_tokens, status);
  return status;
}

static weft_status both(weft_ep_handle *handle, weft__ep_operation operation,
                        const weft__ep_args *args, weft_status own, const char *call) {
  weft_ep_plan *const plan = handle->plan;
  number(plan, &operation);
  const weft_status status = plan->backend->both(handle, &operation, args, own, call);
  if (own == WEFT_OK) settle(handle, &operation, args->dispatch.tokens, status);
  return status;
}

static weft_status expect_flight(const weft_ep_handle *handle, weft__ep_kind kind,
                                 const char *call) {
  if (handle->flight.kind == (int32_t)kind) return WEFT_OK;
  return weft__fail(WEFT_ERR_ARGUMENT,
                    "%s: the handle has no such operation in flight, expected its send half before",
                    call);
}

static weft__ep_operation dispatch_of(const weft_ep_handle *handle,
                                      const weft_ep_dispatch_args *args) {
  const weft__ep_operation operation = {0, args->reuse ? handle->routing : 0, WEFT__EP_DISPATCH,
                                        args->topk_weights != NULL};
  return operation;
}

static weft__ep_operation combine_of(const weft_ep_handle *handle,
                                     const weft_ep_combine_args *args) {
  const weft__ep_operation operation = {0, handle->routing, WEFT__EP_COMBINE,
                                        args->row_gradient != NULL};
  return operation;
}

static weft_status run(weft_ep_handle *handle, weft__ep_kind kind,
                       const weft_ep_dispatch_args *dispatch, const weft_ep_combine_args *combine,
                       void *stream, int halves, const char *call) {
  const int whole = WEFT__EP_SEND | WEFT__EP_RECEIVE;
  weft__ep_args args;
  weft__ep_operation operation;
  WEFT__TRY(enter(handle, call));
  weft_status status =
      halves & WEFT__EP_SEND ? check_flights(handle, call) : expect_flight(handle, kind, call);
  if (status != WEFT_OK) goto done;
  if (kind == WEFT__EP_DISPATCH) {
    status = weft__ep_dispatch_check(&args.dispatch, dispatch, handle, halves);
    operation = dispatch_of(handle, &args.dispatch);
  } else {
    status = weft__ep_combine_check(&args.combine, combine, handle, halves);
    operation = combine_of(handle, &args.combine);
  }
  args.stream = stream;
  if (status == WEFT_OK) status = handle->plan->backend->check(handle->plan, stream);
  if (halves == whole && handle->plan->backend->both != NULL) {
    status = both(handle, operation, &args, status, call);
    goto done;
  }
  if (halves & WEFT__EP_SEND) status = send(handle, operation, &args, status, call);
  if (status == WEFT_OK && (halves & WEFT__EP_RECEIVE)) status = receive(handle, &args, call);
done:
  leave(handle);
  return status;
}

weft_status weft_ep_dispatch(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                             void *stream) {
  return run(handle, WEFT__EP_DISPATCH, args, NULL, stream, WEFT__EP_SEND | WEFT__EP_RECEIVE,
             "ep_dispatch");
}

weft_status weft_ep_dispatch_send(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                  void *stream) {
  return run(handle, WEFT__EP_DISPATCH, args, NULL, stream, WEFT__EP_SEND, "ep_dispatch_send");
}

weft_status weft_ep_dispatch_receive(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                     void *stream) {
  return run(handle, WEFT__EP_DISPATCH, args, NULL, stream, WEFT__EP_RECEIVE,
             "ep_dispatch_receive");
}

weft_status weft_ep_combine(weft_ep_handle *handle, const weft_ep_combine_args *args,
                            void *stream) {
  return run(handle, WEFT__EP_COMBINE, NULL, args, stream, WEFT__EP_SEND | WEFT__EP_RECEIVE,
             "ep_combine");
}

weft_status weft_ep_combine_send(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                 void *stream) {
  return run(handle, WEFT__EP_COMBINE, NULL, args, stream, WEFT__EP_SEND, "ep_combine_send");
}

weft_status weft_ep_combine_receive(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                    void *stream) {
  return run(handle, WEFT__EP_COMBINE, NULL, args, stream, WEFT__EP_RECEIVE, "ep_combine_receive");
}
