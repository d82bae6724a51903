/* The program with a library that goes wrong: linked in place of weft_ce_step,
 * weft_ep_dispatch and weft_ep_combine, by the linker's wrap option. WEFT_TEST_FAULT says how. The
 * program must find each. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

weft_status __real_weft_ce_step(weft_ce_plan *plan, const weft_ce_args *args, void *stream);
weft_status __wrap_weft_ce_step(weft_ce_plan *plan, const weft_ce_args *args, void *stream);

weft_status __wrap_weft_ce_step(weft_ce_plan *plan, const weft_ce_args *args, void *stream) {
  static atomic_int calls;
  const char *fault = getenv("WEFT_TEST_FAULT");
  if (fault == NULL) return __real_weft_ce_step(plan, args, stream);
  if (!strcmp(fault, "nothing written")) return WEFT_OK;
  const weft_status status = __real_weft_ce_step(plan, args, stream);
  if (status != WEFT_OK) return status;
  float *dx = args->dx, *dw = args->dw;
  if (!strcmp(fault, "nll")) args->nll[3] += 1;
  if (!strcmp(fault, "lse")) args->lse[3] += 1;
  if (!strcmp(fault, "entropy")) args->entropy[3] += 1;
  if (!strcmp(fault, "dx")) dx[5] += 1;
  if (!strcmp(fault, "dw")) dw[5] += 1;
  /* The smallest change, on one rank only: no oracle sees it, the comparison of ranks must. */
  if (!strcmp(fault, "one rank") && atomic_fetch_add(&calls, 1) == 0) {
    unsigned char *byte = (unsigned char *)&args->lse[2];
    *byte ^= 1;
  }
  return WEFT_OK;
}

weft_status __real_weft_ep_dispatch(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                    void *stream);
weft_status __wrap_weft_ep_dispatch(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                    void *stream);
weft_status __real_weft_ep_combine(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                   void *stream);
weft_status __wrap_weft_ep_combine(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                   void *stream);

/* Changes the lowest bit of the first row that the rank's first expert received, on every rank. */
weft_status __wrap_weft_ep_dispatch(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                    void *stream) {
  const char *fault = getenv("WEFT_TEST_FAULT");
  const weft_status status = __real_weft_ep_dispatch(handle, args, stream);
  if (status != WEFT_OK || fault == NULL || args->counts[0] == 0) return status;
  if (!strcmp(fault, "row")) *(unsigned char *)args->recv_x ^= 1;
  if (!strcmp(fault, "count")) args->counts[0]--;
  return status;
}

/* Changes the lowest bit of one value of out: always, or in one call of all. */
weft_status __wrap_weft_ep_combine(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                   void *stream) {
  static atomic_int calls;
  const char *fault = getenv("WEFT_TEST_FAULT");
  const weft_status status = __real_weft_ep_combine(handle, args, stream);
  if (status != WEFT_OK || fault == NULL) return status;
  unsigned char *out = args->out;
  if (!strcmp(fault, "out")) out[6] ^= 1;
  if (!strcmp(fault, "one call") && atomic_fetch_add(&calls, 1) == 3) out[6] ^= 1;
  return status;
}
