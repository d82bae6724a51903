/* The gcc side of src/device/ptx: what its macros call, and how a call site is made. It may know
 * the wrappers' types and loom's public header, nothing of the executor. */
#ifndef WEFT_LOOM_SHIM_H
#define WEFT_LOOM_SHIM_H

#include <weft/loom.h>

enum {
  LOOM_ORDER_weak,
  LOOM_ORDER_relaxed,
  LOOM_ORDER_acquire,
  LOOM_ORDER_release,
  LOOM_ORDER_acq_rel
};
/* By width: a scope includes another when its number is not smaller. */
enum { LOOM_SCOPE_cta, LOOM_SCOPE_cluster, LOOM_SCOPE_gpu, LOOM_SCOPE_sys };
enum { LOOM_SPACE_global, LOOM_SPACE_shared, LOOM_SPACE_dsmem };
enum { LOOM_FENCE_GLOBAL = 1, LOOM_FENCE_SHARED = 2, LOOM_FENCE_ALIAS = 4 };
enum { LOOM_REDUCE_NONE, LOOM_REDUCE_F32, LOOM_REDUCE_BF16, LOOM_REDUCE_F16 };
enum { LOOM_ATOM_add, LOOM_ATOM_exch, LOOM_ATOM_cas };
enum { LOOM_WGMMA_BF16, LOOM_WGMMA_F16 };
enum { LOOM_KIND_relaxed = LOOM_KIND_plain };

/* Who the running thread is. */
struct loom_self {
  uint32_t thread, threads, cta, ctas, cluster_rank, cluster_size;
  struct smem smem;
};
extern const struct loom_self *loom_self;

/* The address of this place's site. Each is listed in a linker section, so that sites that never
 * run are known too. */
#define LOOM_SITE(kind, op, name)                                                                  \
  __extension__({                                                                                  \
    static struct loom_site site_ = {__FILE__,         __func__, op, name, __LINE__,               \
                                     LOOM_KIND_##kind, 0,        0,  0};                           \
    static struct loom_site *const listed_ __attribute__((section("loom_sites"), used)) = &site_;  \
    (void)listed_;                                                                                 \
    &site_;                                                                                        \
  })

struct loom_site;
void loom_load(struct loom_site *site, int space, uint64_t address, void *value, uint32_t bytes,
               int order, int scope);
void loom_load_nc(struct loom_site *site, uint64_t address, void *value, uint32_t bytes);
void loom_store(struct loom_site *site, int space, uint64_t address, const void *value,
                uint32_t bytes, int order, int scope);
uint64_t loom_atomic(struct loom_site *site, int op, int space, uint64_t address, uint32_t bytes,
                     uint64_t compare, uint64_t value, int order, int scope);
void loom_red_f32(struct loom_site *site, struct gmem p, float v);
void loom_red_f32x2(struct loom_site *site, struct gmem p, struct f32x2 v);

/* Only addresses of the right type are accepted for a space. */
static inline __attribute__((unused)) uint64_t loom_address_global(struct gmem p) {
  return p.a;
}
static inline __attribute__((unused)) uint64_t loom_address_shared(struct smem p) {
  return p.a;
}
static inline __attribute__((unused)) uint64_t loom_address_dsmem(struct dsmem p) {
  return p.a;
}

#define LOOM_LD_KIND(kind, op, space, type, p, order, scope)                                       \
  __extension__({                                                                                  \
    type value_;                                                                                   \
    loom_load(LOOM_SITE(kind, op, ""), LOOM_SPACE_##space, loom_address_##space(p), &value_,       \
              sizeof value_, LOOM_ORDER_##order, LOOM_SCOPE_##scope);                              \
    value_;                                                                                        \
  })
#define LOOM_ST_KIND(kind, op, space, type, p, v, order, scope)                                    \
  __extension__({                                                                                  \
    const type value_ = (v);                                                                       \
    loom_store(LOOM_SITE(kind, op, ""), LOOM_SPACE_##space, loom_address_##space(p), &value_,      \
               sizeof value_, LOOM_ORDER_##order, LOOM_SCOPE_##scope);                             \
  })
#define LOOM_LD(op, space, type, p)    LOOM_LD_KIND(plain, op, space, type, p, weak, cta)
#define LOOM_ST(op, space, type, p, v) LOOM_ST_KIND(plain, op, space, type, p, v, weak, cta)
#define LOOM_LD_ORDER(order, scope, suffix, space, type, p)                                        \
  LOOM_LD_KIND(order, "ld." #order "." #scope suffix, space, type, p, order, scope)
#define LOOM_ST_ORDER(order, scope, suffix, space, type, p, v)                                     \
  LOOM_ST_KIND(order, "st." #order "." #scope suffix, space, type, p, v, order, scope)
#define LOOM_LD_NC(op, type, p)                                                                    \
  __extension__({                                                                                  \
    type value_;                                                                                   \
    loom_load_nc(LOOM_SITE(plain, op, ""), loom_address_global(p), &value_, sizeof value_);        \
    value_;                                                                                        \
  })
#define LOOM_ATOM(op, what, order, scope, space, type, p, compare, v)                              \
  ((type)loom_atomic(LOOM_SITE(order, "atom." #order "." #scope "." op, ""), LOOM_ATOM_##what,     \
                     LOOM_SPACE_##space, loom_address_##space(p), sizeof(type), compare, v,        \
                     LOOM_ORDER_##order, LOOM_SCOPE_##scope))

void loom_mbarrier_init(struct loom_site *site, struct smem bar, uint32_t count);
void loom_mbarrier_inval(struct loom_site *site, struct smem bar);
void loom_mbarrier_arrive(struct loom_site *site, struct smem bar, uint32_t arrivals,
                          uint32_t bytes);
void loom_mbarrier_arrive_remote(struct loom_site *site, struct dsmem bar, uint32_t bytes,
                                 int scope);
uint32_t loom_mbarrier_try_wait(struct loom_site *site, struct smem bar, uint32_t parity,
                                int scope);
void loom_mbarrier_wait(struct loom_site *site, struct smem bar, uint32_t parity, int scope);

uint32_t loom_wait_ge(struct loom_site *site, struct gmem p, uint64_t value, uint32_t bytes,
                      int scope, struct gmem error, uint64_t timeout_ns, uint32_t code);
uint64_t loom_globaltimer(void);

void loom_fence_proxy(struct loom_site *site, int spaces);
void loom_fence_mbarrier_init(struct loom_site *site);
void loom_fence_acq_rel(struct loom_site *site, int scope);

/* mask 0: not multicast */
void loom_bulk_load(struct loom_site *site, struct smem dst, struct gmem src, uint32_t bytes,
                    struct smem bar, uint32_t mask);
void loom_bulk_push(struct loom_site *site, struct dsmem dst, struct smem src, uint32_t bytes,
                    struct dsmem bar);
void loom_bulk_store(struct loom_site *site, struct gmem dst, struct smem src, uint32_t bytes,
                     int reduce);
void loom_bulk_commit(struct loom_site *site);
void loom_bulk_wait(struct loom_site *site, uint32_t groups, int read);
void loom_tensor_load(struct loom_site *site, struct smem dst, const struct tensor_map *map,
                      struct smem bar, uint32_t mask, uint32_t rank, int32_t c0, int32_t c1,
                      int32_t c2);
void loom_tensor_store(struct loom_site *site, const struct tensor_map *map, struct smem src,
                       int reduce, uint32_t rank, int32_t c0, int32_t c1, int32_t c2);

void loom_bar_sync(struct loom_site *site, uint32_t id, uint32_t threads);
void loom_bar_arrive(struct loom_site *site, uint32_t id, uint32_t threads);
void loom_warp_sync(struct loom_site *site);
uint32_t loom_elect(struct loom_site *site);
uint32_t loom_shfl(struct loom_site *site, uint32_t v, uint32_t lane, int is_xor);
float loom_shfl_f32(struct loom_site *site, float v, uint32_t lane, int is_xor);
uint32_t loom_ballot(struct loom_site *site, uint32_t predicate);
void loom_setmaxnreg(struct loom_site *site, uint32_t registers, int increase);

struct dsmem loom_cluster_map(struct loom_site *site, struct smem p, uint32_t rank);
void loom_cluster_arrive(struct loom_site *site, int relaxed);
void loom_cluster_wait(struct loom_site *site);
void loom_cluster_sync(struct loom_site *site);

struct u32x4 loom_ldmatrix_x4(struct loom_site *site, struct smem row, int transpose);
void loom_stmatrix_x4(struct loom_site *site, struct smem row, struct u32x4 v, int transpose);

void loom_wgmma(struct loom_site *site, float *d, uint32_t n, int dtype, uint64_t desc_a,
                uint64_t desc_b, int scale_d, int a_mn_major, int b_mn_major);
void loom_wgmma_fence(struct loom_site *site);
void loom_wgmma_commit(struct loom_site *site);
void loom_wgmma_wait(struct loom_site *site, uint32_t groups);

float loom_bits_f32(uint32_t v);
uint32_t loom_f32_bits(float v);
float loom_ex2(float x);
float loom_lg2(float x);
float loom_tanh(float x);
float loom_fma(float a, float b, float c);
float loom_max(float a, float b);
float loom_min(float a, float b);
/* To nearest even, in the low bits. */
uint32_t loom_bf16(float v);
uint32_t loom_f16(float v);
uint32_t loom_e4m3(float v);
float loom_f16_f32(uint32_t v);

#endif
