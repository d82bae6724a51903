/* The backward kernel's producer without tensor copies, for X and W whose rows have no alignment,
 * and for X where rows that do not count hold values that are not finite: the warp fills a stage by
 * ordinary loads and stores, laid out as a tensor copy would. Each CTA loads all of its tiles. It
 * knows stages and their shapes. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_BY_HAND_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_BY_HAND_H

#include "device/ce/sm90_backward_base.h"
#include "device/ce/sm90_gradient.h"
#include "device/ce/sm90_staging.h"

/* A matrix of the caller's: X or W. */
struct by_hand {
  struct gmem rows;
  uint64_t stride_bytes;
  uint32_t count, columns;
};

DEV struct by_hand x_by_hand(const struct backward_args *args) {
  struct by_hand m;
  m.rows = args->x_rows;
  m.stride_bytes = args->x_stride_bytes;
  m.count = args->tokens;
  m.columns = args->hidden;
  return m;
}

DEV struct by_hand w_by_hand(const struct backward_args *args) {
  struct by_hand m;
  m.rows = args->w_rows;
  m.stride_bytes = args->w_stride_bytes;
  m.count = args->rows;
  m.columns = args->hidden;
  return m;
}

DEV uint32_t pair_by_hand(struct gmem row, uint32_t k, uint32_t columns) {
  const uint32_t lo = k < columns ? ld_global_u16(gmem_add(row, (uint64_t)k * 2)) : 0;
  const uint32_t hi = k + 1 < columns ? ld_global_u16(gmem_add(row, (uint64_t)k * 2 + 2)) : 0;
  return lo | hi << 16;
}

/* Eight columns of a row from column k; 0 beyond its end. */
DEV struct u32x4 piece_by_hand(struct gmem row, uint32_t k, uint32_t columns, uint32_t aligned) {
  if (aligned && k + 8 <= columns) return ld_global_u32x4(gmem_add(row, (uint64_t)k * 2));
  struct u32x4 v;
  v.x = pair_by_hand(row, k, columns);
  v.y = pair_by_hand(row, k + 2, columns);
  v.z = pair_by_hand(row, k + 4, columns);
  v.w = pair_by_hand(row, k + 6, columns);
  return v;
}

/* The warp: 64 columns from `column` of the rows from `first` on, to as many lines. With `counting`
 * a row that does not count is 0, whatever it holds. */
DEV void lines_by_hand(const struct backward_args *args, const struct by_hand *m, struct smem to,
                       uint32_t first, uint32_t lines, uint32_t column, int counting) {
  const uint32_t aligned = !args->by_hand;
  for (uint32_t i = lane_index(); i < lines * 8; i += 32) {
    const uint32_t line = i / 8, piece = i % 8, row = first + line;
    struct u32x4 v = {0, 0, 0, 0};
    if (row < m->count && !(counting && !row_counts(args, row)))
      v = piece_by_hand(gmem_add(m->rows, (uint64_t)row * m->stride_bytes), column + piece * 8,
                        m->columns, aligned);
    st_shared_u32x4(staged(to, line, piece), v);
  }
}

/* The same of an operand whose depth is its rows: 64 of them, `count` columns. */
DEV void planes_by_hand(const struct backward_args *args, const struct by_hand *m, struct smem to,
                        uint32_t depth, uint32_t column, uint32_t count, int counting) {
  for (uint32_t i = 0; i < count / 64; i++)
    lines_by_hand(args, m, smem_add(to, i * BACKWARD_BLOCK_BYTES), depth, 64, column + i * 64,
                  counting);
}

/* One lane of each CTA's producer: the two meet before a stage is filled by hand, and once after
 * the last one. Both go through the same steps. It keeps
 *   - this CTA's consumers from arriving on the other's `empty` for a stage whose phase before is
 *     not complete there (with multicasts, a stage is full only if both were empty);
 *   - the other CTA's multicasts into a stage behind this warp's stores to it.
 * `met` counts in twos; its lowest bit says that there are stores since the last meeting. Two
 * barriers in turn, since a producer may come to the next meeting before the other has left this
 * one. */
DEV void meet(struct shared s, uint32_t rank, uint32_t met) {
  const struct smem at = smem_add(s.meeting, (met & 2) * 4);
  mbarrier_arrive_remote_cluster(cluster_map(at, rank ^ 1));
  mbarrier_wait_cluster(at, met >> 2 & 1);
}

DEV uint32_t met_next(uint32_t met) {
  return (met | 1) + 1;
}

/* The warp, after its stores to the stage: hands it to the consumers. */
DEV void full_by_hand(struct smem full, uint32_t issuer) {
  /* Orders this lane's stores to the stage before the wgmma that reads it, and before what either
   * CTA's tensor copies write there later. */
  fence_proxy_async_shared_cta(backward_by_hand);
  warp_sync();
  if (issuer) mbarrier_arrive(full);
}

/* ---- A step of each product. The warp; `issuer` is one lane of it. ----
 *
 * That lane issues the tensor copies of the other operand behind its meeting, before the stores and
 * not after them: in a short branch of their own ptxas (13.0) issues them without the branch, for
 * whatever lanes come along, and an H200 reports a misaligned address. */

DEV struct ring dz_load_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, struct ring ring, uint32_t *met, uint32_t depth,
                                uint32_t row, uint32_t col) {
  const struct by_hand x = x_by_hand(args), w = w_by_hand(args);
  const struct smem full = smem_add(s.dz.full, ring.stage * 8);
  const struct smem stage = smem_add(s.stages, ring.stage * (uint32_t)(dz_A_BYTES + dz_B_BYTES));
  mbarrier_wait(smem_add(s.dz.empty, ring.stage * 8), ring.parity ^ 1);
  if (issuer) meet(s, rank, *met);
  *met = met_next(*met) | 1;
  lines_by_hand(args, &x, stage, row, dz_ROWS, depth, 0);
  lines_by_hand(args, &w, smem_add(stage, dz_A_BYTES), col, dz_B_BYTES / 128, depth, 0);
  full_by_hand(full, issuer);
  return ring_next(ring, BACKWARD_STAGES_DZ);
}

DEV struct ring dx_load_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, struct ring ring, uint32_t *met,
                                const struct operand *a, uint32_t depth, uint32_t row, uint32_t h) {
  const struct by_hand w = w_by_hand(args);
  const struct smem full = smem_add(s.dx.full, ring.stage * 8);
  const struct smem stage = smem_add(s.stages, ring.stage * (uint32_t)(dx_A_BYTES + dx_B_BYTES));
  mbarrier_wait(smem_add(s.dx.empty, ring.stage * 8), ring.parity ^ 1);
  if (issuer) {
    meet(s, rank, *met);
    mbarrier_expect_tx(full, dx_A_BYTES);
    load_operand(a, stage, full, row, dx_ROWS, 0, 0);
  }
  *met = met_next(*met) | 1;
  planes_by_hand(args, &w, smem_add(stage, dx_A_BYTES), depth, h, DX_COLS, 0);
  full_by_hand(full, issuer);
  return ring_next(ring, BACKWARD_STAGES_DX);
}

DEV struct ring dw_load_by_hand(const struct backward_args *args, struct shared s, uint32_t rank,
                                uint32_t issuer, struct ring ring, uint32_t *met,
                                const struct operand *b, uint32_t h, uint32_t col) {
  const struct by_hand x = x_by_hand(args);
  const struct smem full = smem_add(s.dw.full, ring.stage * 8);
  const struct smem stage = smem_add(s.stages, ring.stage * (uint32_t)(dw_A_BYTES + dw_B_BYTES));
  mbarrier_wait(smem_add(s.dw.empty, ring.stage * 8), ring.parity ^ 1);
  if (issuer) {
    meet(s, rank, *met);
    mbarrier_expect_tx(full, dw_B_BYTES);
    load_operand(b, smem_add(stage, dw_A_BYTES), full, col, 192, 1, 0);
  }
  *met = met_next(*met) | 1;
  planes_by_hand(args, &x, stage, b->depth, h, dw_ROWS, 1);
  full_by_hand(full, issuer);
  return ring_next(ring, BACKWARD_STAGES_DW);
}

#endif
