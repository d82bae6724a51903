/* Where the 16-byte units of a copy lie: in shared memory, with its swizzle, and in a tensor. */
#include "async.h"

/* The swizzle exchanges 16-byte units within their span by the number of the 128-byte line that the
 * address is in: 1, 2 or 3 bits of it. */
uint32_t box_shared(const struct box *box, uint32_t unit) {
  const uint32_t address = box->shared + 16 * unit;
  const uint32_t line = address >> 7 & ((1u << box->swizzle) - 1);
  return address ^ line << 4;
}

uint64_t box_global(const struct box *box, uint32_t unit, uint32_t *low, uint32_t *high) {
  *low = 0;
  *high = 16;
  if (box->dims == 0) return box->global + 16ull * unit;

  const uint32_t row = unit / box->row_units, column = unit % box->row_units;
  const uint32_t index[3] = {0, row % box->extent[1], row / box->extent[1]};
  const int32_t per_unit = (int32_t)(16 / box->element);
  const int64_t first = (int64_t)box->at[0] + (int64_t)column * per_unit;
  uint64_t address = box->global + (uint64_t)(first * (int64_t)box->element);
  int inside = 1;
  for (uint32_t d = 1; d < box->dims; d++) {
    const int64_t at = (int64_t)box->at[d] + index[d];
    if (at < 0 || at >= (int64_t)box->size[d]) inside = 0;
    address += (uint64_t)(at * (int64_t)box->stride[d]);
  }
  int64_t begin = first < 0 ? -first : 0, end = (int64_t)box->size[0] - first;
  if (begin > per_unit) begin = per_unit;
  if (end > per_unit) end = per_unit;
  if (!inside || end < begin) begin = end = 0;
  *low = (uint32_t)begin * box->element;
  *high = (uint32_t)end * box->element;
  return address;
}

uint64_t box_global_store(const struct box *box, uint32_t unit, uint32_t *low, uint32_t *high) {
  const uint64_t address = box_global(box, unit, low, high);
  if (*high > *low) *high = 16;
  return address;
}
