/* Chooses the row table for this CPU, and merges statistics. */
#include "cpu/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

static const weft__rows *supported(int level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return &weft__rows_avx512;
  if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    return &weft__rows_avx2;
#else
  (void)level;
#endif
  return &weft__rows_baseline;
}

const weft__rows *weft__rows_best(void) {
  static const char *const names[] = {"baseline", "avx2", "avx512"};
  const char *asked = getenv("WEFT_ISA");
  if (asked == NULL || *asked == '\0') return supported(2);
  for (int level = 0; level < 3; level++) {
    if (strcmp(asked, names[level]) != 0) continue;
    const weft__rows *rows = supported(level);
    if (strcmp(rows->isa, asked) != 0)
      weft__log(WEFT_LOG_WARNING, "WEFT_ISA=\"%s\": this CPU has no more than %s", asked,
                rows->isa);
    return rows;
  }
  weft__log(WEFT_LOG_WARNING, "WEFT_ISA=\"%.80s\" is ignored: expected baseline, avx2 or avx512",
            asked);
  return supported(2);
}

weft__stats weft__stats_merge(weft__stats a, weft__stats b) {
  if (a.s == 0.0f) {
    b.z_target += a.z_target;
    return b;
  }
  if (b.s == 0.0f) {
    a.z_target += b.z_target;
    return a;
  }
  weft__stats r;
  r.m = a.m > b.m ? a.m : b.m;
  float da = a.m - r.m, db = b.m - r.m;           /* one of them is 0 */
  if (da < WEFT__FAR_BELOW) da = WEFT__FAR_BELOW; /* da·s must not become infinite */
  if (db < WEFT__FAR_BELOW) db = WEFT__FAR_BELOW;
  const float ea = expf(da), eb = expf(db);
  r.s = a.s * ea + b.s * eb;
  r.t = (a.t + da * a.s) * ea + (b.t + db * b.s) * eb;
  r.z_target = a.z_target + b.z_target;
  return r;
}
