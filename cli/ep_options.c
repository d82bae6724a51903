/* See ep_options.h. Each default is here and nowhere else. */
#include "ep_options.h"

#include <stdio.h>

const char *const EP_DTYPE_NAMES[] = {"bf16", "fp8", NULL};
const char *const LAYOUT_NAMES[] = {"slab", "packed", NULL};
const char *const STRATEGY_NAMES[] = {"random",     "random-same", "local-rand",
                                      "local-same", "remote-rand", NULL};
const char *const FENCE_NAMES[] = {"on", "off", "wide", NULL};

enum { MOST_OPTIONS = 24, MOST_HIDDEN = 1 << 24, MOST_COUNT = 1000000 };

static int make_table(option *table, ep_options *o) {
  const option options[] = {
      {"--tokens", OPTION_INT, &o->tokens, .most = WEFT_EP_TOKENS_MAX, .argument = "N",
       .help = "tokens of each rank (1024)"},
      {"--hidden", OPTION_INT, &o->hidden, .least = 8, .most = MOST_HIDDEN, .argument = "H",
       .help = "hidden size, a multiple of 8 (7168)"},
      {"--experts", OPTION_INT, &o->experts, .least = 1, .most = WEFT_EP_EXPERTS_MAX,
       .argument = "E", .help = "experts of the whole team, a multiple of the ranks (256)"},
      {"--topk", OPTION_INT, &o->topk, .least = 1, .most = WEFT_EP_TOPK_MAX, .argument = "K",
       .help = "experts of a token (8)"},
      {"--ranks", OPTION_INT, &o->ranks, .least = 1, .most = WEFT_INPROC_RANKS_MAX, .argument = "N",
       .help = "ranks (4; mpi: those of the job)"},
      {"--hosts", OPTION_INT, &o->hosts, .least = 1, .most = WEFT_INPROC_RANKS_MAX, .argument = "N",
       .help = "hosts that the ranks stand for, in equal blocks (1)"},
      {"--dtype", OPTION_CHOICE, &o->dtype, .choices = EP_DTYPE_NAMES, .argument = "bf16|fp8",
       .help = "of dispatched rows; fp8: E4M3 with an f32 scale for 128 channels (bf16)"},
      {"--layout", OPTION_CHOICE, &o->layout, .choices = LAYOUT_NAMES, .argument = "slab|packed",
       .help = "of received rows; packed: experts begin at multiples of 128 (slab)"},
      {"--strategy", OPTION_CHOICE, &o->strategy, .choices = STRATEGY_NAMES,
       .argument = "random|random-same|local-rand|local-same|remote-rand",
       .help = "which experts tokens name: any, one draw for all tokens, those of the own rank, one"
               " draw of those, those of other ranks (random)"},
      {"--fence", OPTION_CHOICE, &o->fence, .choices = FENCE_NAMES, .argument = "on|off|wide",
       .help = "proxy fences of the GPU's kernels; a CPU has none (on)"},
      {"--unsafe", OPTION_FLAG, &o->unsafe,
       .help = "allow --fence off, whose results may be wrong"},
      {"--backend", OPTION_CHOICE, &o->backend, .choices = BACKEND_NAMES,
       .argument = "auto|cpu|cuda", .help = "where to run (auto)"},
      {"--transport", OPTION_CHOICE, &o->transport, .choices = TRANSPORT_NAMES,
       .argument = "inproc|mpi|nvshmem", .help = "what carries data between ranks (inproc)"},
      {"--seed", OPTION_INT, &o->seed, .most = INT64_MAX, .argument = "N",
       .help = "of the synthetic data (1)"},
      {"--warmup", OPTION_INT, &o->warmup, .most = MOST_COUNT, .argument = "N",
       .help = "calls before the timed ones (1)"},
      {"--iters", OPTION_INT, &o->iters, .least = 1, .most = MOST_COUNT, .argument = "N",
       .help = "timed calls of a round (1000 on a GPU, 3 on a CPU)"},
      {"--repeat", OPTION_INT, &o->repeat, .least = 1, .most = MOST_COUNT, .argument = "N",
       .help = "rounds; the results of each are compared with the first's (3)"},
      {"--verify", OPTION_FLAG, &o->verify,
       .help = "compare every row with a plain computation of its own, bit for bit"},
      {"--format", OPTION_CHOICE, &o->format, .choices = FORMAT_NAMES, .argument = "table|csv|json",
       .help = "of the output (table)"},
      {"--help", OPTION_FLAG, &o->help, .help = "this text"},
  };
  _Static_assert(sizeof options / sizeof options[0] <= MOST_OPTIONS, "the table holds every flag");
  const int count = sizeof options / sizeof options[0];
  for (int i = 0; i < count; i++)
    table[i] = options[i];
  return count;
}

/* A strategy needs K different experts to choose from. */
static bool check_choice(const ep_options *o, error *error) {
  const int64_t own = o->experts / o->ranks;
  int64_t choice = o->experts;
  if (o->strategy == STRATEGY_LOCAL_RAND || o->strategy == STRATEGY_LOCAL_SAME) choice = own;
  if (o->strategy == STRATEGY_REMOTE_RAND) choice = o->experts - own;
  if (o->topk <= choice) return true;
  return error_set(error,
                   "--topk is %lld; expected at most %lld, the experts that --strategy %s"
                   " chooses from",
                   (long long)o->topk, (long long)choice, STRATEGY_NAMES[o->strategy]);
}

bool ep_options_check_ranks(const ep_options *o, error *error) {
  if (o->ranks % o->hosts != 0)
    return error_set(error, "--hosts is %lld; expected a divisor of --ranks, which is %lld",
                     (long long)o->hosts, (long long)o->ranks);
  if (o->experts % o->ranks != 0)
    return error_set(error, "--experts is %lld; expected a multiple of --ranks, which is %lld",
                     (long long)o->experts, (long long)o->ranks);
  return check_choice(o, error);
}

bool ep_options_parse(ep_options *o, int count, char **arguments, error *error) {
  *o = (ep_options){.tokens = 1024,
                    .hidden = 7168,
                    .experts = 256,
                    .topk = 8,
                    .ranks = 4,
                    .hosts = 1,
                    .seed = 1,
                    .warmup = 1,
                    .repeat = 3};
  option table[MOST_OPTIONS];
  const int options = make_table(table, o);
  if (!options_parse(table, options, count, arguments, error)) return false;
  for (int i = 0; i < options; i++)
    if (table[i].value == &o->ranks && !table[i].given && o->transport == TRANSPORT_MPI)
      o->ranks = 0;
  if (o->hidden % 8 != 0)
    return error_set(error, "--hidden is %lld; expected a multiple of 8", (long long)o->hidden);
  if (o->fence == FENCE_OFF && !o->unsafe)
    return error_set(error, "--fence off may give wrong results; expected --unsafe beside it");
  return o->ranks == 0 || ep_options_check_ranks(o, error);
}

void ep_options_help(void) {
  ep_options o;
  option table[MOST_OPTIONS];
  const int count = make_table(table, &o);
  printf("weft ep: runs, times and checks dispatch and combine on synthetic data.\n\n"
         "usage: weft ep [flags]\n\n");
  options_help(table, count);
  printf(
      "\nA time is that of the slowest rank in a round, a call; us_p50 is the median of the rounds."
      "\nexit: 0 right, 1 wrong result, 2 usage, 3 unsupported here, 4 failure at run time\n");
}
