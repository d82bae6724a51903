/* Shadow memory: what accesses each 16-byte granule remembers, and the rules that judge a new one
 * against them. Regions and their lookup too. */
#ifndef WEFT_LOOM_SHADOW_H
#define WEFT_LOOM_SHADOW_H

#include "state.h"

/* One access about to be made. For async operations `known` is that of the issue. */
struct access {
  const struct known *known;
  uint32_t who, time; /* what the record will say: a thread or a channel */
  uint8_t flags, scope;
  struct loom_site *site;
  struct cta *cta; /* of the issuer */
  uint32_t thread;
};

struct region *region_new(size_t bytes, uint32_t gpu, struct cta *cta);
void region_free(struct region *region);
/* The region of a global address, or NULL when [address, address + bytes) is not inside one. */
struct region *region_global(uint64_t address, size_t bytes, size_t *offset);
/* Start of shared memory in every CTA: addresses below belong to the system. */
#define SMEM_START 1024u
struct region *region_shared(struct cta *cta, uint32_t address, size_t bytes, size_t *offset);

/* An ordinary access of the running thread. */
struct access access_generic(struct loom_site *site, uint8_t flags, int scope);

/* Judges and records. `mask` has a bit for each byte of the granule. */
void shadow_granule(const struct access *x, struct region *region, size_t granule, uint16_t mask);
void shadow_range(const struct access *x, struct region *region, size_t offset, size_t bytes);
/* Whether every byte was written; marks them written. */
int shadow_written(const struct region *region, size_t offset, size_t bytes);
void shadow_mark(struct region *region, size_t offset, size_t bytes);
/* Byte i of the range counts as written if bit i of the mask is set, else as not; at most 16. */
void shadow_put_written(struct region *region, size_t offset, uint32_t bytes, uint16_t mask);
/* Forgets who accessed what, keeps what is written. */
void shadow_forget(struct region *region);
void shadow_reset(void);

#endif
