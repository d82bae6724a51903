/* Config and argument checks, written as tables of what is expected where that is shorter. */
#include "ce/check.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/spans.h"
#include "core/structs.h"

int64_t weft__dtype_bytes(int dtype) {
  switch (dtype) {
  case WEFT_F32:
  case WEFT_I32:
    return 4;
  case WEFT_BF16:
  case WEFT_F16:
    return 2;
  case WEFT_I64:
    return 8;
  default:
    return 0;
  }
}

static weft_status at_least(const char *name, int64_t value, int64_t least) {
  if (value >= least) return WEFT_OK;
  return weft__fail(WEFT_ERR_ARGUMENT, "config.%s is %" PRId64 ", expected at least %" PRId64, name,
                    value, least);
}

static weft_status one_of(const char *name, int value, int a, int b, int c, const char *expected) {
  if (value == a || value == b || value == c) return WEFT_OK;
  return weft__fail(WEFT_ERR_ARGUMENT, "config.%s is %d, expected %s", name, value, expected);
}

/* Products of these stay far inside int64 and pointers can reach every element. */
static const int64_t largest_count = (int64_t)1 << 40;
static const int64_t largest_hidden = (int64_t)1 << 30;

static weft_status check_sizes(const weft_ce_config *c) {
  WEFT__TRY(at_least("max_tokens", c->max_tokens, 0));
  WEFT__TRY(at_least("hidden", c->hidden, 1));
  WEFT__TRY(at_least("vocab", c->vocab, 1));
  WEFT__TRY(at_least("vocab_start", c->vocab_start, 0));
  WEFT__TRY(at_least("vocab_local", c->vocab_local, 0));
  WEFT__TRY(at_least("workspace_budget", c->workspace_budget, 0));
  WEFT__TRY(at_least("workspace_bytes", c->workspace_bytes, 0));
  WEFT__TRY(at_least("max_sms", c->max_sms, 0));
  WEFT__TRY(at_least("threads", c->threads, 0));
  if (c->max_tokens > largest_count || c->vocab > largest_count || c->hidden > largest_hidden ||
      c->vocab_start > largest_count || c->vocab_local > largest_count)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "config: max_tokens %" PRId64 ", hidden %" PRId64 ", vocab %" PRId64
                      ", vocab_start %" PRId64 ", vocab_local %" PRId64
                      ": expected at most 2^40, hidden at most 2^30",
                      c->max_tokens, c->hidden, c->vocab, c->vocab_start, c->vocab_local);
  const double elements = (double)c->hidden * (double)(c->max_tokens + c->vocab_local);
  if (elements > (double)((int64_t)1 << 50))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "config: X and W hold %.3g elements, expected at most 2^50", elements);
  return WEFT_OK;
}

weft_status weft__ce_config_check(weft_ce_config *out, const weft_ce_config *in) {
  const weft_ce_config defaults = WEFT_CE_CONFIG_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "config"));
  WEFT__TRY(check_sizes(out));
  if (out->softcap != 0.0f && !weft__divides(out->softcap))
    return weft__fail(
        WEFT_ERR_ARGUMENT,
        "config.softcap is %g, expected a number above 0 with a finite reciprocal, or 0 for none",
        (double)out->softcap);
  const int all = WEFT_CE_ENTROPY | WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  if ((out->wants & ~all) != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.wants is 0x%x, expected bits of 0x%x",
                      (unsigned)out->wants, (unsigned)all);
  WEFT__TRY(one_of("dtype", out->dtype, WEFT_F32, WEFT_BF16, WEFT_F16,
                   "WEFT_F32, WEFT_BF16 or WEFT_F16"));
  if (out->w_dtype != WEFT_DTYPE_DEFAULT && out->w_dtype != out->dtype)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.w_dtype is %d and dtype is %d: X and W of different dtypes are not "
                      "supported",
                      out->w_dtype, out->dtype);
  out->w_dtype = out->dtype;
  WEFT__TRY(one_of("target_dtype", out->target_dtype, WEFT_I64, WEFT_I32, WEFT_I64,
                   "WEFT_I64 or WEFT_I32"));
  if (out->dx_dtype == WEFT_DTYPE_DEFAULT) out->dx_dtype = out->dtype;
  if (out->dw_dtype == WEFT_DTYPE_DEFAULT) out->dw_dtype = out->dtype;
  WEFT__TRY(one_of("dx_dtype", out->dx_dtype, out->dtype, WEFT_F32, WEFT_F32,
                   "WEFT_DTYPE_DEFAULT, the config's dtype or WEFT_F32"));
  WEFT__TRY(one_of("dw_dtype", out->dw_dtype, out->dtype, WEFT_F32, WEFT_F32,
                   "WEFT_DTYPE_DEFAULT, the config's dtype or WEFT_F32"));
  WEFT__TRY(one_of("dx_mode", out->dx_mode, WEFT_DX_ALL_REDUCE, WEFT_DX_REDUCE_SCATTER,
                   WEFT_DX_NONE, "a weft_dx_mode"));
  WEFT__TRY(one_of("deterministic", out->deterministic, 0, 1, 1, "0 or 1"));
  WEFT__TRY(one_of("device", out->device, WEFT_DEVICE_AUTO, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA,
                   "a weft_device"));
  if (out->x_sharded != 0 || out->bias != 0)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.x_sharded is %d, bias %d: these are reserved, expected 0",
                      out->x_sharded, out->bias);
  if (out->workspace != NULL && (uintptr_t)out->workspace % 64 != 0)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.workspace is %p, expected 64-byte alignment",
                      out->workspace);
  return WEFT_OK;
}

/* ---- Call arguments ---- */

weft_status weft__ce_args_check(weft_ce_args *out, const weft_ce_args *in, const weft_ce_plan *plan,
                                weft__ce_phase phase) {
  const weft_ce_config *c = &plan->config;
  const weft_ce_args defaults = WEFT_CE_ARGS_INIT;
  *out = defaults;
  WEFT__TRY(weft__struct_read(out, sizeof *out, in, sizeof *out, "args"));
  const int64_t m = out->tokens, h = c->hidden;
  if (m < 0 || m > c->max_tokens)
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.tokens is %" PRId64 ", expected 0 to the plan's max_tokens, %" PRId64,
                      m, c->max_tokens);
  if (phase == WEFT__STEP && !(c->wants & WEFT_CE_STEP))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "step: the plan's config.wants is 0x%x, without "
                      "WEFT_CE_STEP",
                      (unsigned)c->wants);
  if (phase == WEFT__BACKWARD && !(c->wants & (WEFT_CE_DX | WEFT_CE_DW)))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "backward: the plan's config.wants is 0x%x, with neither WEFT_CE_DX nor "
                      "WEFT_CE_DW",
                      (unsigned)c->wants);
  if ((out->entropy != NULL || out->g_entropy != NULL) && !(c->wants & WEFT_CE_ENTROPY))
    return weft__fail(WEFT_ERR_ARGUMENT, "args.entropy or g_entropy is given, but the plan's "
                                         "config.wants has no WEFT_CE_ENTROPY");
  const float t = out->temperature;
  if (out->temperature_ptr == NULL && !weft__divides(t))
    return weft__fail(WEFT_ERR_ARGUMENT,
                      "args.temperature is %g, expected a number above 0 with a finite reciprocal",
                      (double)t);
  if (out->dw_accumulate != 0 && out->dw_accumulate != 1)
    return weft__fail(WEFT_ERR_ARGUMENT, "args.dw_accumulate is %d, expected 0 or 1",
                      out->dw_accumulate);

  const bool loss = phase != WEFT__BACKWARD, gradients = phase != WEFT__FORWARD;
  const bool dx = gradients && (c->wants & WEFT_CE_DX), dw = gradients && (c->wants & WEFT_CE_DW);
  int64_t first = 0, last = m;
  if (c->dx_mode == WEFT_DX_REDUCE_SCATTER)
    weft__scatter_rows(m, plan->ranks, plan->rank, &first, &last);
  weft__span inputs[8], outputs[6];
  int ins = 0, outs = 0;
  WEFT__TRY(weft__span_rows("x", out->x, m, out->x_stride, h, weft__dtype_bytes(c->dtype),
                            &inputs[ins++]));
  WEFT__TRY(weft__span_rows("w", out->w, c->vocab_local, out->w_stride, h,
                            weft__dtype_bytes(c->dtype), &inputs[ins++]));
  WEFT__TRY(weft__span_array("target", out->target, m, weft__dtype_bytes(c->target_dtype), true,
                             &inputs[ins++]));
  WEFT__TRY(weft__span_array("stats", out->stats, m * 4, 4, phase == WEFT__BACKWARD,
                             loss ? &outputs[outs++] : &inputs[ins++]));
  WEFT__TRY(weft__span_array("temperature_ptr", out->temperature_ptr, 1, 4, false, &inputs[ins++]));
  if (gradients) {
    WEFT__TRY(weft__span_array("g_nll", out->g_nll, m, 4, false, &inputs[ins++]));
    WEFT__TRY(weft__span_array("g_entropy", out->g_entropy, m, 4, false, &inputs[ins++]));
    WEFT__TRY(weft__span_array("g_lse", out->g_lse, m, 4, false, &inputs[ins++]));
  }
  if (loss) {
    WEFT__TRY(weft__span_array("nll", out->nll, m, 4, false, &outputs[outs++]));
    WEFT__TRY(weft__span_array("lse", out->lse, m, 4, false, &outputs[outs++]));
    WEFT__TRY(weft__span_array("entropy", out->entropy, m, 4, false, &outputs[outs++]));
  }
  if (dx)
    WEFT__TRY(weft__span_rows("dx", out->dx, last - first, out->dx_stride, h,
                              weft__dtype_bytes(c->dx_dtype), &outputs[outs++]));
  if (dw)
    WEFT__TRY(weft__span_rows("dw", out->dw, c->vocab_local, out->dw_stride, h,
                              weft__dtype_bytes(c->dw_dtype), &outputs[outs++]));
  return weft__spans_apart(outputs, outs, inputs, ins, c->workspace, plan->info.local_bytes);
}
