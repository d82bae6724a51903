/* Findings: made, merged by kind and sites, put into words. */
#ifndef WEFT_LOOM_FINDING_H
#define WEFT_LOOM_FINDING_H

#include "shadow.h"

/* Two accesses of one place. */
void finding_conflict(enum loom_finding_kind kind, const struct access *now,
                      const struct record *before, const struct region *region, size_t offset,
                      const char *fence);
/* One place in the program, seen by the running thread (or by `cta` and `thread`). */
void finding_here(enum loom_finding_kind kind, struct loom_site *site, uint64_t address,
                  const char *format, ...) __attribute__((format(printf, 4, 5)));
void finding_at(enum loom_finding_kind kind, struct loom_site *site, const struct cta *cta,
                uint32_t thread, uint64_t address, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* The whole run. */
void finding_run(enum loom_finding_kind kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void findings_reset(void);
const char *base_name(const char *path);

#endif
