/* Calls of all ranks of a desk, one after the other, and checks of all of them. For one program:
 * what was found wrong last is in `why`. */
#ifndef WEFT_TESTS_GPU_EP_ISSUE_H
#define WEFT_TESTS_GPU_EP_ISSUE_H

#include "ep_desk.h"

static char why[256];

static weft_comm *worlds[EP_RANKS + 1][EP_RANKS];

static weft_comm **world_of(int64_t ranks) {
  if (worlds[ranks][0] == NULL) desk_world(ranks, 3000, worlds[ranks]);
  return worlds[ranks];
}

/* Issues one call on every rank; the first bad status, or WEFT_OK. */
enum call { SEND_DISPATCH, RECEIVE_DISPATCH, DISPATCH, SEND_COMBINE, RECEIVE_COMBINE, COMBINE };

static weft_status issue_rank(struct desk *d, int64_t r, enum call call, int set, int variant) {
  const weft_ep_dispatch_args a = desk_dispatch_args(d, r, set, variant);
  const weft_ep_combine_args m = desk_combine_args(d, r, set, variant);
  weft_ep_handle *const handle = d->rank[r].set[set].handle;
  switch (call) {
  case SEND_DISPATCH:
    return weft_ep_dispatch_send(handle, &a, NULL);
  case RECEIVE_DISPATCH:
    return weft_ep_dispatch_receive(handle, &a, NULL);
  case DISPATCH:
    return weft_ep_dispatch(handle, &a, NULL);
  case SEND_COMBINE:
    return weft_ep_combine_send(handle, &m, NULL);
  case RECEIVE_COMBINE:
    return weft_ep_combine_receive(handle, &m, NULL);
  default:
    return weft_ep_combine(handle, &m, NULL);
  }
}

static weft_status issue(struct desk *d, enum call call, int set, int variant) {
  weft_status first = WEFT_OK;
  for (int64_t r = 0; r < d->c[0].ranks; r++) {
    const weft_status status = issue_rank(d, r, call, set, variant);
    if (first == WEFT_OK) first = status;
  }
  return first;
}

/* WEFT_OK where no kernel found an error. */
static weft_status team_error(const struct desk *d) {
  weft_async_error error = WEFT_ASYNC_ERROR_INIT;
  if (weft_comm_async_error(d->rank[0].comm, &error) != WEFT_OK) return WEFT_ERR_SYSTEM;
  if (error.status != WEFT_OK) snprintf(why, sizeof why, "%.230s", error.message);
  return (weft_status)error.status;
}

static int received(struct desk *d, int set, int again) {
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    if (desk_check_received(d, r, set, again, why)) return 0;
  return 1;
}

static int combined(struct desk *d, int set, int weighted) {
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    if (desk_check_combined(d, r, set, weighted, -1, why)) return 0;
  return 1;
}

static void experts(struct desk *d, int set) {
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    desk_experts(d, r, set);
}

static void poison(struct desk *d, int set) {
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    desk_poison(d, r, set);
}

#endif
