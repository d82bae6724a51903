/* Tensor copies by tensor map (PTX "cp.async.bulk.tensor", tiled mode): a box at coordinates,
 * fastest dimension first, in elements; what lies outside the tensor reads as zero and is not
 * written. The map is a kernel argument, so no tensormap fence is needed. Loads complete on an
 * mbarrier with the bytes of the whole box, stores by bulk groups (bulk.h). Shared addresses are
 * aligned to 128 bytes, to 1024 where a swizzle pattern of 128 bytes should start at row 0. */
#ifndef WEFT_DEVICE_PTX_TENSOR_H
#define WEFT_DEVICE_PTX_TENSOR_H

#include "types.h"

#ifdef __CUDACC__

#define PTX_TENSOR_LOAD "cp.async.bulk.tensor."
#define PTX_TENSOR_TO   ".shared::cluster.global.mbarrier::complete_tx::bytes"

DEV void tensor_load_2d(struct smem dst, const struct tensor_map *map, struct smem bar, int32_t c0,
                        int32_t c1) {
  asm volatile(PTX_TENSOR_LOAD "2d" PTX_TENSOR_TO " [%0], [%1, {%3, %4}], [%2];" ::"r"(dst.a),
               "l"(map), "r"(bar.a), "r"(c0), "r"(c1)
               : "memory");
}

DEV void tensor_load_3d(struct smem dst, const struct tensor_map *map, struct smem bar, int32_t c0,
                        int32_t c1, int32_t c2) {
  asm volatile(PTX_TENSOR_LOAD "3d" PTX_TENSOR_TO " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst.a),
               "l"(map), "r"(bar.a), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

/* To the same offset in each CTA whose bit is set; each gets all the bytes on its own barrier. */
DEV void tensor_load_2d_multicast(struct smem dst, const struct tensor_map *map, struct smem bar,
                                  uint32_t mask, int32_t c0, int32_t c1) {
  asm volatile(PTX_TENSOR_LOAD "2d" PTX_TENSOR_TO
                               ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(dst.a),
               "l"(map), "r"(bar.a), "h"((uint16_t)mask), "r"(c0), "r"(c1)
               : "memory");
}

DEV void tensor_load_3d_multicast(struct smem dst, const struct tensor_map *map, struct smem bar,
                                  uint32_t mask, int32_t c0, int32_t c1, int32_t c2) {
  asm volatile(PTX_TENSOR_LOAD
               "3d" PTX_TENSOR_TO
               ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(dst.a),
               "l"(map), "r"(bar.a), "h"((uint16_t)mask), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

DEV void tensor_store_2d(const struct tensor_map *map, struct smem src, int32_t c0, int32_t c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(src.a), "r"(c0), "r"(c1)
      : "memory");
}

DEV void tensor_store_3d(const struct tensor_map *map, struct smem src, int32_t c0, int32_t c1,
                         int32_t c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(src.a), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

/* Adds in the map's element type; each addition is relaxed at gpu scope. */
DEV void tensor_reduce_add_2d(const struct tensor_map *map, struct smem src, int32_t c0,
                              int32_t c1) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::
          "l"(map),
      "r"(src.a), "r"(c0), "r"(c1)
      : "memory");
}

DEV void tensor_map_prefetch(const struct tensor_map *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#else

#define tensor_load_2d(dst, map, bar, c0, c1)                                                      \
  loom_tensor_load(LOOM_SITE(plain, "cp.async.bulk.tensor.2d.shared.global", ""), dst, map, bar,   \
                   0, 2, c0, c1, 0)
#define tensor_load_3d(dst, map, bar, c0, c1, c2)                                                  \
  loom_tensor_load(LOOM_SITE(plain, "cp.async.bulk.tensor.3d.shared.global", ""), dst, map, bar,   \
                   0, 3, c0, c1, c2)
#define tensor_load_2d_multicast(dst, map, bar, mask, c0, c1)                                      \
  loom_tensor_load(LOOM_SITE(plain, "cp.async.bulk.tensor.2d.shared.global.multicast", ""), dst,   \
                   map, bar, mask, 2, c0, c1, 0)
#define tensor_load_3d_multicast(dst, map, bar, mask, c0, c1, c2)                                  \
  loom_tensor_load(LOOM_SITE(plain, "cp.async.bulk.tensor.3d.shared.global.multicast", ""), dst,   \
                   map, bar, mask, 3, c0, c1, c2)
#define tensor_store_2d(map, src, c0, c1)                                                          \
  loom_tensor_store(LOOM_SITE(plain, "cp.async.bulk.tensor.2d.global.shared", ""), map, src, 0, 2, \
                    c0, c1, 0)
#define tensor_store_3d(map, src, c0, c1, c2)                                                      \
  loom_tensor_store(LOOM_SITE(plain, "cp.async.bulk.tensor.3d.global.shared", ""), map, src, 0, 3, \
                    c0, c1, c2)
#define tensor_reduce_add_2d(map, src, c0, c1)                                                     \
  loom_tensor_store(LOOM_SITE(plain, "cp.reduce.async.bulk.tensor.2d.add", ""), map, src, 1, 2,    \
                    c0, c1, 0)
#define tensor_map_prefetch(map) ((void)(map))

#endif
#endif
