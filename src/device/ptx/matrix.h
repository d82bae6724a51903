/* ldmatrix and stmatrix (PTX "ldmatrix", "stmatrix"): four 8x8 matrices of 16-bit elements between
 * shared memory and a warp's registers. Lane l gives the address of row l % 8 of matrix l / 8, 16
 * bytes, aligned; register i of lane l holds elements 2*(l%4), +1 of row l/4 of matrix i, or with
 * _trans of the transposed matrix. Generic proxy. */
#ifndef WEFT_DEVICE_PTX_MATRIX_H
#define WEFT_DEVICE_PTX_MATRIX_H

#include "types.h"

#ifdef __CUDACC__

DEV struct u32x4 ldmatrix_x4(struct smem row) {
  struct u32x4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row.a)
               : "memory");
  return v;
}

DEV struct u32x4 ldmatrix_x4_trans(struct smem row) {
  struct u32x4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row.a)
               : "memory");
  return v;
}

DEV void stmatrix_x4(struct smem row, struct u32x4 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row.a),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

DEV void stmatrix_x4_trans(struct smem row, struct u32x4 v) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row.a),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

#else

#define ldmatrix_x4(row)       loom_ldmatrix_x4(LOOM_SITE(plain, "ldmatrix.x4", ""), row, 0)
#define ldmatrix_x4_trans(row) loom_ldmatrix_x4(LOOM_SITE(plain, "ldmatrix.x4.trans", ""), row, 1)
#define stmatrix_x4(row, v)    loom_stmatrix_x4(LOOM_SITE(plain, "stmatrix.x4", ""), row, v, 0)
#define stmatrix_x4_trans(row, v)                                                                  \
  loom_stmatrix_x4(LOOM_SITE(plain, "stmatrix.x4.trans", ""), row, v, 1)

#endif
#endif
