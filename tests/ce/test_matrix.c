/* Every pair of levels of all factors (no argument), random mixes of them ("random SEED COUNT"), or
 * the full product of ranks, dtypes, shapes, temperatures, caps and ignore patterns
 * ("full [FIRST [LAST]]", by number of problem; a problem is solved once and run at all rank
 * counts). The law: all ranks' outputs are within the contract's bounds of an f64 oracle, the same
 * bits on all ranks and from run to run, and no byte outside is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ce_case.h"
#include "pairwise.h"

enum factor {
  RANKS,
  DTYPE,
  TOKENS,
  HIDDEN,
  VOCAB,
  TEMPERATURE,
  CAP,
  IGNORE,
  IGNORE_INDEX,
  TARGET_DTYPE,
  UPSTREAM,
  ENTROPY,
  DX_MODE,
  DX_F32,
  DW_F32,
  WANTS,
  ACCUMULATE,
  PADDING,
  STRIDE,
  OFFSET,
  SPARE,
  SPLIT,
  BUDGET,
  WORKSPACE,
  THREADS,
  PHASE,
  WORLD,
  FACTORS
};

static const int64_t ranks[] = {1, 2, 3, 4, 8, 16};
static const int dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
static const int64_t tokens[] = {1, 17, 128, 521}, hiddens[] = {1, 7, 64, 129, 257};
static const int64_t vocabs[] = {1, 507, 1024, 1277, 4097};
static const double temperatures[] = {1, 0.7, 2.5, 1.7 /* by pointer */}, caps[] = {0, 2, 30};
static const int64_t ignore_indices[] = {-100, 0, 506, INT32_MIN, INT32_MAX};
static const int upstreams[] = {UP_NLL, UP_ENTROPY, UP_LSE, UP_NLL | UP_LSE,
                                UP_NLL | UP_ENTROPY | UP_LSE};
static const int64_t paddings[] = {0, 3, 700}, strides[] = {0, 1, 16};

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))
static const int levels[FACTORS] = {
    [RANKS] = COUNT(ranks),
    [DTYPE] = COUNT(dtypes),
    [TOKENS] = COUNT(tokens),
    [HIDDEN] = COUNT(hiddens),
    [VOCAB] = COUNT(vocabs),
    [TEMPERATURE] = COUNT(temperatures),
    [CAP] = COUNT(caps),
    [IGNORE] = 4,
    [IGNORE_INDEX] = COUNT(ignore_indices),
    [TARGET_DTYPE] = 2,
    [UPSTREAM] = COUNT(upstreams),
    [ENTROPY] = 2,
    [DX_MODE] = 3,
    [DX_F32] = 2,
    [DW_F32] = 2,
    [WANTS] = 4,
    [ACCUMULATE] = 2,
    [PADDING] = COUNT(paddings),
    [STRIDE] = COUNT(strides),
    [OFFSET] = 2,
    [SPARE] = 2,
    [SPLIT] = 4,
    [BUDGET] = 3,
    [WORKSPACE] = 2,
    [THREADS] = 3,
    [PHASE] = 2,
    [WORLD] = 3,
};

/* A plan without a team has one rank; nothing else excludes another. */
static bool allowed(int f, int a, int g, int b) {
  return !(f == RANKS && g == WORLD && b == WORLD_NONE && ranks[a] > 1);
}

static ce_case case_of(const int *level, uint64_t seed) {
  ce_case c = ce_default;
  c.ranks = ranks[level[RANKS]];
  c.dtype = dtypes[level[DTYPE]];
  c.tokens = tokens[level[TOKENS]];
  c.hidden = hiddens[level[HIDDEN]];
  c.vocab = vocabs[level[VOCAB]];
  c.temperature = temperatures[level[TEMPERATURE]];
  c.temperature_by_pointer = level[TEMPERATURE] == 3;
  c.cap = caps[level[CAP]];
  c.ignore = (ce_ignore)level[IGNORE];
  c.ignore_index = ignore_indices[level[IGNORE_INDEX]];
  c.target_dtype = level[TARGET_DTYPE] ? WEFT_I32 : WEFT_I64;
  c.upstream = upstreams[level[UPSTREAM]];
  c.entropy = level[ENTROPY];
  c.dx_mode = level[DX_MODE];
  c.dx_dtype = level[DX_F32] ? WEFT_F32 : WEFT_DTYPE_DEFAULT;
  c.dw_dtype = level[DW_F32] ? WEFT_F32 : WEFT_DTYPE_DEFAULT;
  c.no_dx = level[WANTS] == 1 || level[WANTS] == 3;
  c.no_dw = level[WANTS] == 2 || level[WANTS] == 3;
  c.accumulate = level[ACCUMULATE];
  c.padding = paddings[level[PADDING]];
  c.stride_extra = strides[level[STRIDE]];
  c.offset = level[OFFSET];
  c.spare_tokens = level[SPARE] ? 1000 : 0;
  c.split = (ce_split)level[SPLIT];
  c.budget = (ce_budget)level[BUDGET];
  c.own_workspace = level[WORKSPACE];
  c.threads = level[THREADS];
  c.step = level[PHASE];
  c.world = (ce_world)level[WORLD];
  c.seed = seed;
  return c;
}

static int check(const ce_case *c, const ce_problem *p, const char *number) {
  char message[500], text[600];
  if (ce_check_problem(c, p, message, sizeof message)) return 0;
  printf("FAIL %s: %s\n  %s\n", number, ce_describe(c, text, sizeof text), message);
  fflush(stdout);
  return 1;
}

static int check_alone(const ce_case *c, int64_t number) {
  char text[32];
  ce_problem p;
  snprintf(text, sizeof text, "%lld", (long long)number);
  ce_problem_make(c, &p);
  ce_problem_solve(c, &p);
  const int failed = check(c, &p, text);
  ce_problem_free(&p);
  return failed;
}

static int run_pairs(void) {
  pairwise_row *rows = malloc(PAIRWISE_ROWS * sizeof *rows);
  const int count = pairwise_make(levels, FACTORS, allowed, 1, rows);
  const int missing = pairwise_missing(levels, FACTORS, allowed, rows, count);
  int failed = missing > 0;
  if (missing > 0) printf("FAIL: %d pairs are not covered\n", missing);
  for (int i = 0; i < count; i++) {
    const ce_case c = case_of(rows[i].level, (uint64_t)i + 1);
    failed += check_alone(&c, i);
  }
  printf("%d cases that hold every pair of levels of %d factors: %d failed\n", count, FACTORS,
         failed);
  free(rows);
  return failed;
}

static int run_random(uint64_t seed, int64_t count) {
  int failed = 0;
  for (int64_t i = 0; i < count; i++) {
    int level[FACTORS];
    for (int f = 0; f < FACTORS; f++)
      level[f] = (int)(noise_uniform(seed + 1000, (uint64_t)(i * FACTORS + f)) * levels[f]);
    if (level[RANKS] > 0 && level[WORLD] == WORLD_NONE) level[WORLD] = WORLD_INPROC;
    const ce_case c = case_of(level, seed + (uint64_t)i);
    failed += check_alone(&c, i);
  }
  printf("%lld random cases of seed %llu: %d failed\n", (long long)count, (unsigned long long)seed,
         failed);
  return failed;
}

/* Problem `number` of the full product, mixed radix; the other factors follow from the number. */
static int64_t full_problem(int64_t number, int *level) {
  static const int product[] = {DTYPE, TOKENS, HIDDEN, VOCAB, TEMPERATURE, CAP, IGNORE};
  int64_t rest = number, total = 1;
  memset(level, 0, FACTORS * sizeof *level);
  for (int f = 0; f < FACTORS; f++)
    level[f] = (int)(noise_uniform(99, (uint64_t)(number * FACTORS + f)) * levels[f]);
  for (int i = 0; i < COUNT(product); i++) {
    level[product[i]] = (int)(rest % levels[product[i]]);
    rest /= levels[product[i]];
    total *= levels[product[i]];
  }
  return total;
}

static int run_full(int64_t first, int64_t last) {
  int level[FACTORS];
  int failed = 0;
  const int64_t total = full_problem(0, level);
  if (last < 0 || last >= total) last = total - 1;
  for (int64_t n = first; n <= last; n++) {
    ce_problem p;
    full_problem(n, level);
    level[RANKS] = 0;
    ce_case c = case_of(level, (uint64_t)n + 1);
    ce_problem_make(&c, &p);
    ce_problem_solve(&c, &p);
    for (int r = 0; r < COUNT(ranks); r++) {
      char text[48];
      c.ranks = ranks[r];
      if (c.ranks > 1 && c.world == WORLD_NONE) c.world = WORLD_INPROC;
      snprintf(text, sizeof text, "full %lld", (long long)n);
      failed += check(&c, &p, text);
    }
    ce_problem_free(&p);
    if (n % 100 == 99 || n == last) {
      printf("problems %lld to %lld of %lld: %d failed (go on with: full %lld)\n", (long long)first,
             (long long)n, (long long)total, failed, (long long)n + 1);
      fflush(stdout);
    }
  }
  return failed;
}

int main(int argc, char **argv) {
  int failed = 0;
  if (argc > 1 && strcmp(argv[1], "full") == 0)
    failed = run_full(argc > 2 ? atoll(argv[2]) : 0, argc > 3 ? atoll(argv[3]) : -1);
  else if (argc > 3 && strcmp(argv[1], "random") == 0)
    failed = run_random((uint64_t)atoll(argv[2]), atoll(argv[3]));
  else
    failed = run_pairs();
  return failed > 0;
}
