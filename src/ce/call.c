/* The three calls: check what this rank passes, agree with the team, run the backend. */
#include <string.h>

#include "ce/check.h"
#include "core/error.h"

/* What must be the same on all ranks at each call. */
typedef struct call_header {
  int64_t tokens;
  int32_t phase, temperature_bits, dw_accumulate, gradients;
} call_header;

static const weft__field header_fields[] = {
    {"phase (0 forward, 1 backward, 2 step)", offsetof(call_header, phase), 4},
    {"tokens", offsetof(call_header, tokens), 8},
    {"temperature (bits)", offsetof(call_header, temperature_bits), 4},
    {"dw_accumulate", offsetof(call_header, dw_accumulate), 4},
    {"upstream gradients given (1 nll, 2 entropy, 4 lse)", offsetof(call_header, gradients), 4}};

static weft_status call(weft_ce_plan *plan, weft__ce_phase phase, const weft_ce_args *args,
                        void *stream, const char *name) {
  weft_ce_args checked;
  if (plan == NULL) return weft__fail(WEFT_ERR_ARGUMENT, "%s: plan is NULL", name);
  if (atomic_exchange(&plan->busy, 1) != 0)
    return weft__fail(WEFT_ERR_BUSY, "%s: another call of this plan is running", name);
  weft_status status = weft__ce_args_check(&checked, args, plan, phase);
  if (status == WEFT_OK) status = plan->backend->check(plan, &checked, stream);
  if (plan->comm != NULL && plan->backend->enqueues && plan->comm->transport->check != NULL) {
    if (status == WEFT_OK) status = plan->comm->transport->check(plan->comm, name);
  } else if (plan->comm != NULL) {
    call_header header = {checked.tokens, phase, 0, checked.dw_accumulate, 0};
    if (status == WEFT_OK && checked.temperature_ptr == NULL)
      memcpy(&header.temperature_bits, &checked.temperature, sizeof header.temperature_bits);
    if (phase != WEFT__FORWARD)
      header.gradients =
          (checked.g_nll != NULL) | (checked.g_entropy != NULL) << 1 | (checked.g_lse != NULL) << 2;
    status = weft__comm_agree(plan->comm, status, &header, sizeof header, header_fields,
                              sizeof header_fields / sizeof header_fields[0], name);
  }
  if (status == WEFT_OK) status = plan->backend->run(plan, phase, &checked, stream);
  atomic_store(&plan->busy, 0);
  return status;
}

weft_status weft_ce_forward(weft_ce_plan *plan, const weft_ce_args *args, void *stream) {
  return call(plan, WEFT__FORWARD, args, stream, "ce_forward");
}

weft_status weft_ce_backward(weft_ce_plan *plan, const weft_ce_args *args, void *stream) {
  return call(plan, WEFT__BACKWARD, args, stream, "ce_backward");
}

weft_status weft_ce_step(weft_ce_plan *plan, const weft_ce_args *args, void *stream) {
  return call(plan, WEFT__STEP, args, stream, "ce_step");
}
