/* The order of rows and the sizes that follow from it: plain functions of counts, for every
 * backend. */
#include "ep/backend.h"

static int64_t round_up(int64_t a, int64_t to) {
  return (a + to - 1) / to * to;
}

static int64_t least_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

int64_t weft__ep_scale_words(const weft_ep_config *c) {
  if (c->dtype != WEFT_E4M3) return 0;
  const int64_t blocks = (c->hidden + WEFT__EP_BLOCK - 1) / WEFT__EP_BLOCK;
  return c->scale_format == WEFT_EP_SCALE_UE8M0 ? (blocks + 3) / 4 : blocks;
}

int64_t weft__ep_row_bytes(const weft_ep_config *c) {
  return c->dtype == WEFT_E4M3 ? c->hidden : c->hidden * 2;
}

/* An expert gets a token once, and a token has at most K experts here. Packed, each of the experts
 * that got rows wastes less than one alignment, and none takes more than its slab rounded up. */
void weft__ep_receive_sizes(const weft_ep_config *c, int64_t ranks, weft_ep_plan_info *info) {
  const int64_t experts = c->experts / ranks, tokens = ranks * c->tokens_max;
  const int64_t words = weft__ep_scale_words(c);
  info->experts_local = experts;
  if (c->layout == WEFT_EP_SLAB) {
    info->rows_max = experts * tokens;
  } else {
    const int64_t rows = tokens * least_of(c->topk, experts), a = c->alignment;
    info->rows_max =
        least_of((rows + least_of(experts, rows) * (a - 1)) / a * a, experts * round_up(tokens, a));
  }
  info->recv_bytes = info->rows_max * weft__ep_row_bytes(c);
  info->scale_stride = 0;
  info->scale_bytes = 0;
  if (words > 0 && c->scale_order == WEFT_EP_ROW_MAJOR) {
    info->scale_stride = words;
    info->scale_bytes = info->rows_max * words * 4;
  } else if (words > 0) {
    const bool slab = c->layout == WEFT_EP_SLAB;
    info->scale_stride = round_up(slab ? tokens : info->rows_max, 4);
    info->scale_bytes = (slab ? experts : 1) * words * info->scale_stride * 4;
  }
  info->buffer_bytes = c->zero_copy ? info->rows_max * c->hidden * 2 : 0;
}

void weft__ep_place_rows(const weft_ep_config *c, int64_t experts, int64_t ranks,
                         const int64_t *source_counts, int64_t *offsets, int64_t *first_row) {
  int64_t row = 0;
  for (int64_t e = 0; e < experts; e++) {
    if (c->layout == WEFT_EP_SLAB) row = e * ranks * c->tokens_max;
    offsets[e] = row;
    for (int64_t r = 0; r < ranks; r++) {
      first_row[e * ranks + r] = row;
      row += source_counts[e * ranks + r];
    }
    row = c->layout == WEFT_EP_SLAB ? (e + 1) * ranks * c->tokens_max : round_up(row, c->alignment);
  }
  offsets[experts] = row;
}

int64_t weft__ep_scale_index(const weft_ep_config *c, const weft_ep_plan_info *info, int64_t row,
                             int64_t word) {
  if (c->scale_order == WEFT_EP_ROW_MAJOR) return row * info->scale_stride + word;
  if (c->layout == WEFT_EP_PACKED) return word * info->scale_stride + row;
  const int64_t slab_rows = info->rows_max / info->experts_local;
  const int64_t expert = row / slab_rows;
  return (expert * weft__ep_scale_words(c) + word) * info->scale_stride + row % slab_rows;
}
