/* Atomic read-modify-write on global memory (PTX "atom", "red"), with order and scope, and the two
 * that shared memory needs.
 *
 *   atom_add_u32(order, scope, p, v)   atom_exch_u32(...)   atom_cas_u32(order, scope, p, old, new)
 *   the same with _u64; all answer the value before.  order: relaxed acquire release acq_rel
 *   red_add_u32(order, scope, p, v)    no answer; order: relaxed release
 *   red_add_f32(p, v), red_add_f32x2(p, v)      relaxed.gpu
 *   atom_add_shared_u32(p, v)          relaxed.cta, own CTA */
#ifndef WEFT_DEVICE_PTX_ATOMIC_H
#define WEFT_DEVICE_PTX_ATOMIC_H

#include "types.h"

#ifdef __CUDACC__

#define PTX_ATOM(order, scope, type, ctype, add, bits, vc)                                         \
  DEV ctype atom_add_##type##_##order##_##scope(struct gmem p, ctype v) {                          \
    ctype r;                                                                                       \
    asm volatile("atom." #order "." #scope ".global.add." add " %0, [%1], %2;"                     \
                 : "=" vc(r)                                                                       \
                 : "l"(p.a), vc(v)                                                                 \
                 : "memory");                                                                      \
    return r;                                                                                      \
  }                                                                                                \
  DEV ctype atom_exch_##type##_##order##_##scope(struct gmem p, ctype v) {                         \
    ctype r;                                                                                       \
    asm volatile("atom." #order "." #scope ".global.exch." bits " %0, [%1], %2;"                   \
                 : "=" vc(r)                                                                       \
                 : "l"(p.a), vc(v)                                                                 \
                 : "memory");                                                                      \
    return r;                                                                                      \
  }                                                                                                \
  DEV ctype atom_cas_##type##_##order##_##scope(struct gmem p, ctype old, ctype v) {               \
    ctype r;                                                                                       \
    asm volatile("atom." #order "." #scope ".global.cas." bits " %0, [%1], %2, %3;"                \
                 : "=" vc(r)                                                                       \
                 : "l"(p.a), vc(old), vc(v)                                                        \
                 : "memory");                                                                      \
    return r;                                                                                      \
  }
#define PTX_ATOM_TYPES(order, scope)                                                               \
  PTX_ATOM(order, scope, u32, uint32_t, "u32", "b32", "r")                                         \
  PTX_ATOM(order, scope, u64, uint64_t, "u64", "b64", "l")
#define PTX_ATOM_SCOPES(order)                                                                     \
  PTX_ATOM_TYPES(order, cta)                                                                       \
  PTX_ATOM_TYPES(order, cluster)                                                                   \
  PTX_ATOM_TYPES(order, gpu)                                                                       \
  PTX_ATOM_TYPES(order, sys)

PTX_ATOM_SCOPES(relaxed)
PTX_ATOM_SCOPES(acquire)
PTX_ATOM_SCOPES(release)
PTX_ATOM_SCOPES(acq_rel)

#define PTX_RED(order, scope)                                                                      \
  DEV void red_add_u32_##order##_##scope(struct gmem p, uint32_t v) {                              \
    asm volatile("red." #order "." #scope ".global.add.u32 [%0], %1;" ::"l"(p.a), "r"(v)           \
                 : "memory");                                                                      \
  }
#define PTX_RED_SCOPES(order)                                                                      \
  PTX_RED(order, cta) PTX_RED(order, cluster) PTX_RED(order, gpu) PTX_RED(order, sys)

PTX_RED_SCOPES(relaxed)
PTX_RED_SCOPES(release)

#define atom_add_u32(order, scope, p, v)      atom_add_u32_##order##_##scope(p, v)
#define atom_add_u64(order, scope, p, v)      atom_add_u64_##order##_##scope(p, v)
#define atom_exch_u32(order, scope, p, v)     atom_exch_u32_##order##_##scope(p, v)
#define atom_exch_u64(order, scope, p, v)     atom_exch_u64_##order##_##scope(p, v)
#define atom_cas_u32(order, scope, p, old, v) atom_cas_u32_##order##_##scope(p, old, v)
#define atom_cas_u64(order, scope, p, old, v) atom_cas_u64_##order##_##scope(p, old, v)
#define red_add_u32(order, scope, p, v)       red_add_u32_##order##_##scope(p, v)

DEV void red_add_f32(struct gmem p, float v) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p.a), "f"(v) : "memory");
}

DEV void red_add_f32x2(struct gmem p, struct f32x2 v) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p.a), "f"(v.x), "f"(v.y)
               : "memory");
}

DEV uint32_t atom_add_shared_u32(struct smem p, uint32_t v) {
  uint32_t r;
  asm volatile("atom.relaxed.cta.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(r)
               : "r"(p.a), "r"(v)
               : "memory");
  return r;
}

#else

#define atom_add_u32(order, scope, p, v)                                                           \
  LOOM_ATOM("add.u32", add, order, scope, global, uint32_t, p, 0, v)
#define atom_add_u64(order, scope, p, v)                                                           \
  LOOM_ATOM("add.u64", add, order, scope, global, uint64_t, p, 0, v)
#define atom_exch_u32(order, scope, p, v)                                                          \
  LOOM_ATOM("exch.b32", exch, order, scope, global, uint32_t, p, 0, v)
#define atom_exch_u64(order, scope, p, v)                                                          \
  LOOM_ATOM("exch.b64", exch, order, scope, global, uint64_t, p, 0, v)
#define atom_cas_u32(order, scope, p, old, v)                                                      \
  LOOM_ATOM("cas.b32", cas, order, scope, global, uint32_t, p, old, v)
#define atom_cas_u64(order, scope, p, old, v)                                                      \
  LOOM_ATOM("cas.b64", cas, order, scope, global, uint64_t, p, old, v)
#define red_add_u32(order, scope, p, v)                                                            \
  ((void)LOOM_ATOM("red.add.u32", add, order, scope, global, uint32_t, p, 0, v))
#define red_add_f32(p, v)         loom_red_f32(LOOM_SITE(plain, "red.add.f32", ""), p, v)
#define red_add_f32x2(p, v)       loom_red_f32x2(LOOM_SITE(plain, "red.add.v2.f32", ""), p, v)
#define atom_add_shared_u32(p, v) LOOM_ATOM("add.u32", add, relaxed, cta, shared, uint32_t, p, 0, v)

#endif
#endif
