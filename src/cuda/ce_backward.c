/* Backward and step on a GPU. */
#include "core/error.h"
#include "cuda/ce.h"

weft_status weft__sm90_backward_load(weft_ce_plan *plan) {
  (void)plan;
  return weft__fail(WEFT_ERR_UNSUPPORTED, "gradients on a GPU: this version has forward alone");
}

weft_status weft__sm90_backward_layout(const weft_ce_config *config, int64_t sms, int64_t budget,
                                       weft__sm90_layout *layout, int64_t *least) {
  (void)sms;
  (void)budget;
  (void)layout;
  *least = 0;
  if (config->wants & (WEFT_CE_DX | WEFT_CE_DW))
    return weft__fail(WEFT_ERR_UNSUPPORTED, "gradients on a GPU: this version has forward alone");
  return WEFT_OK;
}

weft_status weft__sm90_backward(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream) {
  (void)plan;
  (void)args;
  (void)stream;
  return weft__fail(WEFT_ERR_UNSUPPORTED, "backward on a GPU: this version has forward alone");
}

/* A step that wants no gradient is a forward. */
weft_status weft__sm90_step(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream) {
  return weft__sm90_forward(plan, args, stream);
}
