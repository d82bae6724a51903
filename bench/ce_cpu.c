/* What step costs on CPUs, in one run: its time over that of its three bare sgemm calls on the same
 * data and cores, and the memory it takes above inputs and outputs.
 *
 *   ce_cpu [TOKENS HIDDEN VOCAB [ROUNDS]]
 *
 * A round runs the bare products and each case once, in turn; the table gives medians over the
 * rounds. Memory is measured in a process of its own for each case: the peak of the resident set
 * over two calls, less what was resident when inputs and outputs had been written. It includes what
 * BLAS takes for itself. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

#include "bare.h"
#include "dtype.h"
#include "options.h"
#include "problem.h"
#include "synth.h"

typedef struct bench_case {
  const char *name;
  int64_t ranks;
  weft_dtype dtype; /* dW is f32 in all */
} bench_case;

static const bench_case CASES[] = {{"f32, 1 rank", 1, WEFT_F32},
                                   {"f32, 4 ranks", 4, WEFT_F32},
                                   {"bf16, 1 rank, f32 dW", 1, WEFT_BF16}};

enum { CASE_COUNT = sizeof CASES / sizeof CASES[0], MOST_RANKS = 4, MOST_ROUNDS = 101 };

typedef struct sizes {
  int64_t tokens, hidden, vocab;
} sizes;

/* Inputs, outputs, a team and its plans. */
typedef struct setup {
  const bench_case *what;
  sizes sizes;
  tensor x, w, target, dw;
  tensor nll[MOST_RANKS], lse[MOST_RANKS], dx[MOST_RANKS];
  float *gradient;
  weft_comm *comms[MOST_RANKS];
  weft_ce_plan *plans[MOST_RANKS];
  weft_ce_args args[MOST_RANKS];
  double ms; /* of the last step */
} setup;

static void stop(const char *what, const char *why) {
  fprintf(stderr, "ce_cpu: %s: %s\n", what, why);
  exit(EXIT_FAILED);
}

static void must(const char *what, weft_status status) {
  if (status != WEFT_OK) stop(what, weft_last_error());
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static tensor make_tensor(weft_dtype dtype, int64_t rows, int64_t columns) {
  tensor t = {.dtype = dtype, .dims = 2, .shape = {rows, columns}};
  error e;
  if (!tensor_allocate(&t, &e)) stop("memory", e.text);
  memset(t.data, 0, (size_t)(t.count * dtype_bytes(dtype)));
  return t;
}

static void make_data(setup *s) {
  const sizes z = s->sizes;
  s->x = make_tensor(s->what->dtype, z.tokens, z.hidden);
  s->w = make_tensor(s->what->dtype, z.vocab, z.hidden);
  s->target = make_tensor(WEFT_I64, z.tokens, 1);
  s->dw = make_tensor(WEFT_F32, z.vocab, z.hidden);
  s->gradient = malloc((size_t)z.tokens * sizeof(float));
  if (s->gradient == NULL) stop("memory", "no upstream gradients");
  synth_normal(&s->x, 1, SYNTH_X, 1.0f);
  synth_normal(&s->w, 1, SYNTH_W, 1.0f / sqrtf((float)z.hidden));
  synth_targets(&s->target, 1, z.vocab, 0, -100);
  synth_gradient(s->gradient, z.tokens, 1, SYNTH_G_NLL);
  for (int64_t i = 0; i < s->what->ranks; i++) {
    s->nll[i] = make_tensor(WEFT_F32, z.tokens, 1);
    s->lse[i] = make_tensor(WEFT_F32, z.tokens, 1);
    s->dx[i] = make_tensor(s->what->dtype, z.tokens, z.hidden);
  }
}

typedef struct rank_job {
  setup *setup;
  int64_t rank;
} rank_job;

static void *plan_rank(void *argument) {
  const rank_job *job = argument;
  setup *s = job->setup;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = s->sizes.tokens;
  config.hidden = s->sizes.hidden;
  config.vocab = s->sizes.vocab;
  vocab_range(s->sizes.vocab, s->what->ranks, job->rank, &config.vocab_start, &config.vocab_local);
  config.wants = WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP;
  config.dtype = (int32_t)s->what->dtype;
  config.dw_dtype = WEFT_F32;
  must("plan", weft_ce_plan_create(s->comms[job->rank], &config, &s->plans[job->rank]));
  weft_ce_args *args = &s->args[job->rank];
  *args = (weft_ce_args)WEFT_CE_ARGS_INIT;
  const int64_t offset = config.vocab_start * config.hidden;
  args->tokens = s->sizes.tokens;
  args->x = s->x.data;
  args->w = (const char *)s->w.data + offset * dtype_bytes(s->what->dtype);
  args->target = s->target.data;
  args->g_nll = s->gradient;
  args->nll = s->nll[job->rank].data;
  args->lse = s->lse[job->rank].data;
  args->dx = s->dx[job->rank].data;
  args->dw = (float *)s->dw.data + offset;
  return NULL;
}

static void *step_rank(void *argument) {
  const rank_job *job = argument;
  setup *s = job->setup;
  weft_comm *comm = s->comms[job->rank];
  must("barrier", weft_comm_barrier(comm));
  const double began = milliseconds();
  must("step", weft_ce_step(s->plans[job->rank], &s->args[job->rank], NULL));
  must("barrier", weft_comm_barrier(comm));
  if (job->rank == 0) s->ms = milliseconds() - began;
  return NULL;
}

static void on_ranks(setup *s, void *(*body)(void *)) {
  pthread_t threads[MOST_RANKS];
  rank_job jobs[MOST_RANKS];
  for (int64_t i = 0; i < s->what->ranks; i++) {
    jobs[i] = (rank_job){s, i};
    if (pthread_create(&threads[i], NULL, body, &jobs[i]) != 0) stop("rank", "no thread");
  }
  for (int64_t i = 0; i < s->what->ranks; i++)
    pthread_join(threads[i], NULL);
}

static void make_team(setup *s) {
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = s->what->ranks;
  world.device = WEFT_DEVICE_CPU;
  must("world", weft_comm_create_inproc(&world, s->comms));
  on_ranks(s, plan_rank);
}

static double step(setup *s) {
  on_ranks(s, step_rank);
  return s->ms;
}

/* A line "NAME:  N kB" of /proc/self/status, in MiB. */
static double resident(const char *name) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[200];
  double kib = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (!strncmp(line, name, strlen(name))) kib = strtod(line + strlen(name) + 1, NULL);
  if (file != NULL) fclose(file);
  if (kib == 0) stop("/proc/self/status", name);
  return kib / 1024;
}

/* The child's side of the memory measurement: prints one number. */
static int print_memory(const bench_case *what, sizes sizes) {
  setup s = {.what = what, .sizes = sizes};
  make_data(&s);
  FILE *clear = fopen("/proc/self/clear_refs", "w");
  if (clear == NULL || fputs("5", clear) < 0 || fclose(clear) != 0)
    stop("/proc/self/clear_refs", "cannot reset the peak");
  const double before = resident("VmRSS");
  make_team(&s);
  step(&s);
  step(&s);
  printf("%.2f\n", resident("VmHWM") - before);
  return EXIT_RIGHT;
}

static double measure_memory(int index, sizes sizes) {
  char command[300], path[200];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) stop("/proc/self/exe", "cannot be read");
  path[length] = '\0';
  snprintf(command, sizeof command, "'%s' --memory %d %lld %lld %lld", path, index,
           (long long)sizes.tokens, (long long)sizes.hidden, (long long)sizes.vocab);
  FILE *child = popen(command, "r");
  double mib = NAN;
  if (child == NULL || fscanf(child, "%lf", &mib) != 1 || pclose(child) != 0)
    stop("memory", "its process failed");
  return mib;
}

static int ascending(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static int compare(sizes sizes, int rounds) {
  static double ms[CASE_COUNT + 1][MOST_ROUNDS];
  static setup setups[CASE_COUNT];
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  must("info", weft_system_info_get(&info));
  bare *bare = bare_open(info.blas);
  if (bare == NULL) return EXIT_FAILED;
  double memory[CASE_COUNT];
  for (int k = 0; k < CASE_COUNT; k++)
    memory[k] = measure_memory(k, sizes);
  for (int k = 0; k < CASE_COUNT; k++) {
    setups[k] = (setup){.what = &CASES[k], .sizes = sizes};
    make_data(&setups[k]);
    make_team(&setups[k]);
  }
  tensor z = make_tensor(WEFT_F32, sizes.tokens, sizes.vocab);
  setup *f32 = &setups[0];
  for (int r = -1; r < rounds; r++) { /* round −1 warms up and is not counted */
    const int at = r < 0 ? 0 : r;
    const double began = milliseconds();
    bare_products(bare, (int)info.cores, sizes.tokens, sizes.hidden, sizes.vocab, f32->x.data,
                  f32->w.data, z.data, f32->dx[0].data, f32->dw.data);
    ms[CASE_COUNT][at] = milliseconds() - began;
    for (int k = 0; k < CASE_COUNT; k++)
      ms[k][at] = step(&setups[k]);
  }
  const double products = median(ms[CASE_COUNT], rounds);
  const double operations = 6.0 * (double)sizes.tokens * (double)sizes.hidden * (double)sizes.vocab;
  double p50[CASE_COUNT];
  for (int k = 0; k < CASE_COUNT; k++)
    p50[k] = median(ms[k], rounds);
  printf("# step on CPUs: M=%lld H=%lld V=%lld, %lld cores, %s, %s\n", (long long)sizes.tokens,
         (long long)sizes.hidden, (long long)sizes.vocab, (long long)info.cores, info.isa,
         info.blas);
  printf("# medians of %d rounds, each of which runs all rows once in turn; 3 sgemm: z = X*W^T into"
         " memory, dX = z*W, dW = z^T*X, each on all cores\n",
         rounds);
  printf("# peak extra: resident above inputs and outputs, BLAS's own buffers included\n");
  printf("%-22s %10s %10s %9s %12s %14s %15s %16s\n", "case", "p50[ms]", "min[ms]", "GFLOP/s",
         "over_3_sgemm", "over_f32_1rank", "workspace[MiB]", "peak_extra[MiB]");
  printf("%-22s %10.1f %10.1f %9.1f %12.3f %14.3f %15s %16.1f\n", "3 sgemm", products,
         ms[CASE_COUNT][0], operations / (products * 1e6), 1.0, products / p50[0], "-",
         (double)(z.count * 4) / (1 << 20));
  for (int k = 0; k < CASE_COUNT; k++) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < CASES[k].ranks; i++) {
      weft_ce_plan_info plan = WEFT_CE_PLAN_INFO_INIT;
      must("plan", weft_ce_plan_info_get(setups[k].plans[i], &plan));
      bytes += plan.local_bytes + plan.symmetric_bytes;
    }
    printf("%-22s %10.1f %10.1f %9.1f %12.3f %14.3f %15.1f %16.1f\n", CASES[k].name, p50[k],
           ms[k][0], operations / (p50[k] * 1e6), p50[k] / products, p50[k] / p50[0],
           (double)bytes / (1 << 20), memory[k]);
  }
  bare_close(bare);
  return EXIT_RIGHT;
}

static int64_t number(const char *text, int64_t most) {
  int64_t value = 0;
  if (!parse_int(text, &value) || value < 1 || value > most) {
    fprintf(stderr, "ce_cpu: \"%s\": expected a whole number from 1 to %lld\n", text,
            (long long)most);
    exit(EXIT_USAGE);
  }
  return value;
}

int main(int argc, char **argv) {
  enum { MOST_SIZE = 1 << 20 };
  sizes sizes = {1024, 1024, 32768};
  int rounds = 7;
  if (argc == 6 && !strcmp(argv[1], "--memory")) {
    sizes.tokens = number(argv[3], MOST_SIZE);
    sizes.hidden = number(argv[4], MOST_SIZE);
    sizes.vocab = number(argv[5], MOST_SIZE);
    int64_t index = 0;
    if (!parse_int(argv[2], &index) || index < 0 || index >= CASE_COUNT) return EXIT_USAGE;
    return print_memory(&CASES[index], sizes);
  }
  if (argc != 1 && argc != 4 && argc != 5) {
    fprintf(stderr, "usage: ce_cpu [TOKENS HIDDEN VOCAB [ROUNDS]]\n");
    return EXIT_USAGE;
  }
  if (argc > 1) {
    sizes.tokens = number(argv[1], MOST_SIZE);
    sizes.hidden = number(argv[2], MOST_SIZE);
    sizes.vocab = number(argv[3], MOST_SIZE);
  }
  if (argc > 4) rounds = (int)number(argv[4], MOST_ROUNDS);
  return compare(sizes, rounds);
}
