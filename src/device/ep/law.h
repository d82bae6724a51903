/* The laws of dispatch and combine that host, device and loom share: who takes which tokens, in
 * which pieces rows travel, where rows and scales stand, and the arithmetic of E4M3 scales. Plain
 * C; knows no instructions and no memory. */
#ifndef WEFT_DEVICE_EP_LAW_H
#define WEFT_DEVICE_EP_LAW_H

#include <string.h>

#include "device/host_device.h"

/* ---- Shares and pieces ---- */

/* Of `count` items, part `index` of `parts` takes those from ep_share(count, parts, index) up to
 * ep_share(count, parts, index + 1): each item once, shares differing by one at most. */
HOST_DEVICE uint32_t ep_share(uint32_t count, uint32_t parts, uint32_t index) {
  return (uint32_t)((uint64_t)count * index / parts);
}

/* A row travels in pieces of equal size, a multiple of 16 bytes, but for the last. */
struct ep_pieces {
  uint32_t count, bytes;
};

HOST_DEVICE struct ep_pieces ep_pieces(uint32_t row_bytes, uint32_t most) {
  struct ep_pieces p;
  const uint32_t count = (row_bytes + most - 1) / most;
  p.bytes = ((row_bytes + count - 1) / count + 15) / 16 * 16;
  p.count = (row_bytes + p.bytes - 1) / p.bytes;
  return p;
}

HOST_DEVICE uint32_t ep_piece_bytes(uint32_t row_bytes, struct ep_pieces p, uint32_t piece) {
  const uint32_t left = row_bytes - piece * p.bytes;
  return left < p.bytes ? left : p.bytes;
}

/* ---- Rows ---- */

/* The order of a rank's receive arrays (weft__ep_place_rows): an expert's rows begin at
 * `expert * slab_rows`, or, packed, at the end of the expert before it rounded up. */
HOST_DEVICE uint32_t ep_rounded(uint32_t rows, uint32_t alignment) {
  return (rows + alignment - 1) / alignment * alignment;
}

/* One past the last row that an expert may have, so that no row is ever written beyond it. */
HOST_DEVICE uint32_t ep_row_limit(uint32_t packed, uint32_t slab_rows, uint32_t rows_max,
                                  uint32_t expert) {
  return packed ? rows_max : (expert + 1) * slab_rows;
}

/* ---- Scales ---- */

struct ep_scales {
  uint64_t stride;    /* 32-bit elements from a row to the next; column-major: from a column */
  uint32_t words;     /* of a row */
  uint32_t blocks;    /* of 128 channels */
  uint32_t format;    /* weft_ep_scale */
  uint32_t columns;   /* 1: column-major */
  uint32_t slab_rows; /* 0: packed rows */
};

enum {
  EP_BLOCK = 128,
  EP_SCALE_F32 = 0, /* as weft_ep_scale */
  EP_SCALE_POW2 = 1,
  EP_SCALE_UE8M0 = 2,
  EP_UE8M0_NAN = 255,
  EP_BF16_INFINITY = 0x7f80 /* sizes from here on are no numbers */
};

/* The index of a row's scale word in recv_scales. */
HOST_DEVICE uint64_t ep_scale_index(const struct ep_scales *s, uint32_t row, uint32_t word) {
  if (!s->columns) return row * s->stride + word;
  if (s->slab_rows == 0) return word * s->stride + row;
  return ((uint64_t)(row / s->slab_rows) * s->words + word) * s->stride + row % s->slab_rows;
}

HOST_DEVICE float ep_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

HOST_DEVICE uint32_t ep_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* The scale of a block whose largest size is the bf16 of these bits (sign clear), as f32 bits. */
HOST_DEVICE uint32_t ep_scale_bits(uint32_t amax, uint32_t format) {
  if (amax >= EP_BF16_INFINITY) return 0x7fc00000u;
  const float size = ep_float(amax << 16);
  const uint32_t bits = ep_bits((size > 1e-4f ? size : 1e-4f) / 448.0f);
  if (format == EP_SCALE_F32) return bits;
  return ((bits >> 23) + ((bits & 0x7fffffu) != 0)) << 23; /* the power of two not below it */
}

/* What x is multiplied by: the rounded reciprocal, as the contract has it. */
HOST_DEVICE float ep_inverse(uint32_t scale_bits) {
  return 1.0f / ep_float(scale_bits);
}

/* The byte of a packed scale. */
HOST_DEVICE uint32_t ep_ue8m0(uint32_t scale_bits) {
  return scale_bits == 0x7fc00000u ? (uint32_t)EP_UE8M0_NAN : scale_bits >> 23;
}

#endif
