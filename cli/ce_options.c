/* See ce_options.h. Each default is here and nowhere else. */
#include "ce_options.h"

#include <float.h>
#include <stdio.h>

const char *const FORMAT_NAMES[] = {"table", "csv", "json", NULL};
const char *const PHASE_NAMES[] = {"forward", "backward", "step", "all", NULL};
const char *const TRANSPORT_NAMES[] = {"inproc", "mpi", "nvshmem", NULL};
const char *const BACKEND_NAMES[] = {"auto", "cpu", "cuda", NULL};
const char *const DX_NAMES[] = {"all_reduce", "reduce_scatter", "none", NULL};
const char *const ARCH_NAMES[] = {"cpu", "sm90", "sm100", NULL};

static const char *const DTYPE_NAMES[] = {"f32", "bf16", "f16", NULL};
static const weft_dtype DTYPES[] = {WEFT_F32, WEFT_BF16, WEFT_F16};

enum { NOT_GIVEN = -1, MOST_OPTIONS = 40 };

/* 2^43 MiB are 2^63 bytes. */
static const int64_t MOST_MIB = ((int64_t)1 << 43) - 1;

/* A table over the fields of `o`; *dtype gets the index of the dtype's name. Returns its length. */
static int make_table(option *table, ce_options *o, int *dtype) {
  const option options[] = {
      {"--tokens", OPTION_INT, &o->tokens, .most = INT64_MAX, .argument = "M",
       .help = "tokens (1024; on a GPU 4096)"},
      {"--hidden", OPTION_INT, &o->hidden, .least = 1, .most = INT64_MAX, .argument = "H",
       .help = "hidden size (1024; on a GPU 4096)"},
      {"--vocab", OPTION_INT, &o->vocab, .least = 1, .most = INT64_MAX, .argument = "V",
       .help = "vocabulary of the whole team (32768; on a GPU 131072)"},
      {"--ranks", OPTION_INT, &o->ranks, .least = 1, .most = WEFT_RANKS_MAX, .argument = "N",
       .help = "ranks that share the vocabulary (1; mpi: those of the job)"},
      {"--hosts", OPTION_INT, &o->hosts, .least = 1, .most = WEFT_RANKS_MAX, .argument = "N",
       .help = "hosts that the ranks stand for, in equal blocks (1)"},
      {"--dtype", OPTION_CHOICE, dtype, .choices = DTYPE_NAMES, .argument = "f32|bf16|f16",
       .help = "of X and W (f32; on a GPU bf16)"},
      {"--temperature", OPTION_REAL, &o->temperature, .least_real = FLT_MIN, .most_real = FLT_MAX,
       .argument = "T", .help = "divides the logits (1)"},
      {"--softcap", OPTION_REAL, &o->softcap, .most_real = FLT_MAX, .argument = "C",
       .help = "C·tanh(·/C) on the logits before the temperature; 0: none (0)"},
      {"--entropy", OPTION_FLAG, &o->entropy,
       .help = "entropy as well, with a gradient of its own"},
      {"--ignore", OPTION_REAL, &o->ignore, .most_real = 1, .argument = "FRACTION",
       .help = "synthetic targets that do not count (0)"},
      {"--ignore-index", OPTION_INT, &o->ignore_index, .least = INT64_MIN, .most = INT64_MAX,
       .argument = "N", .help = "the target of a token that does not count (-100)"},
      {"--phase", OPTION_CHOICE, &o->phase, .choices = PHASE_NAMES,
       .argument = "forward|backward|step|all", .help = "what to run (all)"},
      {"--dx", OPTION_CHOICE, &o->dx, .choices = DX_NAMES,
       .argument = "all_reduce|reduce_scatter|none", .help = "dX over the team (all_reduce)"},
      {"--backend", OPTION_CHOICE, &o->backend, .choices = BACKEND_NAMES,
       .argument = "auto|cpu|cuda", .help = "where to run (auto)"},
      {"--transport", OPTION_CHOICE, &o->transport, .choices = TRANSPORT_NAMES,
       .argument = "inproc|mpi|nvshmem", .help = "what carries data between ranks (inproc)"},
      {"--workspace-mib", OPTION_INT, &o->workspace_mib, .most = MOST_MIB, .argument = "N",
       .help = "workspace budget of a rank; 0: the library's default (0)"},
      {"--seed", OPTION_INT, &o->seed, .most = INT64_MAX, .argument = "N",
       .help = "of the synthetic data (1)"},
      {"--warmup", OPTION_INT, &o->warmup, .most = 1000000, .argument = "N",
       .help = "calls before the timed ones (1; on a GPU 5)"},
      {"--iters", OPTION_INT, &o->iters, .least = 1, .most = 1000000, .argument = "N",
       .help = "timed calls (3; on a GPU 20)"},
      {"--verify", OPTION_FLAG, &o->verify,
       .help = "compare with an f64 oracle: everything up to 2^36 multiply-adds (M·H·V), beyond"
               " that 64 tokens and 64 vocabulary rows"},
      {"--x", OPTION_TEXT, &o->x, .argument = "FILE", .help = "X [M,H] from a file"},
      {"--w", OPTION_TEXT, &o->w, .argument = "FILE", .help = "W [V,H] from a file"},
      {"--targets", OPTION_TEXT, &o->targets, .argument = "FILE",
       .help = "targets [M] from a file"},
      {"--out", OPTION_TEXT, &o->out, .argument = "FILE",
       .help = "write nll, lse, entropy, dx, dw of the last phase as one .safetensors file"},
      {"--plan", OPTION_FLAG, &o->plan, .help = "print the plan and run nothing; needs no device"},
      {"--arch", OPTION_CHOICE, &o->arch, .choices = ARCH_NAMES, .argument = "cpu|sm90|sm100",
       .help = "machine that --plan is for (cpu)"},
      {"--sms", OPTION_INT, &o->sms, .most = 1000000, .argument = "N",
       .help = "its SMs or threads; 0: those of this machine (0)"},
      {"--format", OPTION_CHOICE, &o->format, .choices = FORMAT_NAMES, .argument = "table|csv|json",
       .help = "of the output (table)"},
      {"--help", OPTION_FLAG, &o->help, .help = "this text"},
  };
  const int count = sizeof options / sizeof options[0];
  _Static_assert(sizeof options / sizeof options[0] <= MOST_OPTIONS, "the table holds every flag");
  for (int i = 0; i < count; i++)
    table[i] = options[i];
  return count;
}

bool ce_options_parse(ce_options *o, int count, char **arguments, error *error) {
  *o = (ce_options){.tokens = NOT_GIVEN,
                    .hidden = NOT_GIVEN,
                    .vocab = NOT_GIVEN,
                    .ranks = 1,
                    .hosts = 1,
                    .temperature = 1,
                    .ignore_index = -100,
                    .seed = 1,
                    .warmup = NOT_GIVEN,
                    .iters = NOT_GIVEN,
                    .phase = PHASE_ALL};
  option table[MOST_OPTIONS];
  int dtype = NOT_GIVEN;
  const int options = make_table(table, o, &dtype);
  if (!options_parse(table, options, count, arguments, error)) return false;
  if (dtype != NOT_GIVEN) o->dtype = DTYPES[dtype];
  for (int i = 0; i < options; i++)
    if (table[i].value == &o->ranks && !table[i].given && o->transport == TRANSPORT_MPI && !o->plan)
      o->ranks = 0;
  if (o->ranks % o->hosts != 0)
    return error_set(error, "--hosts is %lld; expected a divisor of --ranks, which is %lld",
                     (long long)o->hosts, (long long)o->ranks);
  if (!o->plan && o->transport == TRANSPORT_INPROC && o->ranks > WEFT_INPROC_RANKS_MAX)
    return error_set(error, "--ranks is %lld; expected at most %d, the ranks of one process",
                     (long long)o->ranks, WEFT_INPROC_RANKS_MAX);
  if (o->softcap != 0 && o->softcap < FLT_MIN)
    return error_set(error, "--softcap is %g; expected 0 or a number from %g", o->softcap, FLT_MIN);
  if (o->targets != NULL && o->ignore > 0)
    return error_set(error,
                     "--ignore is %g; expected none beside --targets, whose file says which"
                     " tokens count",
                     o->ignore);
  for (int i = 0; i < options; i++)
    if (!o->plan && table[i].given && (table[i].value == &o->arch || table[i].value == &o->sms))
      return error_set(error, "%s was given without --plan", table[i].name);
  if (o->plan && (o->x != NULL || o->w != NULL || o->targets != NULL || o->out != NULL))
    return error_set(error, "--plan reads and writes no files; expected --tokens, --hidden and"
                            " --vocab");
  return true;
}

static void set_default(int64_t *value, int64_t on_cpu, int64_t on_gpu, bool gpu) {
  if (*value == NOT_GIVEN) *value = gpu ? on_gpu : on_cpu;
}

void ce_options_defaults(ce_options *o, bool gpu) {
  set_default(&o->tokens, 1024, 4096, gpu);
  set_default(&o->hidden, 1024, 4096, gpu);
  set_default(&o->vocab, 32768, 131072, gpu);
  set_default(&o->warmup, 1, 5, gpu);
  set_default(&o->iters, 3, 20, gpu);
  if (o->dtype == WEFT_DTYPE_DEFAULT) o->dtype = gpu ? WEFT_BF16 : WEFT_F32;
}

void ce_options_help(void) {
  ce_options o;
  option table[MOST_OPTIONS];
  int dtype;
  const int count = make_table(table, &o, &dtype);
  printf("weft ce: runs, times and checks the loss head on synthetic data or on files.\n\n"
         "usage: weft ce [flags]\n\n");
  options_help(table, count);
  printf("\nFILE is a .npy file, or FILE.safetensors:TENSOR; shapes and dtypes come from the files"
         "\n(bf16 in .safetensors only). Synthetic upstream gradients of nll, lse and, with"
         "\n--entropy, entropy are uniform in [0.25, 1.25).\n"
         "exit: 0 right, 1 wrong result, 2 usage, 3 unsupported here, 4 failure at run time\n");
}
