/* Every rank is a thread; the threads live for one job (plans, a phase) each. Buffers are allocated
 * before they start, so that a rank never fails alone where the others would wait for it; should a
 * library call fail on one rank, it aborts the team. */
#include "run.h"

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dtype.h"
#include "progress.h"

typedef struct job {
  run *run;
  int64_t rank;
  ce_phase phase;
  double *ms; /* [iters], written by rank 0 */
  void (*body)(struct job *job);
} job;

int run_exit_code(weft_status status) {
  switch (status) {
  case WEFT_OK:
    return EXIT_RIGHT;
  case WEFT_ERR_UNSUPPORTED:
    return EXIT_UNSUPPORTED;
  case WEFT_ERR_ARGUMENT:
  case WEFT_ERR_WORKSPACE:
    return EXIT_USAGE;
  default:
    return EXIT_FAILED;
  }
}

/* Keeps the words of a failed call (they belong to this thread) and ends the peers' waits. */
static bool succeeded(rank *rank, weft_status status) {
  if (status == WEFT_OK) return true;
  rank->status = status;
  snprintf(rank->message, sizeof rank->message, "%s", weft_last_error());
  weft_comm_abort(rank->comm);
  return false;
}

static void *start(void *argument) {
  job *job = argument;
  job->body(job);
  return NULL;
}

/* A status that only tells of another rank's failure. */
static bool secondary(weft_status status) {
  return status == WEFT_ERR_PEER || status == WEFT_ERR_ABORTED || status == WEFT_ERR_TIMEOUT;
}

/* Runs body on every rank's thread, then returns the exit code of the failure that came first in
 * cause: a rank's own before what others saw of it. */
static int on_all_ranks(run *run, ce_phase phase, double *ms, void (*body)(job *), error *error) {
  const int64_t count = run->ranks_count, first_here = team_first(run->team);
  const int64_t end = team_end(run->team, count);
  pthread_t *threads = calloc((size_t)count, sizeof *threads);
  job *jobs = calloc((size_t)count, sizeof *jobs);
  int64_t started = first_here;
  int code = EXIT_RIGHT;
  if (threads == NULL || jobs == NULL) {
    error_set(error, "no memory for %lld threads", (long long)count);
    code = EXIT_FAILED;
    goto cleanup;
  }
  for (; started < end; started++) {
    jobs[started] = (job){run, started, phase, ms, body};
    if (pthread_create(&threads[started], NULL, start, &jobs[started]) != 0) {
      error_set(error, "cannot start a thread for rank %lld", (long long)started);
      weft_comm_abort(run->ranks[started].comm);
      code = EXIT_FAILED;
      break;
    }
  }
  for (int64_t i = first_here; i < started; i++)
    pthread_join(threads[i], NULL);
  const rank *first = NULL;
  for (int64_t i = 0; i < count; i++) {
    const rank *rank = &run->ranks[i];
    if (rank->status == WEFT_OK) continue;
    if (first == NULL || (secondary(first->status) && !secondary(rank->status))) first = rank;
  }
  if (first != NULL && code == EXIT_RIGHT) {
    error_set(error, "%s (rank %lld: %s)", first->message, (long long)(first - run->ranks),
              weft_status_string(first->status));
    code = run_exit_code(first->status);
  }
cleanup:
  free(threads);
  free(jobs);
  return code;
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

weft_ce_config run_config(const ce_options *o, weft_dtype w_dtype, weft_dtype target_dtype,
                          int64_t rank) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = o->tokens;
  config.hidden = o->hidden;
  config.vocab = o->vocab;
  vocab_range(o->vocab, o->ranks, rank, &config.vocab_start, &config.vocab_local);
  config.ignore_index = o->ignore_index;
  config.workspace_budget = o->workspace_mib << 20;
  config.softcap = (float)o->softcap;
  if (o->entropy) config.wants |= WEFT_CE_ENTROPY;
  if (o->phase != PHASE_FORWARD) config.wants |= WEFT_CE_DX | WEFT_CE_DW;
  if (o->phase == PHASE_STEP || o->phase == PHASE_ALL) config.wants |= WEFT_CE_STEP;
  config.dtype = (int32_t)o->dtype;
  config.w_dtype = (int32_t)w_dtype;
  config.target_dtype = (int32_t)target_dtype;
  config.dx_mode = o->dx;
  return config;
}

static void make_plan(job *job) {
  run *run = job->run;
  const problem *p = run->problem;
  rank *rank = &run->ranks[job->rank];
  const weft_ce_config config = run_config(run->options, p->w.dtype, p->target.dtype, job->rank);
  succeeded(rank, weft_ce_plan_create(rank->comm, &config, &rank->plan));
}

static int64_t shard_rows(const run *run) {
  return (run->problem->tokens + run->ranks_count - 1) / run->ranks_count;
}

/* What each rank writes, and the arguments that point to it. */
static bool make_buffers(run *run) {
  const problem *p = run->problem;
  const size_t rows = (size_t)p->tokens + 1, element = (size_t)dtype_bytes(p->dtype);
  const size_t dx_bytes = rows * (size_t)p->hidden * element;
  const bool gradients = run->options->phase != PHASE_FORWARD;
  const bool scatter = run->options->dx == WEFT_DX_REDUCE_SCATTER;
  const size_t shard = (size_t)shard_rows(run) * (size_t)p->hidden * element;
  if (gradients) {
    run->dw = malloc((size_t)p->vocab * (size_t)p->hidden * element);
    if (scatter) run->dx_shared = malloc(shard * (size_t)run->ranks_count + 1);
    run->dx_parts = calloc((size_t)run->ranks_count, sizeof *run->dx_parts);
    if (!run->dw || !run->dx_parts || (scatter && !run->dx_shared)) return false;
  }
  for (int64_t i = team_first(run->team); i < team_end(run->team, run->ranks_count); i++) {
    rank *rank = &run->ranks[i];
    rank->nll = malloc(rows * sizeof(float));
    rank->lse = malloc(rows * sizeof(float));
    rank->stats = malloc(rows * 4 * sizeof(float));
    if (!rank->nll || !rank->lse || !rank->stats) return false;
    if (run->options->entropy && !(rank->entropy = malloc(rows * sizeof(float)))) return false;
    int64_t start = 0, vocab_rows = 0;
    vocab_range(p->vocab, run->ranks_count, i, &start, &vocab_rows);
    const size_t offset = (size_t)start * (size_t)p->hidden;
    rank->args = (weft_ce_args)WEFT_CE_ARGS_INIT;
    rank->args.tokens = p->tokens;
    rank->args.x = p->x.data;
    rank->args.w = (const char *)p->w.data + offset * (size_t)dtype_bytes(p->w.dtype);
    rank->args.target = p->target.data;
    rank->args.temperature = p->temperature;
    rank->args.g_nll = p->g_nll;
    rank->args.g_entropy = p->g_entropy;
    rank->args.g_lse = p->g_lse;
    rank->args.stats = rank->stats;
    rank->args.nll = rank->nll;
    rank->args.lse = rank->lse;
    rank->args.entropy = rank->entropy;
    if (!gradients) continue;
    rank->dx = scatter ? (char *)run->dx_shared + shard * (size_t)i : malloc(dx_bytes);
    if (rank->dx == NULL) return false;
    run->dx_parts[i] = rank->dx;
    rank->args.dx = rank->dx;
    rank->args.dw = (char *)run->dw + offset * element;
  }
  if (scatter && gradients) run->dx_parts[0] = run->dx_shared;
  return true;
}

static bool on_gpu(const run *run) {
  return run->options->backend == BACKEND_CUDA;
}

/* Moves what a rank's arguments point to; the host's arrays are what checks look at. */
static bool move_to_gpu(run *run, int64_t index, error *error) {
  const problem *p = run->problem;
  rank *rank = &run->ranks[index];
  weft_ce_args *a = &rank->args;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  int64_t start = 0, vocab_rows = 0;
  if (weft_comm_info_get(rank->comm, &info) != WEFT_OK ||
      weft_comm_stream_get(rank->comm, &rank->stream) != WEFT_OK)
    return error_set(error, "%s", weft_last_error());
  rank->device.gpu = info.gpu;
  vocab_range(p->vocab, run->ranks_count, index, &start, &vocab_rows);
  const int64_t m = p->tokens, row = p->hidden * dtype_bytes(p->dtype);
  const int64_t dx_rows = run->options->dx == WEFT_DX_REDUCE_SCATTER ? shard_rows(run) : m;
  const struct {
    const void **pointer;
    int64_t bytes;
    bool output;
  } arrays[] = {
      {&a->x, m * row, false},
      {&a->w, vocab_rows * row, false},
      {&a->target, m * dtype_bytes(p->target.dtype), false},
      {(const void **)&a->g_nll, m * 4, false},
      {(const void **)&a->g_entropy, m * 4, false},
      {(const void **)&a->g_lse, m * 4, false},
      {(const void **)&a->stats, m * 16, true},
      {(const void **)&a->nll, m * 4, true},
      {(const void **)&a->lse, m * 4, true},
      {(const void **)&a->entropy, m * 4, true},
      {(const void **)&a->dx, dx_rows * row, true},
      {(const void **)&a->dw, vocab_rows * row, true},
  };
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
    if (!device_add(&rank->device, arrays[i].pointer, arrays[i].bytes, arrays[i].output, error))
      return false;
  return true;
}

int run_create(run *run, const problem *p, const ce_options *o, const team *team, error *error) {
  *run = (struct run){.problem = p, .options = o, .team = team, .ranks_count = o->ranks};
  weft_comm **comms = calloc((size_t)o->ranks, sizeof(weft_comm *));
  run->ranks = calloc((size_t)o->ranks, sizeof *run->ranks);
  int code = EXIT_FAILED;
  if (comms == NULL || run->ranks == NULL || !make_buffers(run)) {
    error_set(error, "no memory for the outputs of %lld ranks", (long long)o->ranks);
    goto cleanup;
  }
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = o->ranks;
  world.hosts = o->hosts;
  world.device = o->backend == BACKEND_CUDA ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
  const weft_status status = team->world == NULL ? weft_comm_create_inproc(&world, comms) : WEFT_OK;
  if (team->world != NULL) comms[team->rank] = team->world;
  if (status != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    code = run_exit_code(status);
    goto cleanup;
  }
  for (int64_t i = 0; i < o->ranks; i++)
    run->ranks[i].comm = comms[i];
  for (int64_t i = 0; on_gpu(run) && i < o->ranks; i++)
    if (!move_to_gpu(run, i, error)) goto cleanup;
  code = on_all_ranks(run, PHASE_ALL, NULL, make_plan, error);
  for (int64_t i = team_first(team); i < team_end(team, o->ranks) && code == EXIT_RIGHT; i++) {
    weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
    const weft_status got = weft_ce_plan_info_get(run->ranks[i].plan, &info);
    if (got != WEFT_OK) {
      error_set(error, "%s", weft_last_error());
      code = run_exit_code(got);
    }
    if (i == team_first(team)) run->plan = info;
    const int64_t bytes = info.local_bytes + info.symmetric_bytes;
    if (bytes > run->workspace_bytes) run->workspace_bytes = bytes;
  }
cleanup:
  free(comms);
  if (code != EXIT_RIGHT) run_destroy(run);
  return code;
}

void run_destroy(run *run) {
  for (int64_t i = 0; run->ranks != NULL && i < run->ranks_count; i++)
    weft_ce_plan_destroy(run->ranks[i].plan);
  for (int64_t i = 0; run->ranks != NULL && i < run->ranks_count; i++) {
    rank *rank = &run->ranks[i];
    device_free(&rank->device);
    if (run->team->world == NULL) weft_comm_destroy(rank->comm);
    free(rank->nll);
    free(rank->lse);
    free(rank->entropy);
    free(rank->stats);
    if (run->dx_shared == NULL) free(rank->dx);
  }
  free(run->ranks);
  free(run->dx_shared);
  free(run->dw);
  free(run->dx_parts);
  *run = (struct run){0};
}

/* All bits set is NaN in every dtype of outputs. */
static void poison(void *data, int64_t rows, int64_t row_bytes) {
  if (data != NULL) memset(data, 0xff, (size_t)rows * (size_t)row_bytes);
}

static void poison_outputs(run *run) {
  const problem *p = run->problem;
  const int64_t row_bytes = p->hidden * dtype_bytes(p->dtype);
  poison(run->dw, p->vocab, row_bytes);
  poison(run->dx_shared, shard_rows(run) * run->ranks_count, row_bytes);
  for (int64_t i = 0; i < run->ranks_count; i++) {
    rank *rank = &run->ranks[i];
    poison(rank->nll, p->tokens, sizeof(float));
    poison(rank->lse, p->tokens, sizeof(float));
    poison(rank->entropy, p->tokens, sizeof(float));
    poison(rank->stats, p->tokens, 4 * sizeof(float));
    if (run->dx_shared == NULL) poison(rank->dx, p->tokens, row_bytes);
  }
}

/* Every rank has come so far: a GPU's work is done, a CPU's is when its call returns. */
static weft_status meet(const run *run, const rank *rank) {
  if (on_gpu(run)) {
    const weft_status status = weft_memory_synchronize(rank->device.gpu, rank->stream);
    if (status != WEFT_OK) return status;
  }
  return weft_comm_barrier(rank->comm);
}

static void time_phase(job *job) {
  run *run = job->run;
  rank *rank = &run->ranks[job->rank];
  weft_status (*const calls[])(weft_ce_plan *, const weft_ce_args *,
                               void *) = {[PHASE_FORWARD] = weft_ce_forward,
                                          [PHASE_BACKWARD] = weft_ce_backward,
                                          [PHASE_STEP] = weft_ce_step};
  if (job->phase == PHASE_BACKWARD &&
      !succeeded(rank, weft_ce_forward(rank->plan, &rank->args, NULL)))
    return;
  const int64_t warmup = run->options->warmup, all = warmup + run->options->iters;
  for (int64_t i = 0; i < all; i++) {
    if (!succeeded(rank, meet(run, rank))) return;
    const double began = milliseconds();
    if (!succeeded(rank, calls[job->phase](rank->plan, &rank->args, NULL)) ||
        !succeeded(rank, meet(run, rank)))
      return;
    if (job->rank != team_first(run->team)) continue;
    if (i >= warmup) job->ms[i - warmup] = milliseconds() - began;
    progress_add(1);
  }
}

static int ascending(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* What a GPU found while it ran, which a CPU's calls return. */
static int check_async(run *run, error *error) {
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  if (!on_gpu(run)) return EXIT_RIGHT;
  if (weft_comm_async_error(run->ranks[0].comm, &found) != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    return EXIT_FAILED;
  }
  if (found.status == WEFT_OK) return EXIT_RIGHT;
  error_set(error, "%s (%s)", found.message, weft_status_string((weft_status)found.status));
  return run_exit_code((weft_status)found.status);
}

int run_phase(run *run, ce_phase phase, timing *timing, error *error) {
  const int64_t iters = run->options->iters;
  double *ms = calloc((size_t)iters, sizeof *ms);
  if (ms == NULL) {
    error_set(error, "no memory for %lld timings", (long long)iters);
    return EXIT_FAILED;
  }
  poison_outputs(run);
  for (int64_t i = 0; i < run->ranks_count; i++)
    if (!device_send_outputs(&run->ranks[i].device, error)) {
      free(ms);
      return EXIT_FAILED;
    }
  progress_begin(PHASE_NAMES[phase], run->options->warmup + iters);
  int code = on_all_ranks(run, phase, ms, time_phase, error);
  progress_end();
  for (int64_t i = 0; i < run->ranks_count && code == EXIT_RIGHT; i++)
    if (!device_fetch_outputs(&run->ranks[i].device, error)) code = EXIT_FAILED;
  if (code == EXIT_RIGHT) code = check_async(run, error);
  qsort(ms, (size_t)iters, sizeof *ms, ascending);
  timing->median_ms = (ms[(iters - 1) / 2] + ms[iters / 2]) / 2;
  timing->least_ms = ms[0];
  free(ms);
  return code;
}

/* One array of every rank: its place in a rank is made where it is not there. */
static bool collect_array(run *run, size_t bytes, size_t member, error *error) {
  char *const first = (char *)run->ranks;
  void **own = (void **)(first + (size_t)run->team->rank * sizeof(rank) + member);
  if (*own == NULL) return true;
  char *all = malloc(bytes * (size_t)run->ranks_count + 1);
  bool good = all != NULL ? team_gather(run->team, *own, all, bytes, error)
                          : error_set(error, "no memory for the outputs of all ranks");
  for (int64_t i = 0; i < run->ranks_count && good; i++) {
    void **place = (void **)(first + (size_t)i * sizeof(rank) + member);
    if (*place == NULL && (*place = malloc(bytes + 1)) == NULL)
      good = error_set(error, "no memory for the outputs of rank %lld", (long long)i);
    else if (i != run->team->rank)
      memcpy(*place, all + (size_t)i * bytes, bytes);
  }
  free(all);
  return good;
}

/* Shards of dW have sizes that differ by a row. */
static bool collect_dw(run *run, error *error) {
  const problem *p = run->problem;
  const size_t row = (size_t)(p->hidden * dtype_bytes(p->dtype));
  const int64_t most = (p->vocab + run->ranks_count - 1) / run->ranks_count;
  char *own = calloc((size_t)most + 1, row);
  char *all = malloc((size_t)most * row * (size_t)run->ranks_count + 1);
  int64_t start = 0, rows = 0;
  bool good = own != NULL && all != NULL;
  if (!good) error_set(error, "no memory for dW of all ranks");
  vocab_range(p->vocab, run->ranks_count, run->team->rank, &start, &rows);
  if (good) memcpy(own, (char *)run->dw + (size_t)start * row, (size_t)rows * row);
  good = good && team_gather(run->team, own, all, (size_t)most * row, error);
  for (int64_t i = 0; i < run->ranks_count && good; i++) {
    vocab_range(p->vocab, run->ranks_count, i, &start, &rows);
    memcpy((char *)run->dw + (size_t)start * row, all + (size_t)(i * most) * row,
           (size_t)rows * row);
  }
  free(own);
  free(all);
  return good;
}

int run_collect(run *run, ce_phase phase, error *error) {
  const problem *p = run->problem;
  const size_t rows = (size_t)p->tokens, row = (size_t)(p->hidden * dtype_bytes(p->dtype));
  if (run->team->world == NULL) return EXIT_RIGHT;
  bool good = collect_array(run, rows * sizeof(float), offsetof(rank, nll), error) &&
              collect_array(run, rows * sizeof(float), offsetof(rank, lse), error) &&
              collect_array(run, rows * sizeof(float), offsetof(rank, entropy), error);
  if (good && phase != PHASE_FORWARD) {
    if (run->dx_shared == NULL) {
      good = collect_array(run, rows * row, offsetof(rank, dx), error);
      for (int64_t i = 0; i < run->ranks_count; i++)
        run->dx_parts[i] = run->ranks[i].dx;
    } else {
      good = team_gather(run->team, run->ranks[run->team->rank].dx, run->dx_shared,
                         (size_t)shard_rows(run) * row, error);
    }
    if (good && (run->options->verify || run->options->out != NULL)) good = collect_dw(run, error);
  }
  return good ? EXIT_RIGHT : EXIT_FAILED;
}

outputs run_outputs(const run *run, ce_phase phase) {
  const rank *rank = &run->ranks[0];
  outputs out = {.nll = rank->nll, .lse = rank->lse, .entropy = rank->entropy};
  out.dtype = run->problem->dtype;
  if (phase == PHASE_FORWARD) return out;
  out.dx = (const void *const *)run->dx_parts;
  out.dx_parts = run->options->dx == WEFT_DX_NONE ? run->ranks_count : 1;
  out.dw = run->dw;
  return out;
}

int64_t run_differences(const run *run, ce_phase phase) {
  const problem *p = run->problem;
  const rank *zero = &run->ranks[0];
  const int64_t rows = p->tokens;
  int64_t differ = 0;
  for (int64_t i = 1; i < run->ranks_count; i++) {
    const rank *rank = &run->ranks[i];
    differ += check_same_bits(zero->nll, rank->nll, rows, sizeof(float));
    differ += check_same_bits(zero->lse, rank->lse, rows, sizeof(float));
    if (zero->entropy != NULL)
      differ += check_same_bits(zero->entropy, rank->entropy, rows, sizeof(float));
    if (phase != PHASE_FORWARD && run->options->dx == WEFT_DX_ALL_REDUCE)
      differ += check_same_bits(zero->dx, rank->dx, rows, p->hidden * dtype_bytes(p->dtype));
  }
  return differ;
}
