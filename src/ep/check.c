/* Config and argument checks. */
#include "ep/check.h"

#include <inttypes.h>
#include <stdint.h>

#include "core/error.h"
#include "core/spans.h"
#include "core/structs.h"

static weft_status within(const char *name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return WEFT_OK;
  return weft__fail(WEFT_ERR_ARGUMENT, "config.%s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                    name, value, least, most);
}

static weft_status check_sizes(const weft_ep_config *c, int64_t ranks) {
  WEFT__TRY(within("tokens_max", c->tokens_max, 0, WEFT_EP_TOKENS_MAX));
  WEFT__TRY(within("hidden", c->hidden, 8, 1 << 24));
  if (c->hidden % 8 != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.hidden is %" PRId64 ", expected a multiple of 8",
                      c->hidden);
  WEFT__TRY(within("experts", c->experts, 1, WEFT_EP_EXPERTS_MAX));
  if (c->experts % ranks != 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "config.experts is %" PRId64 ", expected a multiple of the %" PRId64 " ranks",
                      c->experts, ranks);
  WEFT__TRY(within("topk", c->topk, 1, WEFT_EP_TOPK_MAX));
  WEFT__TRY(within("timeout_ms", c->timeout_ms, 0, INT64_MAX));
  WEFT__TRY(within("workspace_bytes", c->workspace_bytes, 0, INT64_MAX));
  return within("max_sms", c->max_sms, 0, INT32_MAX);
}

weft_status weft__ep_config_check(weft_ep_config *out, const weft_ep_config *in, int64_t ranks) {
  const weft_ep_config defaults = WEFT_EP_CONFIG_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "config"));
  WEFT__TRY(check_sizes(out, ranks));
  if (out->dtype != WEFT_BF16 && out->dtype != WEFT_E4M3)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.dtype is %d, expected WEFT_BF16 or WEFT_E4M3",
                      out->dtype);
  WEFT__TRY(within("layout", out->layout, WEFT_EP_SLAB, WEFT_EP_PACKED));
  WEFT__TRY(within("alignment", out->alignment, 1, out->layout == WEFT_EP_PACKED ? 4096 : 1));
  WEFT__TRY(within("scale_format", out->scale_format, WEFT_EP_SCALE_F32, WEFT_EP_SCALE_UE8M0));
  WEFT__TRY(within("scale_order", out->scale_order, WEFT_EP_ROW_MAJOR, WEFT_EP_COLUMN_MAJOR));
  if (out->dtype == WEFT_BF16 && (out->scale_format != 0 || out->scale_order != 0))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "config.scale_format is %d, scale_order %d, expected 0: bf16 has no scales",
                      out->scale_format, out->scale_order);
  WEFT__TRY(within("fence", out->fence, WEFT_EP_FENCE_ON, WEFT_EP_FENCE_WIDE));
  WEFT__TRY(within("reserved", out->reserved, 0, 0));
  if (out->topk_dtype != WEFT_I32 && out->topk_dtype != WEFT_I64)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.topk_dtype is %d, expected WEFT_I64 or WEFT_I32",
                      out->topk_dtype);
  WEFT__TRY(within("masking", out->masking, 0, 1));
  WEFT__TRY(within("zero_copy", out->zero_copy, 0, 1));
  WEFT__TRY(within("device", out->device, WEFT_DEVICE_AUTO, WEFT_DEVICE_CUDA));
  if (out->workspace != NULL && (uintptr_t)out->workspace % 64 != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.workspace is %p, expected 64-byte alignment",
                      out->workspace);
  return WEFT_OK;
}

/* ---- Call arguments ---- */

static int64_t expert_at(const weft_ep_config *c, const void *topk_idx, int64_t at) {
  return c->topk_dtype == WEFT_I32 ? ((const int32_t *)topk_idx)[at]
                                   : ((const int64_t *)topk_idx)[at];
}

/* Experts are in range, and none stands twice in a token. Host memory. */
static weft_status check_experts(const weft_ep_config *c, const void *topk_idx, int64_t tokens) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t k = 0; k < c->topk; k++) {
      const int64_t expert = expert_at(c, topk_idx, t * c->topk + k);
      if (expert == -1) continue;
      if (expert < -1 || expert >= c->experts)
        return weft__fail(WEFT_ERR_ARGUMENT,
                          "args.topk_idx[%" PRId64 "][%" PRId64 "] is %" PRId64
                          ", expected 0 to %" PRId64 ", or -1 for none",
                          t, k, expert, c->experts - 1);
      for (int64_t j = 0; j < k; j++)
        if (expert_at(c, topk_idx, t * c->topk + j) == expert)
          return weft__fail(WEFT_ERR_ARGUMENT,
                            "args.topk_idx[%" PRId64 "] names expert %" PRId64
                            " twice, expected each once",
                            t, expert);
    }
  return WEFT_OK;
}

static weft_status check_tokens(const weft_ep_dispatch_args *a, const weft_ep_handle *handle) {
  const weft_ep_config *c = &handle->plan->config;
  if (a->reuse != 0 && a->reuse != 1)
    return weft__fail(WEFT_ERR_ARGUMENT, "args.reuse is %d, expected 0 or 1", a->reuse);
  if (a->reserved != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "args.reserved is %d, expected 0", a->reserved);
  if (a->reuse && handle->routing == 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.reuse is 1, but the handle has no routing: expected a dispatch before");
  if (a->tokens < 0 || a->tokens > c->tokens_max)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.tokens is %" PRId64 ", expected 0 to the plan's tokens_max, %" PRId64,
                      a->tokens, c->tokens_max);
  if (a->reuse && a->tokens != handle->tokens)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.tokens is %" PRId64 ", expected the %" PRId64
                      " of the routing that args.reuse asks for",
                      a->tokens, handle->tokens);
  return WEFT_OK;
}

/* Rows that are copied in bulk. */
static weft_status check_aligned(const char *name, const void *pointer, int64_t row_bytes,
                                 int64_t alignment) {
  if (alignment == 0 ||
      ((uintptr_t)pointer % (uintptr_t)alignment == 0 && row_bytes % alignment == 0))
    return WEFT_OK;
  return weft__fail(WEFT_ERR_UNSUPPORTED,
                    "args.%s is %p with rows of %" PRId64
                    " bytes, expected rows aligned to %" PRId64 " bytes on a GPU",
                    name, pointer, row_bytes, alignment);
}

weft_status weft__ep_dispatch_check(weft_ep_dispatch_args *out, const weft_ep_dispatch_args *in,
                                    const weft_ep_handle *handle, int halves) {
  const weft_ep_plan *plan = handle->plan;
  const weft_ep_config *c = &plan->config;
  const weft_ep_plan_info *info = &plan->info;
  const weft_ep_dispatch_args defaults = WEFT_EP_DISPATCH_ARGS_INIT;
  const int64_t alignment = plan->backend->row_alignment;
  weft__span inputs[4], outputs[6];
  int ins = 0, outs = 0;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "args"));
  if (halves & WEFT__EP_SEND) {
    WEFT__TRY(check_tokens(out, handle));
    WEFT__TRY(
        weft__span_rows("x", out->x, out->tokens, out->x_stride, c->hidden, 2, &inputs[ins++]));
    if (out->x_stride == 0) out->x_stride = c->hidden;
    WEFT__TRY(check_aligned("x", out->x, out->x_stride * 2, alignment));
    if (!out->reuse) {
      WEFT__TRY(weft__span_array("topk_idx", out->topk_idx, out->tokens * c->topk,
                                 c->topk_dtype == WEFT_I32 ? 4 : 8, true, &inputs[ins++]));
      /* a GPU's kernels look at theirs */
      if (alignment == 0) WEFT__TRY(check_experts(c, out->topk_idx, out->tokens));
    }
    WEFT__TRY(weft__span_array("topk_weights", out->topk_weights, out->tokens * c->topk, 4, false,
                               &inputs[ins++]));
  }
  if (halves & WEFT__EP_RECEIVE) {
    const int64_t experts = info->experts_local;
    WEFT__TRY(check_aligned("recv_x", out->recv_x, alignment, alignment));
    WEFT__TRY(weft__span_array("recv_x", out->recv_x, info->rows_max * c->hidden,
                               c->dtype == WEFT_E4M3 ? 1 : 2, true, &outputs[outs++]));
    WEFT__TRY(weft__span_array("recv_scales", out->recv_scales, info->scale_bytes / 4, 4,
                               c->dtype == WEFT_E4M3, &outputs[outs++]));
    WEFT__TRY(weft__span_array("recv_weights", out->recv_weights, info->rows_max, 4, false,
                               &outputs[outs++]));
    WEFT__TRY(weft__span_array("counts", out->counts, experts, 8, false, &outputs[outs++]));
    WEFT__TRY(weft__span_array("offsets", out->offsets, experts + 1, 8, false, &outputs[outs++]));
    WEFT__TRY(weft__span_array("source_counts", out->source_counts, experts * plan->ranks, 8, false,
                               &outputs[outs++]));
  }
  return weft__spans_apart(outputs, outs, inputs, ins, c->workspace, plan->info.local_bytes);
}

weft_status weft__ep_combine_check(weft_ep_combine_args *out, const weft_ep_combine_args *in,
                                   const weft_ep_handle *handle, int halves) {
  const weft_ep_plan *plan = handle->plan;
  const weft_ep_config *c = &plan->config;
  const weft_ep_combine_args defaults = WEFT_EP_COMBINE_ARGS_INIT;
  const int64_t alignment = plan->backend->row_alignment;
  weft__span inputs[3], outputs[2];
  int ins = 0, outs = 0;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "args"));
  if ((halves & WEFT__EP_SEND) && handle->routing == 0)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "the handle has no routing to combine by: expected a dispatch before");
  if (halves & WEFT__EP_SEND) {
    WEFT__TRY(check_aligned("y", out->y, alignment, alignment));
    WEFT__TRY(
        weft__span_array("y", out->y, plan->info.rows_max * c->hidden, 2, true, &inputs[ins++]));
    WEFT__TRY(weft__span_array("row_gradient", out->row_gradient, plan->info.rows_max, 4, false,
                               &inputs[ins++]));
  }
  if (halves & WEFT__EP_RECEIVE) {
    const int64_t slots = handle->tokens * c->topk;
    WEFT__TRY(weft__span_array("topk_weights", out->topk_weights, slots, 4, false, &inputs[ins++]));
    WEFT__TRY(weft__span_rows("out", out->out, handle->tokens, out->out_stride, c->hidden, 2,
                              &outputs[outs++]));
    if (out->out_stride == 0) out->out_stride = c->hidden;
    WEFT__TRY(check_aligned("out", out->out, out->out_stride * 2, alignment));
    WEFT__TRY(weft__span_array("weight_gradient", out->weight_gradient, slots, 4, false,
                               &outputs[outs++]));
  }
  return weft__spans_apart(outputs, outs, inputs, ins, c->workspace, plan->info.local_bytes);
}
