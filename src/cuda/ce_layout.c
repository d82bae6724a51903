/* Sizes of the GPU backend's workspace, and a plan in words. Plain arithmetic: it needs no device,
 * so that a plan can be asked for on any machine. */
#include <inttypes.h>
#include <stdio.h>

#include "core/error.h"
#include "cuda/ce.h"

enum { ALIGNMENT = 256, NOMINAL_SMS = 132 };

/* Products of an H200's SM under sustained load, for orientation alone: TFLOP/s. */
static const double nominal_tflops = 5.3;

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t most_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static weft_status check_config(const weft_ce_config *c) {
  /* Coordinates of tensor copies are int32, and tiles reach over the edge. */
  const int64_t limit = (INT64_C(1) << 31) - 65536;
  if (c->dtype != WEFT_BF16 && c->dtype != WEFT_F16)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.dtype is %d, expected WEFT_BF16 or WEFT_F16 on a GPU", c->dtype);
  if (c->max_tokens > limit || c->vocab_local > limit)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.max_tokens is %" PRId64 " and vocab_local %" PRId64
                      ", expected less than 2^31 - 65536 on a GPU",
                      c->max_tokens, c->vocab_local);
  return WEFT_OK;
}

weft_status weft__sm90_layout_make(const weft_ce_config *config, int64_t sms, int64_t ranks,
                                   weft__sm90_layout *out, int64_t *least) {
  WEFT__TRY(check_config(config));
  *out = (weft__sm90_layout){0};
  if (config->max_sms > 0 && config->max_sms < sms) sms = config->max_sms;
  out->sms = most_of(sms / 2 * 2, 2);
  out->errors_bytes = aligned((int64_t)sizeof(struct forward_errors));
  out->stats_bytes =
      config->wants & WEFT_CE_STEP ? aligned(config->max_tokens * 4 * (int64_t)sizeof(float)) : 0;
  weft__sm90_forward_layout(config, out);
  out->forward_bytes = aligned(out->forward_bytes);
  weft__sm90_team_layout(config, ranks, out);
  const int64_t fixed = out->errors_bytes + out->stats_bytes + out->symmetric_bytes;
  int64_t least_scratch = 0;
  const int64_t budget = config->workspace_budget;
  WEFT__TRY(weft__sm90_backward_layout(config, out->sms, budget == 0 ? 0 : budget - fixed, out,
                                       &least_scratch));
  out->backward_bytes = aligned(out->backward_bytes);
  *least = fixed + most_of(aligned(least_scratch), out->forward_bytes);
  const int64_t bytes =
      fixed + most_of(aligned(out->step_bytes), most_of(out->backward_bytes, out->forward_bytes));
  out->local_bytes = bytes - out->symmetric_bytes;
  if (budget != 0 && bytes > budget)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_budget is %" PRId64 " bytes, expected at least %" PRId64,
                      budget, *least);
  return WEFT_OK;
}

void weft__sm90_describe(const weft_ce_config *c, const weft__sm90_layout *l,
                         weft_ce_plan_info *info) {
  const bool gradients = c->wants & (WEFT_CE_DX | WEFT_CE_DW);
  info->local_bytes = l->local_bytes;
  info->symmetric_bytes = l->symmetric_bytes;
  info->token_chunk = l->kept_tokens;
  info->waves = l->waves;
  info->wave_rows = l->wave_rows;
  info->units = l->sms;
  info->step_gemms = !(c->wants & WEFT_CE_STEP) ? 0 : !gradients ? 1 : l->kept_tokens > 0 ? 3 : 4;
  const double gemm_ms = 2.0 * (double)c->max_tokens * (double)c->hidden * (double)c->vocab_local /
                         (nominal_tflops * (double)l->sms) * 1e-9;
  info->forward_ms = gemm_ms;
  info->backward_ms = gradients ? 3.0 * gemm_ms : 0.0;
  info->step_ms = (double)info->step_gemms * gemm_ms;
  const uint32_t rows = (uint32_t)(c->vocab_local < c->vocab ? c->vocab_local : c->vocab);
  const struct forward_schedule s = forward_schedule_make(
      (uint32_t)c->max_tokens, rows, FORWARD_SEGMENTS_MAX, FORWARD_GROUP_TILES);
  char backward[64] = "", step[64] = "";
  if (gradients)
    snprintf(backward, sizeof backward, "; backward in %" PRId64 " waves of %" PRId64 " rows",
             l->waves, l->wave_rows);
  if (gradients && (c->wants & WEFT_CE_STEP))
    snprintf(step, sizeof step, "%s",
             l->kept_tokens > 0 ? "; step keeps exponentials (without entropy gradient)"
                                : "; step recomputes logits");
  snprintf(info->text, sizeof info->text,
           "%" PRId64 " SMs; forward in %u tiles of %d tokens by %u segments of the vocabulary%s%s",
           l->sms, s.token_tiles, FORWARD_TILE_TOKENS, s.segments * 2, backward, step);
}

int64_t weft__sm90_units(const weft_ce_machine *machine) {
  if (machine->units > 0) return machine->units;
  struct cuda_device_info info;
  if (weft__cuda_device_count() > 0 && weft__cuda_device_query(0, &info) == WEFT_OK)
    return info.sm_count;
  return NOMINAL_SMS;
}
