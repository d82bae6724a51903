/* What a step does besides backward's products: the logits of a tile leave exponentials and sums,
 * the sums of a row's tiles are merged to its loss, and its exponentials become dZ. Knows
 * backward's roles and wgmma's register layout.
 *
 * An exponential is stored in f16 as 2^((a - m) k + STEP_SHIFT), a the product x * w, m the row's
 * largest among the tile's 192 columns, k = log2(e) / T. The largest is 2^15: all of f16's eleven
 * bits hold down to 2^-29 of it. So dZ, made from it by one multiplication in f32, is rounded to
 * its own dtype as good as once. The target's entry, where p - 1 may cancel, is made from the
 * target's product, which is kept in f32. */
#ifndef WEFT_DEVICE_CE_SM90_STEP_MAKE_H
#define WEFT_DEVICE_CE_SM90_STEP_MAKE_H

#include "device/ce/sm90_backward_make.h"
#include "device/ce/step_schedule.h"

#define STEP_SHIFT          15.0f
#define STEP_UNSHIFT        (1.0f / 32768.0f)
#define STEP_LEAST          (-1000.0f) /* exponents below give 0; no arithmetic with infinite ones */
#define STEP_MINUS_INFINITY bits_f32(0xff800000u)
#define STEP_NAN            bits_f32(0x7fc00000u)

enum {
  STEP_COLS = 192,
  STEP_LINES = 8,           /* of a warpgroup's tile, that a thread converts parts of */
  STEP_MERGED_AT_ONCE = 16, /* sums of tiles that a thread has in flight */
};

/* ---- Sums of tiles ---- */

/* m: largest product; s, t relative to it, in base 2 and after temperature. */
struct row_sums {
  float m, s, t;
};

DEV struct gmem tile_sums(const struct backward_args *args, uint32_t half_tile, uint32_t which,
                          uint32_t row) {
  const uint64_t rows = (uint64_t)args->schedule.row_tiles * BACKWARD_TILE;
  return gmem_add(args->sums_of_tiles, ((half_tile * STEP_SUMS + which) * rows + row) * 4);
}

/* The largest of a row's columns, of which this thread has 48 and the three lanes beside it the
 * others. */
DEV float row_largest(const float *d, uint32_t below) {
  float m0 = STEP_MINUS_INFINITY, m1 = STEP_MINUS_INFINITY;
  UNROLL for (uint32_t j = 0; j < STEP_COLS / 8; j++) {
    m0 = max_f32(m0, d[4 * j + 2 * below]);
    m1 = max_f32(m1, d[4 * j + 2 * below + 1]);
  }
  m0 = max_f32(m0, m1);
  m0 = max_f32(m0, shfl_xor_f32(m0, 1));
  return max_f32(m0, shfl_xor_f32(m0, 2));
}

/* 32 products of a thread, two rows by 16 columns, become exponentials, and are added to the rows'
 * sums. All columns of a row may be past the end: then every exponent is minus infinity, and m
 * counts as 0. The difference comes first: a product by the scale may be so large that its rounding
 * alone would overflow f16. */
DEV void add_exponentials(float *d, float scale, uint32_t wants_entropy, struct row_sums rows[2]) {
  const float base[2] = {rows[0].m == STEP_MINUS_INFINITY ? 0.0f : rows[0].m,
                         rows[1].m == STEP_MINUS_INFINITY ? 0.0f : rows[1].m};
  if (wants_entropy) {
    UNROLL for (uint32_t i = 0; i < 32; i++) {
      const uint32_t below = i / 2 % 2;
      const float y = d[i] - base[below];
      d[i] = ex2(fma_f32(y, scale, STEP_SHIFT));
      rows[below].s += d[i];
      rows[below].t = fma_f32(d[i], max_f32(y * scale, STEP_LEAST), rows[below].t);
    }
  } else {
    UNROLL for (uint32_t i = 0; i < 32; i++) {
      const uint32_t below = i / 2 % 2;
      d[i] = ex2(fma_f32(d[i] - base[below], scale, STEP_SHIFT));
      rows[below].s += d[i];
    }
  }
}

/* This thread's share of a row's sums, and those of the lanes beside it. */
DEV void put_sums(const struct backward_args *args, struct row_sums r, uint32_t half_tile,
                  uint32_t row) {
  r.s += shfl_xor_f32(r.s, 1);
  r.s += shfl_xor_f32(r.s, 2);
  r.t += shfl_xor_f32(r.t, 1);
  r.t += shfl_xor_f32(r.t, 2);
  if (lane_index() % 4 != 0) return;
  st_global_f32(tile_sums(args, half_tile, 0, row), r.m);
  st_global_f32(tile_sums(args, half_tile, 1, row), r.s * STEP_UNSHIFT);
  if (args->wants_entropy) st_global_f32(tile_sums(args, half_tile, 2, row), r.t * STEP_UNSHIFT);
}

/* Keeps the product of a row's target, where this thread holds it. */
DEV void keep_target(const struct backward_args *args, const float *d, uint32_t row,
                     uint32_t target, uint32_t col, uint32_t below) {
  float value = 0.0f;
  uint32_t found = 0;
  UNROLL for (uint32_t i = 0; i < STEP_COLS / 4; i++) {
    if (target == col + i / 2 * 8 + i % 2) {
      value = d[i / 2 * 4 + below * 2 + i % 2];
      found = 1;
    }
  }
  if (found) st_global_f32(gmem_add(args->target_logits, (uint64_t)row * 4), value);
}

/* 64 rows, this thread's `row` and `row` + 8, by 192 columns from `first`, in d: leaves their
 * exponentials and sums. */
DEV void block_exponentials(const struct backward_args *args, struct consumer *c, float *d,
                            float scale, uint32_t row, uint32_t first) {
  const uint32_t col = first + lane_index() % 4 * 2;
  if (first + STEP_COLS > args->rows) {
    UNROLL for (uint32_t i = 0; i < STEP_COLS / 2; i++) {
      if (col + i / 4 * 8 + i % 2 >= args->rows) d[i] = STEP_MINUS_INFINITY;
    }
  }
  struct row_sums rows[2];
  UNROLL for (uint32_t below = 0; below < 2; below++) {
    const uint32_t at = row + below * 8;
    const uint32_t target = ld_global_u32(gmem_add(args->constants, (uint64_t)at * 16 + 12));
    if (target - first < STEP_COLS) keep_target(args, d, at, target, col, below);
    rows[below].m = row_largest(d, below);
    rows[below].s = rows[below].t = 0.0f;
  }
  UNROLL for (uint32_t n = 0; n < 3; n++) {
    uint32_t pairs[16];
    add_exponentials(d + n * 32, scale, args->wants_entropy, rows);
    UNROLL for (uint32_t p = 0; p < 16; p++) pairs[p] =
        pack_f16x2(d[n * 32 + 2 * p], d[n * 32 + 2 * p + 1]);
    stage_pairs(staging_open(&c->staging), c->thread, pairs, 0);
    staging_close(&c->staging);
  }
  put_sums(args, rows[0], first / STEP_COLS, row);
  put_sums(args, rows[1], first / STEP_COLS, row + 8);
}

/* ---- Loss ---- */

/* Adds other columns' sums; in the order in which it is called. */
DEV struct row_sums merge(struct row_sums a, struct row_sums b, float scale) {
  struct row_sums r;
  r.m = max_f32(a.m, b.m);
  /* Where m is minus infinity the differences are NaN, which max takes for the other operand. */
  const float da = max_f32((a.m - r.m) * scale, STEP_LEAST);
  const float db = max_f32((b.m - r.m) * scale, STEP_LEAST);
  const float fa = ex2(da), fb = ex2(db);
  r.s = fma_f32(fa, a.s, fb * b.s);
  r.t = fma_f32(fa, fma_f32(da, a.s, a.t), fb * fma_f32(db, b.s, b.t));
  return r;
}

DEV struct row_sums all_sums(const struct backward_args *args, uint32_t row, float scale) {
  const uint32_t count = 2 * args->schedule.col_tiles;
  struct row_sums sum = {STEP_MINUS_INFINITY, 0.0f, 0.0f};
  for (uint32_t first = 0; first < count; first += STEP_MERGED_AT_ONCE) {
    struct row_sums part[STEP_MERGED_AT_ONCE];
    UNROLL for (uint32_t i = 0; i < STEP_MERGED_AT_ONCE; i++) {
      const uint32_t k = first + i < count ? first + i : count - 1;
      part[i].m = ld_global_f32(tile_sums(args, k, 0, row));
      part[i].s = ld_global_f32(tile_sums(args, k, 1, row));
      part[i].t = args->wants_entropy ? ld_global_f32(tile_sums(args, k, 2, row)) : 0.0f;
    }
    UNROLL for (uint32_t i = 0; i < STEP_MERGED_AT_ONCE; i++) {
      if (first + i < count) sum = merge(sum, part[i], scale);
    }
  }
  return sum;
}

/* Whether the row's target is ignore_index, among those that do not count. */
DEV uint32_t is_ignored(const struct backward_args *args, uint32_t row) {
  const int64_t target = args->target_i64
                             ? (int64_t)ld_global_u64(gmem_add(args->target, (uint64_t)row * 8))
                             : (int32_t)ld_global_u32(gmem_add(args->target, (uint64_t)row * 4));
  return target == args->ignore_index;
}

/* One row whose sums are all there: its loss, and what its conversion takes. Of its constants, m
 * and log2 s join A and the target; target_weight becomes the target's entry of dZ. */
DEV void finish_row(const struct backward_args *args, uint32_t row, float scale) {
  if (row >= args->tokens) return;
  const struct row_sums sum = all_sums(args, row, scale);
  const struct f32x4 c = row_constants(args, row);
  const uint32_t target = f32_bits(c.w), dead = target == GRADIENT_DEAD;
  const struct gmem constants = gmem_add(args->constants, (uint64_t)row * 16);
  const struct gmem weight = gmem_add(args->target_weight, (uint64_t)row * 4);
  const uint64_t at = (uint64_t)row * 4;
  const uint32_t here = target < args->rows;
  const float log2_s = lg2(sum.s);
  const float logit = here ? ld_global_f32(gmem_add(args->target_logits, at)) : 0.0f;
  const float below = (sum.m - logit) * scale + log2_s; /* nll, in base 2 */
  const uint32_t ignored = dead && is_ignored(args, row);
  if (args->nll.a)
    st_global_f32(gmem_add(args->nll, at), ignored ? 0.0f : dead ? STEP_NAN : below * GRADIENT_LN2);
  if (args->lse.a)
    st_global_f32(gmem_add(args->lse, at), fma_f32(sum.m, scale, log2_s) * GRADIENT_LN2);
  if (args->entropy.a)
    st_global_f32(gmem_add(args->entropy, at),
                  ignored ? 0.0f : (log2_s - sum.t / sum.s) * GRADIENT_LN2);
  st_global_f32(constants, sum.m);
  st_global_f32(gmem_add(constants, 8), log2_s);
  if (here) {
    const float entry = fma_f32(ex2(-below), c.y, -ld_global_f32(weight));
    st_global_f32(weight, entry);
    st_global_f32(gmem_add(args->residual, at), entry - half_rounded(entry));
  }
}

/* A warpgroup has written its tile's sums: where they were the last of this CTA's half of the row
 * of tiles, it makes the loss. */
DEV void count_sums(const struct backward_args *args, const struct consumer *c, struct smem scratch,
                    const struct backward_tile *t, float scale) {
  const struct backward_schedule *s = &args->schedule;
  const uint32_t own = STAGING_OWN + c->index;
  bar_sync(own, 128);
  if (c->thread == 0) {
    const uint32_t before =
        atom_add_u32(acq_rel, gpu, counter(args, backward_summed(s, t->row, c->rank)), 1);
    st_shared_u32(scratch, before + 1 == 2 * s->col_tiles);
  }
  bar_sync(own, 128);
  if (!ld_shared_u32(scratch)) return;
  finish_row(args, t->row * BACKWARD_TILE + c->rank * 128 + c->thread, scale);
  bar_sync(own, 128);
  if (c->thread == 0)
    red_add_u32(release, gpu, counter(args, backward_merged(s, t->row, c->rank)), 1);
}

/* ---- From exponentials to dZ ---- */

DEV uint32_t converted_pair(uint32_t pair, float factor) {
  return pack_half2(f16_f32(pair) * factor, f16_f32(pair >> 16) * factor);
}

/* In place, a warpgroup's part of a tile: 128 tokens of its CTA's by 192 columns of its own. Eight
 * threads take three pieces of 128 bytes of every 16th line, 16 bytes each; all loads are on their
 * way together. Rows past the last token are there, and become 0. */
DEV void convert(const struct backward_args *args, const struct consumer *c, struct smem scratch,
                 uint32_t row_tile, uint32_t col_tile, float scale) {
  const uint32_t own = STAGING_OWN + c->index;
  const uint32_t first_row = row_tile * BACKWARD_TILE + c->rank * 128, row = first_row + c->thread;
  const uint32_t first = col_tile * BACKWARD_TILE_COLS + c->index * STEP_COLS;
  const struct gmem tile =
      gmem_add(args->kept, ((uint64_t)first_row * args->kept_stride + first) * 2);
  const uint64_t line_bytes = args->kept_stride * 2;
  const struct gmem mine =
      gmem_add(tile, c->thread / 8 * line_bytes + (uint64_t)(c->thread % 8 * 16));
  struct u32x4 v[STEP_LINES][3];
  UNROLL for (uint32_t i = 0; i < STEP_LINES; i++) {
    UNROLL for (uint32_t n = 0; n < 3; n++) v[i][n] =
        ld_global_u32x4(gmem_add(mine, i * 16 * line_bytes + n * 128));
  }
  const struct f32x4 constants = row_constants(args, row);
  const float m = ld_global_f32(tile_sums(args, first / STEP_COLS, 0, row));
  const float entry = ld_global_f32(gmem_add(args->target_weight, (uint64_t)row * 4));
  const uint32_t target = f32_bits(constants.w);
  /* A row that does not count has 0, whatever its exponentials are. */
  const float factor =
      target == GRADIENT_DEAD
          ? 0.0f
          : constants.y * ex2(fma_f32(m - constants.x, scale, -(constants.z + STEP_SHIFT)));
  st_shared_f32(smem_add(scratch, c->thread * 4), factor);
  bar_sync(own, 128);
  UNROLL for (uint32_t i = 0; i < STEP_LINES; i++) {
    const float by = ld_shared_f32(smem_add(scratch, (c->thread / 8 + i * 16) * 4));
    UNROLL for (uint32_t n = 0; n < 3; n++) {
      struct u32x4 out = {0, 0, 0, 0};
      if (by != 0.0f) {
        out.x = converted_pair(v[i][n].x, by);
        out.y = converted_pair(v[i][n].y, by);
        out.z = converted_pair(v[i][n].z, by);
        out.w = converted_pair(v[i][n].w, by);
      }
      st_global_u32x4(gmem_add(mine, i * 16 * line_bytes + n * 128), out);
    }
  }
  /* The line's own store has been there; and the factors have been read. */
  bar_sync(own, 128);
  if (target - first < STEP_COLS)
    st_global_u16(gmem_add(tile, c->thread * line_bytes + (uint64_t)(target - first) * 2),
                  (uint16_t)pack_half2(entry, 0.0f));
}

/* The dZ tiles of those numbers, at most STEP_MOST. */
DEV void convert_all(const struct backward_args *args, const struct consumer *c,
                     struct smem scratch, struct step_range range, float scale) {
  const struct backward_schedule *s = &args->schedule;
  const uint32_t own = STAGING_OWN + c->index, count = range.end - range.first;
  if (count == 0) return;
  if (c->thread < count) {
    /* The exponentials, by tensor stores whose storers waited for them, and what finish_row() of
     * any CTA has written. */
    const struct backward_tile t = step_tile(s, range.first + c->thread);
    wait_u32_ge(gpu, counter(args, backward_kept_of_row(s, t.row)), BACKWARD_SIGNALS * s->col_tiles,
                limit(args), STEP_CONVERT_TIMEOUT);
    wait_u32_ge(gpu, counter(args, backward_merged(s, t.row, c->rank)), 1, limit(args),
                STEP_CONVERT_TIMEOUT);
  }
  bar_sync(own, 128);
  for (uint32_t i = range.first; i < range.end; i++) {
    const struct backward_tile t = step_tile(s, i);
    convert(args, c, scratch, t.row, t.col, scale);
  }
  bar_sync(own, 128);
  if (c->thread < count) {
    const struct backward_tile t = step_tile(s, range.first + c->thread);
    red_add_u32(release, gpu, counter(args, backward_dz_of_row(s, t.row)), 1);
    red_add_u32(release, gpu, counter(args, backward_dz_of_col(s, t.col)), 1);
  }
}

DEV struct smem step_scratch(const struct consumer *c) {
  return smem_add(smem_base(), BACKWARD_SHARED_BYTES + c->index * STEP_SCRATCH_BYTES);
}

/* ---- Tiles ---- */

/* As make_dz(), with exponentials; then, while the other warpgroup multiplies, the conversions that
 * come with dZ tile `number`. */
DEV struct ring make_exponentials(const struct backward_args *args, struct shared s,
                                  struct consumer *c, struct inbox in, uint32_t number,
                                  struct ring ring) {
  float sums[192];
  const uint32_t steps = steps_of(args->hidden);
  /* The stages of the other consumer's tile lie before or after. */
  if (c->index == 1) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  turn_begin(c);
  ring = dz_multiply(s.stages, s.dz, ring, steps, c->index, c->thread, sums);
  turn_pass(c);
  const struct backward_tile t = inbox_tile(args, s, in);
  const uint32_t row = t.row * BACKWARD_TILE + c->rank * 128 + fragment_row(c->thread);
  const uint32_t first = t.col * BACKWARD_TILE_COLS + c->index * STEP_COLS;
  const float scale = GRADIENT_LOG2E * temperature_inverse(args);
  dz_finish(s.dz, ring, c->thread, sums);
  if (c->index == 0) ring = ring_skip(ring, steps, BACKWARD_STAGES_DZ);
  UNROLL for (uint32_t i = 0; i < 2; i++)
      block_exponentials(args, c, sums + i * 96, scale, row + i * 64, first);
  const struct smem scratch = step_scratch(c);
  count_sums(args, c, scratch, &t, scale);
  convert_all(args, c, scratch, step_conversions(&args->schedule, number), scale);
  turn_end(c);
  return ring;
}

/* A conversion that no dZ tile takes along. The storer has nothing to store, and meets the
 * consumer over an empty block. */
DEV void convert_alone(const struct backward_args *args, struct consumer *c, uint32_t index) {
  staging_open(&c->staging);
  convert_all(args, c, step_scratch(c), step_alone(&args->schedule, index),
              GRADIENT_LOG2E * temperature_inverse(args));
  staging_close(&c->staging);
}

#endif
