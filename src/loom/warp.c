/* Operations in which the 32 lanes of a warp meet. */
#include "finding.h"

#include <string.h>

/* The lanes of the warp that exist: the last warp of a CTA may be short. */
static uint32_t lanes(const struct thread *t) {
  const uint32_t left = t->cta->threads - t->warp * 32;
  return left < 32 ? left : 32;
}

/* Waits for every lane. With `orders` the lanes then know what all knew; without, only that it has
 * executed. */
static void meet(struct loom_site *site, int orders) {
  struct thread *t = L.current;
  struct warp_meeting *m = &t->cta->meeting[t->warp];
  if (m->arrived && m->site != site) {
    finding_here(LOOM_DIVERGENT, site, 0, "another lane of the warp is at %s, line %d", m->site->op,
                 m->site->line);
    stop_run();
  }
  m->site = site;
  m->thread[m->arrived++] = t;
  if (orders)
    gather_add(&m->gather, t, pass_mask(1));
  else
    gather_executed(&m->gather, t);
  known_tick(&t->known);
  if (m->arrived < lanes(t)) {
    block(site);
    return;
  }
  const struct view v = gather_close(&m->gather);
  for (uint32_t i = 0; i < m->arrived; i++) {
    struct thread *w = m->thread[i];
    if (orders)
      known_acquire(&w->known, &v, ~0u);
    else
      known_acquire_executed(&w->known, &v);
    if (w != t) ready(w);
  }
  m->arrived = 0;
}

void loom_warp_sync(struct loom_site *site) {
  if (enter(site)) return;
  meet(site, 1);
}

/* One lane for a warp's whole run, chosen by the seed. */
uint32_t loom_elect(struct loom_site *site) {
  enter(site);
  meet(site, 0);
  const struct thread *t = L.current;
  uint32_t h = (t->cta->elect_salt + t->warp) * 2654435761u;
  h ^= h >> 15;
  return t->lane == h * 2246822519u % lanes(t);
}

/* Puts a value where the other lanes will look. Two buffers: a lane can be one exchange ahead of a
 * lane that still reads, never two, since it would have to meet it. */
static uint32_t *exchange(struct loom_site *site, uint32_t v) {
  struct thread *t = L.current;
  const uint32_t turn = t->exchange_turn++ & 1;
  t->exchange[turn] = v;
  meet(site, 0);
  return &t->exchange[turn];
}

static uint32_t lane_value(const uint32_t *own, uint32_t lane) {
  struct thread *t = L.current;
  const size_t turn = (size_t)(own - t->exchange);
  return (t - t->lane + lane)->exchange[turn];
}

uint32_t loom_shfl(struct loom_site *site, uint32_t v, uint32_t lane, int is_xor) {
  enter(site);
  const uint32_t *own = exchange(site, v);
  const uint32_t from = (is_xor ? L.current->lane ^ lane : lane) & 31;
  return from < lanes(L.current) ? lane_value(own, from) : v;
}

float loom_shfl_f32(struct loom_site *site, float v, uint32_t lane, int is_xor) {
  return loom_bits_f32(loom_shfl(site, loom_f32_bits(v), lane, is_xor));
}

uint32_t loom_ballot(struct loom_site *site, uint32_t predicate) {
  enter(site);
  const uint32_t *own = exchange(site, predicate != 0);
  uint32_t r = 0;
  for (uint32_t i = 0; i < lanes(L.current); i++)
    r |= lane_value(own, i) << i;
  return r;
}

/* What warps give up is the CTA's, and an increase waits until there is enough of it. The first
 * lane to go on moves the whole warp's. */
void loom_setmaxnreg(struct loom_site *site, uint32_t registers, int increase) {
  struct cta *c = L.current->cta;
  struct warp_meeting *warp = &c->meeting[L.current->warp];
  enter(site);
  meet(site, 0);
  if (registers % 8 || registers < 24 || registers > 256 ||
      (increase ? registers < warp->registers : registers > warp->registers)) {
    finding_here(LOOM_ILLEGAL, site, 0, "%u registers, where the warp has %u", registers,
                 warp->registers);
    stop_run();
  }
  while (increase && warp->registers < registers) {
    const uint32_t more = 32 * (registers - warp->registers);
    if (more <= c->registers_free) {
      c->registers_free -= more;
      warp->registers = registers;
      break;
    }
    L.current->next = c->register_waiters;
    c->register_waiters = L.current;
    block(site);
  }
  if (!increase && warp->registers > registers) {
    c->registers_free += 32 * (warp->registers - registers);
    warp->registers = registers;
    wake_all(&c->register_waiters);
  }
}

/* ---- ldmatrix, stmatrix ---- */

/* The row that this lane names: 16 aligned bytes. */
static struct region *matrix_row(struct loom_site *site, struct smem row, size_t *offset) {
  struct region *g = region_shared(L.current->cta, row.a, 16, offset);
  if (g && row.a % 16 == 0) return g;
  finding_here(g ? LOOM_MISALIGNED : LOOM_ILLEGAL, site, row.a, "matrix row at shared %#x", row.a);
  stop_run();
  return NULL;
}

struct u32x4 loom_ldmatrix_x4(struct loom_site *site, struct smem row, int transpose) {
  enter(site);
  size_t offset;
  struct region *g = matrix_row(site, row, &offset);
  const struct access x = access_generic(site, 0, LOOM_SCOPE_cta);
  shadow_range(&x, g, offset, 16);
  if (!shadow_written(g, offset, 16))
    finding_here(LOOM_UNWRITTEN, site, row.a, "reads bytes at shared %#x that nothing wrote",
                 row.a);
  /* the row's eight elements travel as four exchanged words */
  uint32_t own[4], out[4], words[32][4];
  memcpy(own, g->base + offset, 16);
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t *p = exchange(site, own[i]);
    for (uint32_t lane = 0; lane < 32; lane++)
      words[lane][i] = lane_value(p, lane);
  }
  const uint32_t lane = L.current->lane;
  for (uint32_t m = 0; m < 4; m++) {
    uint16_t half[2];
    for (uint32_t e = 0; e < 2; e++) {
      const uint32_t major = lane / 4, minor = 2 * (lane % 4) + e;
      const uint32_t r = transpose ? minor : major, c = transpose ? major : minor;
      half[e] = (uint16_t)(words[m * 8 + r][c / 2] >> 16 * (c % 2));
    }
    out[m] = half[0] | (uint32_t)half[1] << 16;
  }
  return (struct u32x4){out[0], out[1], out[2], out[3]};
}

void loom_stmatrix_x4(struct loom_site *site, struct smem row, struct u32x4 v, int transpose) {
  enter(site);
  size_t offset;
  struct region *g = matrix_row(site, row, &offset);
  const uint32_t own[4] = {v.x, v.y, v.z, v.w};
  uint32_t words[32][4];
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t *p = exchange(site, own[i]);
    for (uint32_t lane = 0; lane < 32; lane++)
      words[lane][i] = lane_value(p, lane);
  }
  const uint32_t m = L.current->lane / 8, r = L.current->lane % 8;
  uint16_t out[8];
  for (uint32_t c = 0; c < 8; c++) {
    const uint32_t major = transpose ? c : r, minor = transpose ? r : c;
    out[c] = (uint16_t)(words[major * 4 + minor / 2][m] >> 16 * (minor % 2));
  }
  const struct access x = access_generic(site, REC_WRITE, LOOM_SCOPE_cta);
  shadow_range(&x, g, offset, 16);
  shadow_mark(g, offset, 16);
  memcpy(g->base + offset, out, 16);
}
