/* Sizes of an ep plan on a GPU: symmetric and local memory, handles, and the kernels' rings. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "cuda/ep.h"

enum { ALIGNMENT = 256, SLOT_CONTROL_BYTES = 64 };

static int64_t carve(int64_t *end, int64_t bytes) {
  const int64_t start = *end;
  *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return start;
}

static void lay_out_rings(const weft_ep_config *c, int64_t ranks, weft__sm90_ep_layout *l) {
  const uint32_t row_bytes = (uint32_t)c->hidden * 2, topk = (uint32_t)c->topk;
  const uint32_t r = (uint32_t)ranks, e = (uint32_t)c->experts;
  l->dispatch_pieces = ep_pieces(row_bytes, EP_STAGE_BYTES);
  const uint32_t tables = ep_dispatch_shared(r, e, EP_STAGES_MAX, 0).bytes;
  if (c->dtype == WEFT_BF16) {
    l->dispatch_stages = (EP_SHARED_BYTES - tables) / l->dispatch_pieces.bytes;
    if (l->dispatch_stages > EP_STAGES_MAX) l->dispatch_stages = EP_STAGES_MAX;
  }
  l->dispatch_shared = ep_dispatch_shared(r, e, l->dispatch_stages, l->dispatch_pieces.bytes).bytes;
  l->combine_pieces = ep_pieces(row_bytes, EP_COMBINE_BYTES / topk / 16 * 16);
  const uint32_t stage = topk * l->combine_pieces.bytes;
  const uint32_t rest = ep_combine_shared(r, topk, EP_STAGES_MAX, 0).bytes;
  l->combine_stages = (EP_SHARED_BYTES - rest) / stage;
  if (l->combine_stages > EP_STAGES_MAX) l->combine_stages = EP_STAGES_MAX;
  l->combine_shared = ep_combine_shared(r, topk, l->combine_stages, l->combine_pieces.bytes).bytes;
}

static void lay_out_scales(const weft_ep_config *c, int64_t ranks, const weft_ep_plan_info *info,
                           weft__sm90_ep_layout *l) {
  l->slab_rows = (uint32_t)(ranks * c->tokens_max);
  if (c->dtype != WEFT_E4M3) return;
  l->scales = (struct ep_scales){
      .stride = (uint64_t)info->scale_stride,
      .words = (uint32_t)weft__ep_scale_words(c),
      .blocks = (uint32_t)((c->hidden + EP_BLOCK - 1) / EP_BLOCK),
      .format = (uint32_t)c->scale_format,
      .columns = c->scale_order == WEFT_EP_COLUMN_MAJOR,
      .slab_rows = c->layout == WEFT_EP_SLAB ? l->slab_rows : 0,
  };
}

weft_status weft__sm90_ep_layout_make(const weft_ep_config *c, int64_t ranks,
                                      weft__sm90_ep_layout *l, weft_ep_plan_info *info) {
  const int64_t experts = c->experts / ranks, slots = c->tokens_max * c->topk;
  memset(l, 0, sizeof *l);
  if (c->experts > EP_MAX_EXPERTS)
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "config.experts is %" PRId64 ", expected at most %d on a GPU", c->experts,
                      EP_MAX_EXPERTS);
  weft__ep_receive_sizes(c, ranks, info);
  lay_out_rings(c, ranks, l);
  lay_out_scales(c, ranks, info, l);
  l->words_bytes = (int64_t)ep_words_bytes((uint32_t)ranks, (uint32_t)experts);
  info->symmetric_bytes = 0;
  carve(&info->symmetric_bytes, l->words_bytes);
  l->buffer = carve(&info->symmetric_bytes, info->buffer_bytes);
  int64_t end = EP_SLOTS * SLOT_CONTROL_BYTES;
  l->state = carve(&end, ranks * 4);
  l->waits = carve(&end, ranks * 8);
  l->expert_rows = carve(&end, experts * 8);
  l->operations = carve(&end, 3 * 8);
  l->control_bytes = end;
  for (int i = 0; i < EP_SLOTS; i++) {
    l->staged[i] = carve(&end, c->tokens_max * c->hidden * 2);
    l->staged_weights[i] = carve(&end, slots * 4);
  }
  info->local_bytes = end;
  end = 0;
  l->expert = carve(&end, slots * 4);
  l->row = carve(&end, slots * 4);
  l->kept_counts = carve(&end, experts * ranks * 8);
  l->kept_offsets = carve(&end, (experts + 1) * 8);
  l->routing = carve(&end, 4);
  info->handle_bytes = end;
  snprintf(info->text, sizeof info->text,
           "sm90, %" PRId64 " experts a rank, %s rows of %s, %" PRId64
           " at most, peers by their memory",
           info->experts_local, c->layout == WEFT_EP_SLAB ? "slab" : "packed",
           c->dtype == WEFT_E4M3 ? "E4M3" : "bf16", info->rows_max);
  return WEFT_OK;
}
