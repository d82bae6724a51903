/* Sizes of the CPU backend's workspace: what must be, and what the rest of the budget buys. */
#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "cpu/ce.h"

enum {
  DEFAULT_BUDGET = 58 << 20, /* and some 5 MiB of BLAS buffers: a call takes less than 64 MiB */
  LOSS_CHUNK = 960,          /* tokens of forward whose X is converted at once: two blocks */
  GRADIENT_CHUNK = 2048,     /* tokens of backward, where dW can be added to in f32 */
  LEAST_KEPT_CHUNK = 64,     /* below this, recomputing costs less than thin GEMMs */
  LARGEST_WAVE = 16          /* tiles; more tokens in cache beat a longer inner size of dX */
};

static int64_t least_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t most_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t round_up(int64_t a, int64_t to) {
  return (a + to - 1) / to * to;
}
static int64_t aligned(int64_t bytes) {
  return (int64_t)weft__align((size_t)bytes);
}

/* Bytes of a × b elements; what no memory holds counts as LARGEST, of which a few add up safely. */
static const int64_t largest_bytes = (int64_t)1 << 56;
static int64_t sized(int64_t a, int64_t b, int64_t element) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
      bytes > largest_bytes)
    return largest_bytes;
  return aligned(bytes);
}

/* Splits `tokens` into the fewest chunks of at most `largest`, of nearly the same size. */
static int64_t balanced(int64_t tokens, int64_t largest) {
  if (tokens <= largest) return tokens;
  const int64_t chunks = (tokens + largest - 1) / largest;
  return least_of(round_up((tokens + chunks - 1) / chunks, WEFT__ROW_GROUP), largest);
}

typedef struct request {
  const weft_ce_config *config;
  int64_t ranks;
  bool dx, dw, step;
  bool dw_adds; /* dW can be summed over token chunks without a second rounding */
} request;

/* All byte counts from the chunk and wave sizes already in *l. */
static void add_up(const request *r, weft__cpu_layout *l) {
  const weft_ce_config *c = r->config;
  const int64_t m = c->max_tokens, h = c->hidden;
  const int64_t chunk = most_of(most_of(l->loss_chunk, l->kept_chunk), l->gradient_chunk);
  const int64_t rows = weft__cpu_padded(l, chunk);
  const int64_t z_row = l->tile_ld * 4;
  const int64_t stats = (int64_t)sizeof(weft__stats);
  l->x_bytes = sized(rows, l->padded_hidden, 4);
  l->z_bytes = most_of(sized(l->tiles, weft__cpu_padded(l, l->kept_chunk), z_row),
                       sized(l->wave_tiles, weft__cpu_padded(l, l->gradient_chunk), z_row));
  l->tile_stats_bytes = sized(l->tiles, most_of(l->loss_chunk, l->kept_chunk), stats);
  l->stats_bytes = sized(m, 1, stats);
  const int64_t stats_block = least_of(m, WEFT__EXCHANGE_TOKENS) * stats;
  l->gathered_bytes = r->ranks > 1 ? sized(r->ranks, most_of(stats_block, h * 4), 1) : 0;
  l->target_bytes = sized(chunk, 1, 8);
  l->scratch_bytes =
      aligned(l->tile_rows * l->padded_hidden * 4) +
      most_of(aligned(least_of(rows, WEFT__BLOCK_ROWS) * z_row), aligned(l->padded_hidden * 4)) +
      aligned(16 * l->padded_hidden * 4);
  l->dx_buffer = r->dx && (r->ranks > 1 || c->dx_dtype != WEFT_F32);
  l->dx_bytes = l->dx_buffer ? sized(m, h, 4) : 0;
  l->symmetric_bytes = r->ranks > 1 ? l->dx_bytes : 0;
  l->local_bytes = l->x_bytes + l->z_bytes + l->tile_stats_bytes + l->stats_bytes +
                   l->gathered_bytes + l->target_bytes + l->threads * l->scratch_bytes +
                   (l->dx_bytes - l->symmetric_bytes);
}

static int64_t total(const request *r, weft__cpu_layout *l) {
  add_up(r, l);
  return l->local_bytes + l->symmetric_bytes;
}

/* The smallest layout that works at all. */
static void shrink(const request *r, weft__cpu_layout *l) {
  const int64_t m = r->config->max_tokens;
  l->loss_chunk = least_of(m, WEFT__ROW_GROUP);
  l->kept_chunk = 0;
  l->gradient_chunk = r->dx || r->dw ? (r->dw_adds ? least_of(m, WEFT__ROW_GROUP) : m) : 0;
  l->wave_tiles = l->gradient_chunk > 0 ? least_of(l->tiles, 1) : 0;
}

static bool fits(const request *r, weft__cpu_layout *l, int64_t *value, int64_t candidate,
                 int64_t budget) {
  *value = candidate;
  return total(r, l) <= budget;
}

/* Grows *value to the largest that fits the budget, of `largest` and its halves (step 0) or of
 * `largest` and the multiples of `step` below it. The total never falls as *value grows. */
static void grow(const request *r, weft__cpu_layout *l, int64_t *value, int64_t largest,
                 int64_t step, int64_t budget) {
  const int64_t fallback = *value;
  if (largest <= fallback || fits(r, l, value, largest, budget)) {
    *value = most_of(largest, fallback);
    return;
  }
  if (step == 0) {
    int64_t half = largest / 2;
    while (half > fallback && !fits(r, l, value, half, budget))
      half /= 2;
    *value = most_of(half, fallback);
    return;
  }
  int64_t good = fallback / step, bad = (largest - 1) / step + 1; /* in steps */
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    if (fits(r, l, value, middle * step, budget))
      good = middle;
    else
      bad = middle;
  }
  *value = most_of(good * step, fallback);
}

static void grow_backward(const request *r, weft__cpu_layout *l, int64_t budget) {
  const int64_t m = r->config->max_tokens;
  if (l->gradient_chunk == 0 || l->tiles == 0) return;
  if (r->dw_adds) grow(r, l, &l->gradient_chunk, balanced(m, GRADIENT_CHUNK), 0, budget);
  grow(r, l, &l->wave_tiles, least_of(l->tiles, LARGEST_WAVE), 1, budget);
  if (l->wave_tiles > l->threads) l->wave_tiles -= l->wave_tiles % l->threads;
}

static void grow_step(const request *r, weft__cpu_layout *l, int64_t kept_cap, int64_t budget) {
  const int64_t m = r->config->max_tokens;
  if (!r->step || kept_cap == 0) return;
  const int64_t cap = kept_cap == WEFT__NO_CAP ? m : least_of(m, kept_cap);
  grow(r, l, &l->kept_chunk, cap, WEFT__ROW_GROUP, budget);
  if (l->kept_chunk < m) {
    if (!r->dw_adds || l->kept_chunk < LEAST_KEPT_CHUNK)
      l->kept_chunk = 0;
    else if (kept_cap == WEFT__NO_CAP)
      l->kept_chunk = balanced(m, l->kept_chunk);
  }
}

weft_status weft__cpu_layout_make(const weft_ce_config *config, int64_t ranks, int64_t units,
                                  int64_t kept_cap, weft__cpu_layout *l, int64_t *least) {
  const int64_t h = config->hidden;
  const bool dx = config->wants & WEFT_CE_DX, dw = config->wants & WEFT_CE_DW;
  const request r = {config,
                     ranks,
                     dx,
                     dw,
                     (config->wants & WEFT_CE_STEP) && (dx || dw),
                     !dw || config->dw_dtype == WEFT_F32};
  *l = (weft__cpu_layout){0};
  l->threads = (int)least_of(units, WEFT__MAX_THREADS);
  l->padded_hidden = round_up(h, 16);
  l->tile_rows = h <= 4096 ? 512 : h <= 8192 ? 256 : 128;
  l->tile_ld = l->tile_rows + 16;
  l->least_rows = round_up(1000000 / (l->tile_rows * l->padded_hidden) + 1, WEFT__ROW_GROUP);
  const int64_t real = config->vocab - config->vocab_start;
  const int64_t rows = most_of(0, least_of(real, config->vocab_local));
  l->tiles = (rows + l->tile_rows - 1) / l->tile_rows;

  shrink(&r, l);
  *least = total(&r, l);
  int64_t budget = config->workspace_budget;
  if (budget == 0) budget = most_of(DEFAULT_BUDGET, *least);
  if (*least > budget)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_budget is %" PRId64 " bytes, expected at least %" PRId64,
                      budget, *least);
  grow_step(&r, l, kept_cap, budget);
  grow(&r, l, &l->loss_chunk, balanced(config->max_tokens, LOSS_CHUNK), 0, budget);
  grow_backward(&r, l, budget);
  l->waves = l->wave_tiles > 0 ? (l->tiles + l->wave_tiles - 1) / l->wave_tiles : 0;
  add_up(&r, l);
  return WEFT_OK;
}
