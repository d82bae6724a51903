/* Tensor maps in loom's own encoding, and tensor copies at issue. */
#include "async.h"

#include "finding.h"

#include <string.h>

#define MAP_MAGIC 0x6c6f6f6d6d617031ull

/* What the 128 opaque bytes hold. */
struct map {
  uint64_t magic, address, size[3], stride[3];
  uint32_t dtype, rank, swizzle, box[3];
};

_Static_assert(sizeof(struct map) <= sizeof(struct tensor_map), "a map is 128 bytes");

static uint32_t element_bytes(enum loom_dtype dtype) {
  return dtype == LOOM_F32 ? 4 : dtype == LOOM_U8 ? 1 : 2;
}

int loom_tensor_map_encode(void *out, enum loom_dtype dtype, uint32_t rank, uint64_t address,
                           const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           enum loom_swizzle swizzle) {
  struct map m;
  memset(&m, 0, sizeof m);
  const uint32_t element = element_bytes(dtype);
  if (rank < 1 || rank > 3 || address % 16) return -1;
  for (uint32_t d = 0; d < 3; d++) {
    m.size[d] = d < rank ? dims[d] : 1;
    m.box[d] = d < rank ? box[d] : 1;
    m.stride[d] = d == 0 ? element : d < rank ? strides[d - 1] : 0;
    if (m.size[d] == 0 || m.size[d] > 1ull << 32 || m.box[d] == 0 || m.box[d] > 256) return -1;
    if (d && d < rank && (m.stride[d] % 16 || m.stride[d] >= 1ull << 40)) return -1;
  }
  const uint32_t inner = m.box[0] * element;
  if (inner % 16) return -1;
  /* narrower rows than the span are legal on the device; weft has none, and their pitch is untested
   */
  if (swizzle != LOOM_SWIZZLE_NONE && inner != 16u << swizzle) return -1;
  m.magic = MAP_MAGIC;
  m.address = address;
  m.dtype = dtype;
  m.rank = rank;
  m.swizzle = swizzle;
  memset(out, 0, sizeof(struct tensor_map));
  memcpy(out, &m, sizeof m);
  return 0;
}

static struct box tensor_box(struct loom_site *site, const struct tensor_map *map,
                             struct smem shared, uint32_t rank, const int32_t *at,
                             enum loom_dtype *dtype) {
  struct map m;
  memcpy(&m, map, sizeof m);
  if (m.magic != MAP_MAGIC || m.rank != rank) {
    finding_here(LOOM_ILLEGAL, site, shared.a, "not a tensor map of %u dimensions", rank);
    stop_run();
  }
  if (shared.a % 128) {
    finding_here(LOOM_MISALIGNED, site, shared.a, "shared %#x is not a multiple of 128", shared.a);
    stop_run();
  }
  struct box b = {0};
  b.global = m.address;
  b.shared = shared.a;
  b.dims = rank;
  b.element = element_bytes((enum loom_dtype)m.dtype);
  b.swizzle = m.swizzle;
  b.row_units = m.box[0] * b.element / 16;
  b.units = b.row_units * m.box[1] * m.box[2];
  for (int d = 0; d < 3; d++) {
    b.extent[d] = m.box[d];
    b.size[d] = m.size[d];
    b.stride[d] = m.stride[d];
    b.at[d] = at[d];
  }
  *dtype = (enum loom_dtype)m.dtype;
  return b;
}

void loom_tensor_load(struct loom_site *site, struct smem dst, const struct tensor_map *map,
                      struct smem bar, uint32_t mask, uint32_t rank, int32_t c0, int32_t c1,
                      int32_t c2) {
  enter(site);
  const int32_t at[3] = {c0, c1, c2};
  enum loom_dtype dtype;
  const struct box box = tensor_box(site, map, dst, rank, at, &dtype);
  load_issue(site, &box, bar, mask);
}

void loom_tensor_store(struct loom_site *site, const struct tensor_map *map, struct smem src,
                       int reduce, uint32_t rank, int32_t c0, int32_t c1, int32_t c2) {
  enter(site);
  const int32_t at[3] = {c0, c1, c2};
  enum loom_dtype dtype;
  const struct box box = tensor_box(site, map, src, rank, at, &dtype);
  for (uint32_t d = 0; d < rank; d++)
    if (at[d] < 0) { /* an H200 answers with an illegal instruction */
      finding_here(LOOM_ILLEGAL, site, src.a, "a store at coordinate %d", at[d]);
      stop_run();
    }
  const int type = dtype == LOOM_F32    ? LOOM_REDUCE_F32
                   : dtype == LOOM_BF16 ? LOOM_REDUCE_BF16
                                        : LOOM_REDUCE_F16;
  store_issue(site, &box, reduce ? type : LOOM_REDUCE_NONE);
}
