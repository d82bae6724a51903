/* Three passes over tiles of 128 tokens × 256 vocabulary rows, each of which computes its logits
 * anew: losses (threads own tokens), dX (threads own tokens), dW (threads own vocabulary rows).
 * Five products instead of three, and no sum is shared between threads. */
#include "oracle.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "oracle_product.h"
#include "parallel.h"
#include "progress.h"
#include "synth.h"

const int64_t ORACLE_FULL = (int64_t)1 << 36;

/* Tiles are TOKENS × VOCAB, and DEPTH of the hidden dimension at a time. STRIDE keeps the rows of a
 * tile off each other's cache sets. */
enum { TOKENS = 128, VOCAB = 256, DEPTH = 256, STRIDE = 256 + 8, SAMPLES = 64 };

typedef struct pass {
  const problem *problem;
  oracle *oracle;
  const int64_t *tokens, *rows; /* index lists; NULL: all */
  int64_t tokens_count, rows_count;
  atomic_bool out_of_memory;
} pass;

/* One thread's tiles. */
typedef struct tiles {
  double x[TOKENS * STRIDE];            /* [token][h] */
  double w[VOCAB * STRIDE];             /* [row][h] */
  double w_transposed[DEPTH * STRIDE];  /* [h][row] */
  double z[TOKENS * STRIDE];            /* [token][row]: X·Wᵀ, then dZ */
  double dz_transposed[VOCAB * STRIDE]; /* [row][token] */
  double sum[];                         /* dX or dW: [TOKENS or VOCAB][width] */
} tiles;

static int64_t item(const int64_t *list, int64_t index) {
  return list != NULL ? list[index] : index;
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t round_up(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

/* Rows list[first …] of a matrix, elements [h, h + depth), as f64; what is beyond is 0. */
static void load_tile(double *tile, const tensor *from, const int64_t *list, int64_t first,
                      int64_t count, int64_t padded, int64_t h, int64_t depth) {
  const int64_t hidden = from->shape[1], element = dtype_bytes(from->dtype);
  for (int64_t i = 0; i < padded; i++) {
    double *to = tile + i * STRIDE;
    if (i < count)
      dtype_load(to, (const char *)from->data + (item(list, first + i) * hidden + h) * element,
                 from->dtype, depth);
    const int64_t done = i < count ? depth : 0;
    memset(to + done, 0, (size_t)(DEPTH - done) * sizeof *to);
  }
}

static void transpose(double *to, const double *from, int64_t rows, int64_t columns) {
  enum { BLOCK = 8 };
  for (int64_t i = 0; i < rows; i += BLOCK)
    for (int64_t j = 0; j < columns; j++)
      for (int64_t k = i; k < least(i + BLOCK, rows); k++)
        to[j * STRIDE + k] = from[k * STRIDE + j];
}

/* z = X·Wᵀ of one tile. */
static void dot_products(const pass *pass, tiles *t, int64_t token, int64_t tokens, int64_t row,
                         int64_t rows) {
  const problem *p = pass->problem;
  const int64_t columns = round_up(rows, PRODUCT_COLUMNS);
  const int64_t lines = round_up(tokens, PRODUCT_ROWS);
  for (int64_t i = 0; i < lines; i++)
    memset(t->z + i * STRIDE, 0, VOCAB * sizeof *t->z);
  for (int64_t h = 0; h < p->hidden; h += DEPTH) {
    const int64_t depth = least(DEPTH, p->hidden - h);
    load_tile(t->x, &p->x, pass->tokens, token, tokens, lines, h, depth);
    load_tile(t->w, &p->w, pass->rows, row, rows, columns, h, depth);
    transpose(t->w_transposed, t->w, columns, depth);
    oracle_product(t->z, STRIDE, t->x, STRIDE, t->w_transposed, STRIDE, lines, columns, depth);
  }
}

/* z of a dot product a, and dz/da in *slope. */
static double logit(const problem *p, double a, double *slope) {
  double capped = a, derivative = 1;
  if (p->softcap > 0) {
    const double th = tanh(a / p->softcap);
    capped = p->softcap * th;
    derivative = 1 - th * th;
  }
  *slope = derivative / p->temperature;
  return capped / p->temperature;
}

/* Running sums of one token over its logits: lse = high + ln sum, and Σ p·z = weighted / sum +
 * high, where sum = Σ e^(z − high) and weighted = Σ e^(z − high)·(z − high). */
typedef struct running {
  double high, sum, weighted, target, size;
} running;

static void add_logit(running *r, double z) {
  if (fabs(z) > r->size) r->size = fabs(z);
  if (z > r->high) {
    const double shift = r->high - z, factor = r->sum > 0 ? exp(shift) : 0;
    r->weighted = r->sum > 0 ? factor * (r->weighted + shift * r->sum) : 0;
    r->sum *= factor;
    r->high = z;
  }
  const double e = exp(z - r->high);
  r->sum += e;
  if (e > 0) r->weighted += e * (z - r->high);
}

static tiles *allocate(pass *pass, int64_t sums) {
  tiles *t = aligned_alloc(64, (size_t)round_up((int64_t)sizeof *t + sums * 8, 64));
  if (t == NULL) atomic_store(&pass->out_of_memory, true);
  return t;
}

static void losses(void *context, int64_t begin, int64_t end) {
  pass *pass = context;
  const problem *p = pass->problem;
  oracle *o = pass->oracle;
  tiles *t = allocate(pass, 0);
  if (t == NULL) return;
  running sums[TOKENS];
  const int64_t tokens = end - begin;
  for (int64_t i = 0; i < tokens; i++)
    sums[i] = (running){.high = -INFINITY, .target = NAN};
  for (int64_t row = 0; row < p->vocab; row += VOCAB) {
    const int64_t rows = least(VOCAB, p->vocab - row);
    dot_products(pass, t, begin, tokens, row, rows);
    for (int64_t i = 0; i < tokens; i++) {
      const int64_t target =
          dtype_int(p->target.data, p->target.dtype, item(pass->tokens, begin + i));
      for (int64_t v = 0; v < rows; v++) {
        double slope;
        const double z = logit(p, t->z[i * STRIDE + v], &slope);
        add_logit(&sums[i], z);
        if (row + v == target) sums[i].target = z;
      }
    }
    progress_add(tokens * rows);
  }
  for (int64_t i = 0; i < tokens; i++) {
    const int64_t token = item(pass->tokens, begin + i);
    const bool counts = problem_counts(p, token);
    o->lse[token] = sums[i].high + log(sums[i].sum);
    o->nll[token] = counts ? o->lse[token] - sums[i].target : 0;
    o->entropy[token] = counts ? log(sums[i].sum) - sums[i].weighted / sums[i].sum : 0;
    o->size[token] = sums[i].size;
  }
  free(t);
}

/* Turns a tile of X·Wᵀ into dZ. */
static void derivatives(const pass *pass, tiles *t, int64_t token, int64_t tokens, int64_t row,
                        int64_t rows) {
  const problem *p = pass->problem;
  const oracle *o = pass->oracle;
  for (int64_t i = 0; i < tokens; i++) {
    const int64_t m = item(pass->tokens, token + i);
    const int64_t target = dtype_int(p->target.data, p->target.dtype, m);
    double *line = t->z + i * STRIDE;
    if (target == p->ignore_index) {
      memset(line, 0, VOCAB * sizeof *line);
      continue;
    }
    const double g_nll = p->g_nll != NULL ? p->g_nll[m] : 0;
    const double g_lse = p->g_lse != NULL ? p->g_lse[m] : 0;
    const double g_entropy = p->g_entropy != NULL ? p->g_entropy[m] : 0;
    for (int64_t v = 0; v < rows; v++) {
      double slope;
      const double log_p = logit(p, line[v], &slope) - o->lse[m], prob = exp(log_p);
      const double onehot = item(pass->rows, row + v) == target;
      line[v] =
          (g_nll * (prob - onehot) - g_entropy * prob * (log_p + o->entropy[m]) + g_lse * prob) *
          slope;
    }
  }
}

static void store_rows(double *to, const double *sum, int64_t width, int64_t first, int64_t count,
                       int64_t hidden) {
  for (int64_t i = 0; i < count; i++)
    memcpy(to + (first + i) * hidden, sum + i * width, (size_t)hidden * sizeof *to);
}

static void token_gradients(void *context, int64_t begin, int64_t end) {
  pass *pass = context;
  const problem *p = pass->problem;
  const int64_t width = round_up(p->hidden, PRODUCT_COLUMNS), tokens = end - begin;
  const int64_t lines = round_up(tokens, PRODUCT_ROWS);
  tiles *t = allocate(pass, TOKENS * width);
  if (t == NULL) return;
  memset(t->sum, 0, (size_t)(TOKENS * width) * sizeof *t->sum);
  for (int64_t row = 0; row < p->vocab; row += VOCAB) {
    const int64_t rows = least(VOCAB, p->vocab - row);
    dot_products(pass, t, begin, tokens, row, rows);
    derivatives(pass, t, begin, tokens, row, rows);
    for (int64_t h = 0; h < p->hidden; h += DEPTH) {
      const int64_t depth = least(DEPTH, p->hidden - h);
      load_tile(t->w, &p->w, pass->rows, row, rows, rows, h, depth);
      oracle_product(t->sum + h, width, t->z, STRIDE, t->w, STRIDE, lines,
                     round_up(depth, PRODUCT_COLUMNS), rows);
    }
    progress_add(2 * tokens * rows);
  }
  store_rows(pass->oracle->dx, t->sum, width, begin, tokens, p->hidden);
  free(t);
}

static void row_gradients(void *context, int64_t begin, int64_t end) {
  pass *pass = context;
  const problem *p = pass->problem;
  const int64_t width = round_up(p->hidden, PRODUCT_COLUMNS), rows = end - begin;
  const int64_t lines = round_up(rows, PRODUCT_ROWS);
  tiles *t = allocate(pass, VOCAB * width);
  if (t == NULL) return;
  memset(t->sum, 0, (size_t)(VOCAB * width) * sizeof *t->sum);
  for (int64_t token = 0; token < p->tokens; token += TOKENS) {
    const int64_t tokens = least(TOKENS, p->tokens - token);
    dot_products(pass, t, token, tokens, begin, rows);
    derivatives(pass, t, token, tokens, begin, rows);
    memset(t->dz_transposed, 0, sizeof t->dz_transposed);
    transpose(t->dz_transposed, t->z, tokens, rows);
    for (int64_t h = 0; h < p->hidden; h += DEPTH) {
      const int64_t depth = least(DEPTH, p->hidden - h);
      load_tile(t->x, &p->x, pass->tokens, token, tokens, tokens, h, depth);
      oracle_product(t->sum + h, width, t->dz_transposed, STRIDE, t->x, STRIDE, lines,
                     round_up(depth, PRODUCT_COLUMNS), tokens);
    }
    progress_add(2 * tokens * rows);
  }
  store_rows(pass->oracle->dw, t->sum, width, begin, rows, p->hidden);
  free(t);
}

/* 64 tokens by seed; 64 vocabulary rows, half of them by seed and half the targets of those tokens,
 * since a row that is no token's target tests less. */
static bool choose(oracle *o, const problem *p, uint64_t seed) {
  o->tokens = malloc(SAMPLES * sizeof *o->tokens);
  o->rows = malloc(SAMPLES * sizeof *o->rows);
  if (o->tokens == NULL || o->rows == NULL) return false;
  o->tokens_count = o->rows_count = SAMPLES;
  for (int i = 0; i < SAMPLES; i++) {
    o->tokens[i] = synth_below(seed, SYNTH_SAMPLE, i, p->tokens);
    o->rows[i] = synth_below(seed, SYNTH_SAMPLE, SAMPLES + i, p->vocab);
    const int64_t target = dtype_int(p->target.data, p->target.dtype, o->tokens[i]);
    if (i % 2 == 0 && target >= 0 && target < p->vocab) o->rows[i] = target;
  }
  return true;
}

static double *doubles(int64_t rows, int64_t columns) {
  int64_t count, bytes;
  if (!multiply(rows, columns, &count) || !multiply(count, sizeof(double), &bytes)) return NULL;
  return malloc((size_t)bytes + sizeof(double));
}

bool oracle_compute(oracle *o, const problem *p, bool gradients, int64_t full, uint64_t seed,
                    error *error) {
  *o = (oracle){.hidden = p->hidden, .tokens_count = p->tokens, .rows_count = p->vocab};
  int64_t work = 0;
  o->sampled =
      !multiply(p->tokens, p->hidden, &work) || !multiply(work, p->vocab, &work) || work > full;
  if (o->sampled && !choose(o, p, seed)) goto no_memory;
  o->nll = doubles(p->tokens, 1);
  o->lse = doubles(p->tokens, 1);
  o->entropy = doubles(p->tokens, 1);
  o->size = doubles(p->tokens, 1);
  if (!o->nll || !o->lse || !o->entropy || !o->size) goto no_memory;
  if (gradients) {
    o->dx = doubles(o->tokens_count, p->hidden);
    o->dw = doubles(o->rows_count, p->hidden);
    if (!o->dx || !o->dw) goto no_memory;
  }

  /* dW needs the losses of every token; dX and the losses themselves only those of the sample. */
  pass pass = {.problem = p, .oracle = o};
  pass.tokens = gradients ? NULL : o->tokens;
  pass.tokens_count = gradients ? p->tokens : o->tokens_count;
  const double forward = (double)pass.tokens_count * (double)p->vocab;
  const double backward = !gradients ? 0
                                     : 2.0 * (double)o->tokens_count * (double)p->vocab +
                                           2.0 * (double)p->tokens * (double)o->rows_count;
  progress_begin("verify", (int64_t)(forward + backward));
  parallel_for(pass.tokens_count, TOKENS, losses, &pass);
  if (gradients) {
    pass.tokens = o->tokens;
    parallel_for(o->tokens_count, TOKENS, token_gradients, &pass);
    pass.tokens = NULL;
    pass.rows = o->rows;
    parallel_for(o->rows_count, VOCAB, row_gradients, &pass);
  }
  progress_end();
  if (!atomic_load(&pass.out_of_memory)) return true;
no_memory:
  oracle_free(o);
  return error_set(error, "no memory for the oracle of --verify");
}

void oracle_free(oracle *o) {
  free(o->nll);
  free(o->lse);
  free(o->entropy);
  free(o->size);
  free(o->tokens);
  free(o->dx);
  free(o->rows);
  free(o->dw);
  *o = (oracle){0};
}
