/* The host side of the combine study: memory of each rank, one launch a rank, and the sums. */
#include "device/ep_study/combine.h"

#include <stdio.h>
#include <string.h>
#include <weft/loom.h>

#define TOKENS     4
#define TIMEOUT_NS 1000000000ull

/* What `from` sends to `to`: small whole numbers, so that sums are exact. */
static float value(uint32_t from, uint32_t to, uint32_t token, uint32_t word) {
  return (float)((int)((from * 7 + to * 5 + token * 3 + word) % 31) - 15);
}

static void fill_source(uint64_t source, uint32_t from, uint32_t ranks) {
  float row[COMBINE_ROW_WORDS];
  for (uint32_t to = 0; to < ranks; to++)
    for (uint32_t token = 0; token < TOKENS; token++) {
      for (uint32_t word = 0; word < COMBINE_ROW_WORDS; word++)
        row[word] = value(from, to, token, word);
      loom_write(source + ((uint64_t)to * TOKENS + token) * COMBINE_ROW_BYTES, row, sizeof row);
    }
}

static void compare(uint64_t out, uint32_t rank, uint32_t ranks) {
  float row[COMBINE_ROW_WORDS];
  for (uint32_t token = 0; token < TOKENS; token++) {
    loom_read(out + (uint64_t)token * COMBINE_ROW_BYTES, row, sizeof row);
    for (uint32_t word = 0; word < COMBINE_ROW_WORDS; word++) {
      float sum = 0;
      for (uint32_t from = 0; from < ranks; from++)
        sum += value(from, rank, token, word);
      if (row[word] == sum) continue;
      char text[160];
      snprintf(text, sizeof text, "rank %u token %u word %u: %g, expected %g", rank, token, word,
               (double)row[word], (double)sum);
      loom_report_wrong(text);
      return;
    }
  }
}

static void run(const struct loom_protocol *protocol, const struct loom_options *options) {
  const struct loom_kernel *kernel = protocol->context;
  const uint32_t ranks = options->ranks > protocol->ranks ? options->ranks : protocol->ranks;
  struct combine_args args[COMBINE_RANKS_MAX];
  if (ranks > COMBINE_RANKS_MAX) {
    loom_report_wrong("the combine study takes at most 16 ranks");
    return;
  }
  const size_t block = (size_t)ranks * TOKENS * COMBINE_ROW_BYTES;
  memset(args, 0, sizeof args);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    const uint64_t inbox = loom_alloc(rank, block), flags = loom_alloc(rank, 4 * ranks);
    loom_fill(flags, 0, 4 * ranks); /* an inbox is written before it is read, so it is not */
    for (uint32_t peer = 0; peer < ranks; peer++) {
      args[peer].inbox[rank].a = inbox;
      args[peer].flags[rank].a = flags;
    }
    args[rank].source.a = loom_alloc(rank, block);
    args[rank].out.a = loom_alloc(rank, TOKENS * COMBINE_ROW_BYTES);
    args[rank].error.a = loom_alloc(rank, 4);
    loom_fill(args[rank].error.a, 0, 4);
    fill_source(args[rank].source.a, rank, ranks);
    args[rank].timeout_ns = TIMEOUT_NS;
    args[rank].rank = rank;
    args[rank].ranks = ranks;
    args[rank].tokens = TOKENS;
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    const struct loom_launch launch = {kernel,       &args[rank],          rank,
                                       COMBINE_CTAS, COMBINE_SHARED_BYTES, 0};
    if (loom_launch(&launch) != 0) loom_report_wrong("the launch was refused");
  }
  loom_run();
  /* where something was found, bytes that nothing wrote may be among the results */
  if (loom_finding_count() > 0) return;
  for (uint32_t rank = 0; rank < ranks; rank++)
    compare(args[rank].out.a, rank, ranks);
}

/* form, name, verdict in both readings, text */
#define FORMS(X)                                                                                   \
  X(bare, "ep-combine-bare", FLAGGED, "an expert-parallel combine without fences")                 \
  X(pr632, "ep-combine-pr632", CLEAN, "the same, an unqualified fence before each bulk load")      \
  X(pr642, "ep-combine-pr642", FLAGGED, "the same, a fence of shared memory before each arrival")  \
  X(narrow, "ep-combine", CLEAN, "the same, the narrowest fences that are enough")

#define DEFINE(form, name_, verdict, text)                                                         \
  extern const struct loom_kernel sm90_combine_##form;                                             \
  static const struct loom_protocol form = {.name = name_,                                         \
                                            .summary = text,                                       \
                                            .run = run,                                            \
                                            .context = &sm90_combine_##form,                       \
                                            .ranks = 2,                                            \
                                            .strict = LOOM_##verdict,                              \
                                            .lenient = LOOM_##verdict,                             \
                                            .kind = LOOM_PROXY_FENCE};
FORMS(DEFINE)

void loom_combine_register(void) {
#define REGISTER(form, ...) loom_protocol_register(&form);
  FORMS(REGISTER)
}
