/* Memory regions: global allocations, shared memory of CTAs, and aliases. A global address carries
 * its region's number in the upper bits, so that lookup is an index and addresses do not depend on
 * where the host's allocator put things. */
#define _GNU_SOURCE
#include "finding.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REGION_SHIFT 40
/* Unwritten bytes read as this: a NaN in every floating-point format. */
#define POISON 0xff

/* Zero, and no memory until it is touched: large regions are mostly never looked at. */
static void *map_zeroed(size_t bytes) {
  void *p =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

struct region *region_new(size_t bytes, uint32_t gpu, struct cta *cta) {
  if (L.regions == L.regions_capacity) return NULL;
  struct region *g = &L.region[L.regions];
  memset(g, 0, sizeof *g);
  g->mapped = (bytes + 1023) & ~(size_t)1023;
  g->base = aligned_alloc(1024, g->mapped);
  const size_t granules = g->mapped / 16;
  g->shadow = map_zeroed(granules * sizeof *g->shadow);
  g->written = map_zeroed(granules * sizeof *g->written);
  g->touched = calloc(granules / GRANULE_BLOCK + 1, 1);
  if (!g->base || !g->shadow || !g->written || !g->touched) {
    region_free(g);
    return NULL;
  }
  memset(g->base, POISON, g->mapped);
  g->bytes = bytes;
  g->gpu = gpu;
  g->cta = cta;
  g->first = L.regions++;
  g->address = (uint64_t)(g->first + 1) << REGION_SHIFT;
  L.stats.shadow_bytes += granules * (sizeof *g->shadow + sizeof *g->written);
  return g;
}

void region_free(struct region *g) {
  if (!g->alias) {
    free(g->base);
    if (g->shadow) munmap(g->shadow, g->mapped / 16 * sizeof *g->shadow);
    if (g->written) munmap(g->written, g->mapped / 16 * sizeof *g->written);
    free(g->touched);
  }
  memset(g, 0, sizeof *g);
}

struct region *region_global(uint64_t address, size_t bytes, size_t *offset) {
  const uint64_t number = address >> REGION_SHIFT;
  if (number == 0 || number > L.regions) return NULL;
  struct region *g = &L.region[number - 1];
  *offset = (size_t)(address & (((uint64_t)1 << REGION_SHIFT) - 1));
  if (g->cta || !g->base || *offset > g->bytes || bytes > g->bytes - *offset) return NULL;
  return g;
}

struct region *region_shared(struct cta *cta, uint32_t address, size_t bytes, size_t *offset) {
  struct region *g = cta->smem;
  *offset = address;
  if (address < SMEM_START || address > g->bytes || bytes > g->bytes - address) return NULL;
  return g;
}

uint64_t loom_alloc(uint32_t gpu, size_t bytes) {
  if (!L.begun || L.running || gpu >= L.config.gpus || bytes == 0) return 0;
  struct region *g = region_new(bytes, gpu, NULL);
  if (!g) return 0;
  L.global_regions = L.regions;
  return g->address;
}

uint64_t loom_alias(uint64_t address) {
  size_t offset;
  struct region *g = region_global(address, 1, &offset);
  if (!g || L.running || L.regions == L.regions_capacity) return 0;
  uint32_t aliases = 0;
  for (uint32_t i = 0; i < L.regions; i++)
    aliases += L.region[i].first == g->first;
  struct region *a = &L.region[L.regions++];
  *a = *g;
  a->alias = aliases;
  a->address = (uint64_t)L.regions << REGION_SHIFT;
  L.global_regions = L.regions;
  return a->address + offset;
}

void loom_write(uint64_t address, const void *source, size_t bytes) {
  size_t offset;
  struct region *g = region_global(address, bytes, &offset);
  if (!g) {
    finding_run(LOOM_ILLEGAL, "the host writes %zu bytes outside an allocation", bytes);
    return;
  }
  memcpy(g->base + offset, source, bytes);
  shadow_mark(g, offset, bytes);
}

void loom_fill(uint64_t address, int byte, size_t bytes) {
  size_t offset;
  struct region *g = region_global(address, bytes, &offset);
  if (!g) {
    finding_run(LOOM_ILLEGAL, "the host fills %zu bytes outside an allocation", bytes);
    return;
  }
  memset(g->base + offset, byte, bytes);
  shadow_mark(g, offset, bytes);
}

void loom_read(uint64_t address, void *destination, size_t bytes) {
  size_t offset;
  struct region *g = region_global(address, bytes, &offset);
  if (g)
    memcpy(destination, g->base + offset, bytes);
  else
    finding_run(LOOM_ILLEGAL, "the host reads %zu bytes outside an allocation", bytes);
}
