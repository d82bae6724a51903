/* Loads and stores of the generic proxy (PTX "ld", "st", "ld.global.nc"), with order and scope.
 *
 *   ld_global_T(p)   st_global_T(p, v)      weak;  T: u16 u32 u64 f32 u32x2 u32x4 f32x2 f32x4
 *   ld_shared_T(p)   st_shared_T(p, v)      weak, own CTA
 *   ld_dsmem_T(p)    st_dsmem_T(p, v)       weak, any CTA of the cluster;  T: u32 f32 u32x4
 *   ld_global_nc_T(p)                       read-only path: never for data that anyone writes while
 *                                           the kernel runs;  T: u32 u64 f32 u32x4
 *   ld_u32(order, scope, p)                 order: relaxed acquire
 *   st_u32(order, scope, p, v)              order: relaxed release; also _u64
 *   ld_shared_order_u32, st_shared_order_u32, ld_dsmem_order_u32, st_dsmem_order_u32: likewise
 *                                           scope: cta cluster gpu sys
 *
 * Order and scope are bare words: ld_u32(acquire, sys, flag). */
#ifndef WEFT_DEVICE_PTX_ACCESS_H
#define WEFT_DEVICE_PTX_ACCESS_H

#include "types.h"

#ifdef __CUDACC__

/* Weak accesses: fn suffix, PTX state space, address type and its constraint. */
#define PTX_SCALAR(sp, space, addr, ac, type, ctype, instr, vc)                                    \
  DEV ctype ld_##sp##_##type(struct addr p) {                                                      \
    ctype v;                                                                                       \
    asm volatile("ld." space "." instr " %0, [%1];" : "=" vc(v) : ac(p.a) : "memory");             \
    return v;                                                                                      \
  }                                                                                                \
  DEV void st_##sp##_##type(struct addr p, ctype v) {                                              \
    asm volatile("st." space "." instr " [%0], %1;" ::ac(p.a), vc(v) : "memory");                  \
  }
#define PTX_VEC2(sp, space, addr, ac, type, instr, vc)                                             \
  DEV struct type ld_##sp##_##type(struct addr p) {                                                \
    struct type v;                                                                                 \
    asm volatile("ld." space ".v2." instr " {%0, %1}, [%2];"                                       \
                 : "=" vc(v.x), "=" vc(v.y)                                                        \
                 : ac(p.a)                                                                         \
                 : "memory");                                                                      \
    return v;                                                                                      \
  }                                                                                                \
  DEV void st_##sp##_##type(struct addr p, struct type v) {                                        \
    asm volatile("st." space ".v2." instr " [%0], {%1, %2};" ::ac(p.a), vc(v.x), vc(v.y)           \
                 : "memory");                                                                      \
  }
#define PTX_VEC4(sp, space, addr, ac, type, instr, vc)                                             \
  DEV struct type ld_##sp##_##type(struct addr p) {                                                \
    struct type v;                                                                                 \
    asm volatile("ld." space ".v4." instr " {%0, %1, %2, %3}, [%4];"                               \
                 : "=" vc(v.x), "=" vc(v.y), "=" vc(v.z), "=" vc(v.w)                              \
                 : ac(p.a)                                                                         \
                 : "memory");                                                                      \
    return v;                                                                                      \
  }                                                                                                \
  DEV void st_##sp##_##type(struct addr p, struct type v) {                                        \
    asm volatile("st." space ".v4." instr " [%0], {%1, %2, %3, %4};" ::ac(p.a), vc(v.x), vc(v.y),  \
                 vc(v.z), vc(v.w)                                                                  \
                 : "memory");                                                                      \
  }
#define PTX_SPACE(sp, space, addr, ac)                                                             \
  PTX_SCALAR(sp, space, addr, ac, u16, uint16_t, "u16", "h")                                       \
  PTX_SCALAR(sp, space, addr, ac, u32, uint32_t, "u32", "r")                                       \
  PTX_SCALAR(sp, space, addr, ac, u64, uint64_t, "u64", "l")                                       \
  PTX_SCALAR(sp, space, addr, ac, f32, float, "f32", "f")                                          \
  PTX_VEC2(sp, space, addr, ac, u32x2, "u32", "r")                                                 \
  PTX_VEC2(sp, space, addr, ac, f32x2, "f32", "f")                                                 \
  PTX_VEC4(sp, space, addr, ac, u32x4, "u32", "r")                                                 \
  PTX_VEC4(sp, space, addr, ac, f32x4, "f32", "f")

PTX_SPACE(global, "global", gmem, "l")
PTX_SPACE(shared, "shared::cta", smem, "r")
PTX_SCALAR(dsmem, "shared::cluster", dsmem, "r", u32, uint32_t, "u32", "r")
PTX_SCALAR(dsmem, "shared::cluster", dsmem, "r", f32, float, "f32", "f")
PTX_VEC4(dsmem, "shared::cluster", dsmem, "r", u32x4, "u32", "r")

DEV uint32_t ld_global_nc_u32(struct gmem p) {
  uint32_t v;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p.a));
  return v;
}
DEV uint64_t ld_global_nc_u64(struct gmem p) {
  uint64_t v;
  asm("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(p.a));
  return v;
}
DEV float ld_global_nc_f32(struct gmem p) {
  float v;
  asm("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p.a));
  return v;
}
DEV struct u32x4 ld_global_nc_u32x4(struct gmem p) {
  struct u32x4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p.a));
  return v;
}

/* Strong accesses: one function for each order and scope. */
#define PTX_LD_STRONG(fn, order, scope, space, addr, ac, ctype, instr, vc)                         \
  DEV ctype fn##_##order##_##scope(struct addr p) {                                                \
    ctype v;                                                                                       \
    asm volatile("ld." #order "." #scope "." space "." instr " %0, [%1];"                          \
                 : "=" vc(v)                                                                       \
                 : ac(p.a)                                                                         \
                 : "memory");                                                                      \
    return v;                                                                                      \
  }
#define PTX_ST_STRONG(fn, order, scope, space, addr, ac, ctype, instr, vc)                         \
  DEV void fn##_##order##_##scope(struct addr p, ctype v) {                                        \
    asm volatile("st." #order "." #scope "." space "." instr " [%0], %1;" ::ac(p.a), vc(v)         \
                 : "memory");                                                                      \
  }
#define PTX_STRONG(ld, st, scope, space, addr, ac, ctype, instr, vc)                               \
  PTX_LD_STRONG(ld, relaxed, scope, space, addr, ac, ctype, instr, vc)                             \
  PTX_LD_STRONG(ld, acquire, scope, space, addr, ac, ctype, instr, vc)                             \
  PTX_ST_STRONG(st, relaxed, scope, space, addr, ac, ctype, instr, vc)                             \
  PTX_ST_STRONG(st, release, scope, space, addr, ac, ctype, instr, vc)
#define PTX_STRONG_SCOPES(ld, st, space, addr, ac, ctype, instr, vc)                               \
  PTX_STRONG(ld, st, cta, space, addr, ac, ctype, instr, vc)                                       \
  PTX_STRONG(ld, st, cluster, space, addr, ac, ctype, instr, vc)                                   \
  PTX_STRONG(ld, st, gpu, space, addr, ac, ctype, instr, vc)                                       \
  PTX_STRONG(ld, st, sys, space, addr, ac, ctype, instr, vc)

PTX_STRONG_SCOPES(ld_u32, st_u32, "global", gmem, "l", uint32_t, "u32", "r")
PTX_STRONG_SCOPES(ld_u64, st_u64, "global", gmem, "l", uint64_t, "u64", "l")
PTX_STRONG_SCOPES(ld_shared_order_u32, st_shared_order_u32, "shared::cta", smem, "r", uint32_t,
                  "u32", "r")
PTX_STRONG_SCOPES(ld_dsmem_order_u32, st_dsmem_order_u32, "shared::cluster", dsmem, "r", uint32_t,
                  "u32", "r")

#define ld_u32(order, scope, p)                 ld_u32_##order##_##scope(p)
#define st_u32(order, scope, p, v)              st_u32_##order##_##scope(p, v)
#define ld_u64(order, scope, p)                 ld_u64_##order##_##scope(p)
#define st_u64(order, scope, p, v)              st_u64_##order##_##scope(p, v)
#define ld_shared_order_u32(order, scope, p)    ld_shared_order_u32_##order##_##scope(p)
#define st_shared_order_u32(order, scope, p, v) st_shared_order_u32_##order##_##scope(p, v)
#define ld_dsmem_order_u32(order, scope, p)     ld_dsmem_order_u32_##order##_##scope(p)
#define st_dsmem_order_u32(order, scope, p, v)  st_dsmem_order_u32_##order##_##scope(p, v)

#else

#define ld_global_u16(p)   LOOM_LD("ld.global.u16", global, uint16_t, p)
#define ld_global_u32(p)   LOOM_LD("ld.global.u32", global, uint32_t, p)
#define ld_global_u64(p)   LOOM_LD("ld.global.u64", global, uint64_t, p)
#define ld_global_f32(p)   LOOM_LD("ld.global.f32", global, float, p)
#define ld_global_u32x2(p) LOOM_LD("ld.global.v2.u32", global, struct u32x2, p)
#define ld_global_f32x2(p) LOOM_LD("ld.global.v2.f32", global, struct f32x2, p)
#define ld_global_u32x4(p) LOOM_LD("ld.global.v4.u32", global, struct u32x4, p)
#define ld_global_f32x4(p) LOOM_LD("ld.global.v4.f32", global, struct f32x4, p)

#define ld_shared_u16(p)   LOOM_LD("ld.shared.u16", shared, uint16_t, p)
#define ld_shared_u32(p)   LOOM_LD("ld.shared.u32", shared, uint32_t, p)
#define ld_shared_u64(p)   LOOM_LD("ld.shared.u64", shared, uint64_t, p)
#define ld_shared_f32(p)   LOOM_LD("ld.shared.f32", shared, float, p)
#define ld_shared_u32x2(p) LOOM_LD("ld.shared.v2.u32", shared, struct u32x2, p)
#define ld_shared_f32x2(p) LOOM_LD("ld.shared.v2.f32", shared, struct f32x2, p)
#define ld_shared_u32x4(p) LOOM_LD("ld.shared.v4.u32", shared, struct u32x4, p)
#define ld_shared_f32x4(p) LOOM_LD("ld.shared.v4.f32", shared, struct f32x4, p)

#define ld_dsmem_u32(p)   LOOM_LD("ld.shared::cluster.u32", dsmem, uint32_t, p)
#define ld_dsmem_f32(p)   LOOM_LD("ld.shared::cluster.f32", dsmem, float, p)
#define ld_dsmem_u32x4(p) LOOM_LD("ld.shared::cluster.v4.u32", dsmem, struct u32x4, p)

#define st_global_u16(p, v)   LOOM_ST("st.global.u16", global, uint16_t, p, v)
#define st_global_u32(p, v)   LOOM_ST("st.global.u32", global, uint32_t, p, v)
#define st_global_u64(p, v)   LOOM_ST("st.global.u64", global, uint64_t, p, v)
#define st_global_f32(p, v)   LOOM_ST("st.global.f32", global, float, p, v)
#define st_global_u32x2(p, v) LOOM_ST("st.global.v2.u32", global, struct u32x2, p, v)
#define st_global_f32x2(p, v) LOOM_ST("st.global.v2.f32", global, struct f32x2, p, v)
#define st_global_u32x4(p, v) LOOM_ST("st.global.v4.u32", global, struct u32x4, p, v)
#define st_global_f32x4(p, v) LOOM_ST("st.global.v4.f32", global, struct f32x4, p, v)

#define st_shared_u16(p, v)   LOOM_ST("st.shared.u16", shared, uint16_t, p, v)
#define st_shared_u32(p, v)   LOOM_ST("st.shared.u32", shared, uint32_t, p, v)
#define st_shared_u64(p, v)   LOOM_ST("st.shared.u64", shared, uint64_t, p, v)
#define st_shared_f32(p, v)   LOOM_ST("st.shared.f32", shared, float, p, v)
#define st_shared_u32x2(p, v) LOOM_ST("st.shared.v2.u32", shared, struct u32x2, p, v)
#define st_shared_f32x2(p, v) LOOM_ST("st.shared.v2.f32", shared, struct f32x2, p, v)
#define st_shared_u32x4(p, v) LOOM_ST("st.shared.v4.u32", shared, struct u32x4, p, v)
#define st_shared_f32x4(p, v) LOOM_ST("st.shared.v4.f32", shared, struct f32x4, p, v)

#define st_dsmem_u32(p, v)   LOOM_ST("st.shared::cluster.u32", dsmem, uint32_t, p, v)
#define st_dsmem_f32(p, v)   LOOM_ST("st.shared::cluster.f32", dsmem, float, p, v)
#define st_dsmem_u32x4(p, v) LOOM_ST("st.shared::cluster.v4.u32", dsmem, struct u32x4, p, v)

#define ld_global_nc_u32(p)   LOOM_LD_NC("ld.global.nc.u32", uint32_t, p)
#define ld_global_nc_u64(p)   LOOM_LD_NC("ld.global.nc.u64", uint64_t, p)
#define ld_global_nc_f32(p)   LOOM_LD_NC("ld.global.nc.f32", float, p)
#define ld_global_nc_u32x4(p) LOOM_LD_NC("ld.global.nc.v4.u32", struct u32x4, p)

#define ld_u32(order, scope, p) LOOM_LD_ORDER(order, scope, ".global.u32", global, uint32_t, p)
#define st_u32(order, scope, p, v)                                                                 \
  LOOM_ST_ORDER(order, scope, ".global.u32", global, uint32_t, p, v)
#define ld_u64(order, scope, p) LOOM_LD_ORDER(order, scope, ".global.u64", global, uint64_t, p)
#define st_u64(order, scope, p, v)                                                                 \
  LOOM_ST_ORDER(order, scope, ".global.u64", global, uint64_t, p, v)
#define ld_shared_order_u32(order, scope, p)                                                       \
  LOOM_LD_ORDER(order, scope, ".shared.u32", shared, uint32_t, p)
#define st_shared_order_u32(order, scope, p, v)                                                    \
  LOOM_ST_ORDER(order, scope, ".shared.u32", shared, uint32_t, p, v)
#define ld_dsmem_order_u32(order, scope, p)                                                        \
  LOOM_LD_ORDER(order, scope, ".shared::cluster.u32", dsmem, uint32_t, p)
#define st_dsmem_order_u32(order, scope, p, v)                                                     \
  LOOM_ST_ORDER(order, scope, ".shared::cluster.u32", dsmem, uint32_t, p, v)

#endif
#endif
