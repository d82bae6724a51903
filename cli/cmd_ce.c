/* `weft ce`: parses, loads, runs, checks, reports, writes. Each of these is a file of its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

#include "commands.h"
#include "dtype.h"
#include "plan.h"
#include "report.h"
#include "safetensors.h"

/* Whether the CPU backend runs here: what the smallest plan answers. */
static int check_cpu(const ce_options *o, error *error) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  weft_ce_plan *plan = NULL;
  config.max_tokens = config.hidden = config.vocab = config.vocab_local = 1;
  config.threads = 1;
  const weft_status status = weft_ce_plan_create(NULL, &config, &plan);
  weft_ce_plan_destroy(plan);
  if (status != WEFT_OK)
    error_set(error, "--backend %s: %s", BACKEND_NAMES[o->backend], weft_last_error());
  return run_exit_code(status);
}

/* What this version can't do, found before any data is made. */
static int check_support(const ce_options *o, const weft_system_info *info, error *error) {
  if (!transport_is_here(o->transport, info, error)) return EXIT_UNSUPPORTED;
  if (o->backend == BACKEND_CUDA && o->transport == TRANSPORT_MPI) {
    error_set(error, "--backend cuda: --transport mpi is for CPUs");
    return EXIT_UNSUPPORTED;
  }
  if (o->backend == BACKEND_CUDA) {
    if (info->cuda_available) return EXIT_RIGHT;
    error_set(error, "--backend cuda: %s",
              info->cuda_reason != NULL ? info->cuda_reason : "no GPU can be used");
    return EXIT_UNSUPPORTED;
  }
  return check_cpu(o, error);
}

/* Where `auto` runs: on the GPU, where there is one that the library has a plan for. Sizes that
 * come from files do not matter, but their dtype is not known yet. */
static void choose_backend(ce_options *o, const weft_system_info *info) {
  if (o->backend != BACKEND_AUTO) return;
  o->backend = BACKEND_CPU;
  if (!info->cuda_available || o->transport != TRANSPORT_INPROC || o->x != NULL || o->w != NULL)
    return;
  ce_options planned = *o;
  ce_options_defaults(&planned, true);
  const weft_ce_config config = run_config(&planned, WEFT_DTYPE_DEFAULT, WEFT_I64, 0);
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  weft_ce_plan_info unused = WEFT_CE_PLAN_INFO_INIT;
  machine.arch = ARCH_NAMES[ARCH_SM90];
  machine.ranks = o->ranks;
  machine.hosts = o->hosts;
  if (weft_ce_plan_query(&config, &machine, &unused) == WEFT_OK) o->backend = BACKEND_CUDA;
}

/* Means over the tokens that count. */
static void summarise(phase_result *result, const outputs *out, const problem *p) {
  double nll = 0, entropy = 0;
  for (int64_t i = 0; i < p->tokens; i++) {
    if (!problem_counts(p, i)) continue;
    nll += out->nll[i];
    if (out->entropy != NULL) entropy += out->entropy[i];
  }
  result->perplexity = exp(nll / (double)p->counted);
  result->mean_entropy = out->entropy != NULL ? entropy / (double)p->counted : NAN;
}

/* The oracle is computed once, before the first phase is judged. */
typedef struct judge {
  oracle oracle;
  bool ready;
} judge;

static int run_and_check(run *run, ce_phase phase, judge *judge, phase_result *result,
                         error *error) {
  const ce_options *o = run->options;
  const problem *p = run->problem;
  timing timing = {0};
  int code = run_phase(run, phase, &timing, error);
  if (code == EXIT_RIGHT) code = run_collect(run, phase, error);
  if (code != EXIT_RIGHT || team_first(run->team) != 0) return code; /* rank 0 judges */
  *result = (phase_result){.phase = phase,
                           .median_ms = timing.median_ms,
                           .least_ms = timing.least_ms,
                           .tflops = report_flops(o, phase) / (timing.median_ms * 1e9)};
  const outputs out = run_outputs(run, phase);
  const int64_t differ = run_differences(run, phase);
  summarise(result, &out, p);
  check check = {.within = true};
  for (int kind = 0; kind < CHECK_COUNT; kind++)
    check.error[kind] = NAN;
  if (o->verify) {
    if (!judge->ready && !oracle_compute(&judge->oracle, p, o->phase != PHASE_FORWARD, ORACLE_FULL,
                                         (uint64_t)o->seed, error))
      return EXIT_FAILED;
    judge->ready = true;
    if (!check_outputs(&check, &out, &judge->oracle, p, error)) return EXIT_FAILED;
  }
  for (int kind = 0; kind < CHECK_COUNT; kind++)
    result->error[kind] = check.error[kind];
  result->wrong = check.wrong + differ;
  result->ok = check.within && differ == 0;
  if (differ > 0)
    complain(EXIT_WRONG, "ce: %s: %lld rows differ between ranks", PHASE_NAMES[phase],
             (long long)differ);
  return EXIT_RIGHT;
}

static int write_outputs(const run *run, ce_phase last, error *error) {
  const problem *p = run->problem;
  const outputs out = run_outputs(run, last);
  if (out.dx_parts > 1) {
    error_set(error,
              "--out with --dx none on %lld ranks: dX is in parts; expected all_reduce or"
              " reduce_scatter",
              (long long)run->ranks_count);
    return EXIT_USAGE;
  }
  const void *data[] = {out.nll, out.lse, out.entropy, out.dx != NULL ? out.dx[0] : NULL, out.dw};
  static const char *const names[] = {"nll", "lse", "entropy", "dx", "dw"};
  tensor tensors[CHECK_COUNT];
  named_tensor list[CHECK_COUNT];
  int count = 0;
  for (int kind = 0; kind < CHECK_COUNT; kind++) {
    if (data[kind] == NULL) continue;
    const bool gradient = kind >= CHECK_DX;
    const int64_t rows = kind == CHECK_DW ? p->vocab : p->tokens;
    tensors[count] = (tensor){.dtype = gradient ? out.dtype : WEFT_F32,
                              .dims = gradient ? 2 : 1,
                              .shape = {rows, p->hidden},
                              .count = gradient ? rows * p->hidden : rows,
                              .data = (void *)data[kind]};
    list[count] = (named_tensor){names[kind], &tensors[count]};
    count++;
  }
  return safetensors_write(run->options->out, list, count, error) ? EXIT_RIGHT : EXIT_FAILED;
}

static int run_phases(const problem *p, const ce_options *o, const team *team, report *report,
                      error *error) {
  run run;
  judge judge = {0};
  int code = run_create(&run, p, o, team, error);
  if (code != EXIT_RIGHT) return code;
  const ce_phase first = o->phase == PHASE_ALL ? PHASE_FORWARD : (ce_phase)o->phase;
  const ce_phase last = o->phase == PHASE_ALL ? PHASE_STEP : (ce_phase)o->phase;
  for (int phase = (int)first; phase <= (int)last && code == EXIT_RIGHT; phase++)
    code = run_and_check(&run, (ce_phase)phase, &judge, &report->results[report->results_count++],
                         error);
  if (code == EXIT_RIGHT && o->out != NULL && team_first(team) == 0)
    code = write_outputs(&run, last, error);
  report->plan = run.plan;
  report->workspace_bytes = run.workspace_bytes;
  report->counted = p->counted;
  report->sampled = judge.oracle.sampled;
  if (judge.ready) oracle_free(&judge.oracle);
  run_destroy(&run);
  return code;
}

static int run_ce(ce_options *o, team *team, error *error) {
  if (o->plan) return plan_print(o, error);
  if (o->out != NULL && o->dx == WEFT_DX_NONE && o->ranks > 1 && o->phase != PHASE_FORWARD) {
    error_set(error,
              "--out with --dx none: dX is in parts on %lld ranks; expected all_reduce or"
              " reduce_scatter",
              (long long)o->ranks);
    return EXIT_USAGE;
  }
  /* Ranks of one GPU need a hardware queue each, and there are 8 where nothing else is said. */
  if (o->backend != BACKEND_CPU && o->ranks > 8) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  if (weft_system_info_get(&info) != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    return EXIT_FAILED;
  }
  choose_backend(o, &info);
  int code = check_support(o, &info, error);
  if (code != EXIT_RIGHT) return code;
  if (o->transport == TRANSPORT_MPI) {
    code = team_join(team, o->ranks, o->hosts, error);
    if (code != EXIT_RIGHT) return code;
    o->ranks = team->ranks;
  }
  problem problem;
  code = team_verdict(team, problem_load(&problem, o, error));
  if (code != EXIT_RIGHT) return code;
  report report = {.options = o};
  if (o->backend == BACKEND_CUDA)
    snprintf(report.device, sizeof report.device, "cuda, %s", info.cuda_reason);
  else
    snprintf(report.device, sizeof report.device, "cpu, %lld cores, %s, %s", (long long)info.cores,
             info.isa != NULL ? info.isa : "?", info.blas != NULL ? info.blas : "no BLAS");
  code = run_phases(&problem, o, team, &report, error);
  problem_free(&problem);
  if (code != EXIT_RIGHT || team_first(team) != 0) return code;
  if (!report_print(&report)) {
    error_set(error, "cannot write to stdout");
    return EXIT_FAILED;
  }
  for (int i = 0; i < report.results_count; i++)
    if (!report.results[i].ok) {
      error_set(error, "%s: %lld rows are wrong, or an error is beyond its bound",
                PHASE_NAMES[report.results[i].phase], (long long)report.results[i].wrong);
      return EXIT_WRONG;
    }
  return EXIT_RIGHT;
}

int cmd_ce(int count, char **arguments) {
  ce_options options;
  error error;
  if (!ce_options_parse(&options, count, arguments, &error))
    return complain(EXIT_USAGE, "ce: %s", error.text);
  if (options.help) {
    ce_options_help();
    return end_output("ce");
  }
  team team = {0};
  error.text[0] = '\0';
  const int own = run_ce(&options, &team, &error);
  if (own != EXIT_RIGHT && *error.text != '\0') complain(own, "ce: %s", error.text);
  const int code = team_verdict(&team, own);
  team_leave(&team);
  return code;
}
