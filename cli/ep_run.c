/* Every rank is a thread for the whole run; should a library call fail on one, it aborts the team,
 * so that no other waits for it. */
#include "ep_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ep_device.h"
#include "progress.h"
#include "run.h"

typedef struct job {
  ep_run *run;
  int64_t rank;
  pthread_t thread;
} job;

static bool succeeded(ep_rank *rank, weft_status status) {
  if (status == WEFT_OK) return true;
  rank->status = status;
  snprintf(rank->message, sizeof rank->message, "%s", weft_last_error());
  weft_comm_abort(rank->comm);
  return false;
}

static bool on_gpu(const ep_run *run) {
  return run->data->options->backend == BACKEND_CUDA;
}

/* As succeeded, for what moves a GPU's arrays. */
static bool moved(ep_rank *rank, bool good) {
  return succeeded(rank, good ? WEFT_OK : WEFT_ERR_SYSTEM);
}

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int64_t row_bytes(const ep_options *o) {
  return o->hidden * (o->dtype == 0 ? 2 : 1);
}

/* ---- Bits ---- */

static uint64_t mix_in(uint64_t hash, const void *data, int64_t bytes) {
  const unsigned char *at = data;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, at + i, bytes - i < 8 ? (size_t)(bytes - i) : 8);
    hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 32;
  }
  return hash;
}

static uint64_t hash_phase(const ep_run *run, const ep_rank *rank, int phase) {
  const ep_options *o = run->data->options;
  if (phase == EP_COMBINE) return mix_in(1, rank->out, o->tokens * o->hidden * 2);
  const int64_t experts = run->plan.experts_local, words = (o->hidden + 127) / 128;
  uint64_t hash = mix_in(1, rank->counts, experts * 8);
  hash = mix_in(hash, rank->offsets, experts * 8);
  for (int64_t e = 0; e < experts; e++) {
    const int64_t first = rank->offsets[e], count = rank->counts[e];
    hash = mix_in(hash, (const char *)rank->recv_x + first * row_bytes(o), count * row_bytes(o));
    if (o->dtype == 1) hash = mix_in(hash, rank->scales + first * words, count * words * 4);
  }
  return hash;
}

/* ---- One rank ---- */

static bool make_arrays(ep_run *run, ep_rank *rank) {
  const ep_options *o = run->data->options;
  const weft_ep_plan_info *p = &run->plan;
  const size_t experts = (size_t)p->experts_local;
  /* calloc leaves pages that no row touches unused */
  rank->recv_x = calloc((size_t)p->recv_bytes + 1, 1);
  rank->scales = calloc((size_t)p->scale_bytes + 4, 1);
  rank->counts = calloc(experts, sizeof(int64_t));
  rank->offsets = calloc(experts + 1, sizeof(int64_t));
  rank->y = calloc((size_t)(p->rows_max * o->hidden) + 1, 2);
  rank->out = calloc((size_t)(o->tokens * o->hidden) + 1, 2);
  rank->bits = calloc((size_t)o->repeat, sizeof *rank->bits);
  rank->us = calloc((size_t)o->repeat, sizeof *rank->us);
  rank->expert_rows = calloc(experts, sizeof *rank->expert_rows);
  rank->wait_ms = calloc((size_t)o->ranks, sizeof *rank->wait_ms);
  return rank->recv_x && rank->scales && rank->counts && rank->offsets && rank->y && rank->out &&
         rank->bits && rank->us && rank->expert_rows && rank->wait_ms;
}

static weft_ep_dispatch_args dispatch_args(const ep_run *run, int64_t r) {
  const ep_tokens *t = &run->data->ranks[r];
  const ep_rank *rank = &run->ranks[r];
  weft_ep_dispatch_args a = WEFT_EP_DISPATCH_ARGS_INIT;
  a.tokens = run->data->options->tokens;
  a.x = t->x;
  a.topk_idx = t->topk;
  a.recv_x = rank->recv_x;
  a.recv_scales = rank->scales;
  a.counts = rank->counts;
  a.offsets = rank->offsets;
  if (on_gpu(run)) ep_device_dispatch(rank, &a);
  return a;
}

static weft_ep_combine_args combine_args(const ep_run *run, int64_t r) {
  const ep_rank *rank = &run->ranks[r];
  weft_ep_combine_args a = WEFT_EP_COMBINE_ARGS_INIT;
  a.y = rank->y;
  a.topk_weights = run->data->ranks[r].weights;
  a.out = rank->out;
  if (on_gpu(run)) ep_device_combine(rank, &a);
  return a;
}

/* All bits set: what the last call of a round leaves out can't pass for the round before's. */
static void poison(const ep_run *run, const ep_rank *rank, int phase) {
  const ep_options *o = run->data->options;
  if (phase == EP_COMBINE) {
    memset(rank->out, 0xff, (size_t)(o->tokens * o->hidden) * 2);
    return;
  }
  for (int64_t e = 0; e < run->plan.experts_local; e++)
    memset((char *)rank->recv_x + rank->offsets[e] * row_bytes(o), 0xff,
           (size_t)(rank->counts[e] * row_bytes(o)));
}

/* A GPU's work has ended; a CPU's has when its call returns. */
static bool ended(const ep_run *run, ep_rank *rank) {
  weft_async_error found = WEFT_ASYNC_ERROR_INIT;
  if (!on_gpu(run)) return true;
  if (!succeeded(rank, weft_memory_synchronize(rank->device.gpu, rank->device.stream)) ||
      !succeeded(rank, weft_comm_async_error(rank->comm, &found)))
    return false;
  if (found.status == WEFT_OK) return true;
  rank->status = (weft_status)found.status;
  snprintf(rank->message, sizeof rank->message, "%s", found.message);
  return false;
}

static bool time_rounds(const ep_run *run, int64_t r, int phase) {
  const ep_options *o = run->data->options;
  ep_rank *rank = &run->ranks[r];
  const weft_ep_dispatch_args d = dispatch_args(run, r);
  const weft_ep_combine_args m = combine_args(run, r);
  for (int64_t round = 0; round < o->repeat; round++) {
    const int64_t warmup = round == 0 ? o->warmup : 0;
    double began = 0;
    poison(run, rank, phase);
    if (on_gpu(run) && !moved(rank, ep_device_put(run, r, phase))) return false;
    for (int64_t i = -warmup; i < o->iters; i++) {
      if (i == 0) {
        if (!ended(run, rank) || !succeeded(rank, weft_comm_barrier(rank->comm))) return false;
        began = microseconds();
      }
      const weft_status status = phase == EP_DISPATCH ? weft_ep_dispatch(rank->handle, &d, NULL)
                                                      : weft_ep_combine(rank->handle, &m, NULL);
      if (!succeeded(rank, status)) return false;
    }
    if (!ended(run, rank)) return false;
    rank->us[round] = (microseconds() - began) / (double)o->iters;
    if (on_gpu(run) && !moved(rank, ep_device_fetch(run, r, phase))) return false;
    rank->bits[round] = hash_phase(run, rank, phase);
    if (r == team_first(run->team)) progress_add(1);
  }
  return true;
}

static int ascending(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Times and bits of a phase into its result; by rank 0, between two barriers. */
static void judge(ep_run *run, int phase) {
  const ep_options *o = run->data->options;
  ep_result *result = &run->results[phase];
  double *slowest = run->ranks[0].us;
  for (int64_t round = 0; round < o->repeat; round++) {
    bool same = true;
    for (int64_t r = 0; r < o->ranks; r++) {
      const ep_rank *rank = &run->ranks[r];
      if (rank->us[round] > slowest[round]) slowest[round] = rank->us[round];
      same = same && rank->bits[round] == rank->bits[0];
    }
    result->rounds_differ += !same;
  }
  qsort(slowest, (size_t)o->repeat, sizeof *slowest, ascending);
  result->us_p50 = slowest[o->repeat / 2];
  result->us_min = slowest[0];
  /* one way tokens, the other way token slots; bf16 but for dispatched fp8 rows */
  const double tokens = (double)(o->ranks * o->tokens * o->hidden);
  const double element = phase == EP_DISPATCH && o->dtype == 1 ? 1 : 2;
  result->gbps = tokens * (2 + (double)o->topk * element) / (result->us_p50 * 1e3);
}

/* Where ranks are processes, each gets what the others measured: times, hashes, verdicts. */
static bool share(ep_run *run, ep_rank *rank, int phase) {
  const ep_options *o = run->data->options;
  const size_t times = (size_t)o->repeat * sizeof *rank->us, bits = (size_t)o->repeat * 8;
  const size_t bytes = times + bits + sizeof rank->wrong[0];
  if (run->team->world == NULL) return true;
  char *own = malloc(bytes), *all = malloc(bytes * (size_t)o->ranks);
  bool good = own != NULL && all != NULL;
  if (good) {
    memcpy(own, rank->us, times);
    memcpy(own + times, rank->bits, bits);
    memcpy(own + times + bits, &rank->wrong[phase], sizeof rank->wrong[0]);
    good = succeeded(rank, weft_comm_allgather(rank->comm, own, all, bytes));
  }
  for (int64_t r = 0; r < o->ranks && good; r++) {
    const char *from = all + (size_t)r * bytes;
    memcpy(run->ranks[r].us, from, times);
    memcpy(run->ranks[r].bits, from + times, bits);
    memcpy(&run->ranks[r].wrong[phase], from + times + bits, sizeof rank->wrong[0]);
  }
  free(own);
  free(all);
  return good;
}

static bool share_statistics(ep_run *run, ep_rank *rank) {
  const ep_options *o = run->data->options;
  const size_t rows = (size_t)run->plan.experts_local * 8, waits = (size_t)o->ranks * 8;
  if (run->team->world == NULL) return true;
  char *all = malloc((rows + waits) * (size_t)o->ranks);
  bool good =
      all != NULL && succeeded(rank, weft_comm_allgather(rank->comm, rank->expert_rows, all, rows));
  for (int64_t r = 0; r < o->ranks && good; r++)
    memcpy(run->ranks[r].expert_rows, all + (size_t)r * rows, rows);
  good = good && succeeded(rank, weft_comm_allgather(rank->comm, rank->wait_ms, all, waits));
  for (int64_t r = 0; r < o->ranks && good; r++)
    memcpy(run->ranks[r].wait_ms, all + (size_t)r * waits, waits);
  free(all);
  return good;
}

static bool both_phases(ep_run *run, int64_t r) {
  const ep_options *o = run->data->options;
  ep_rank *rank = &run->ranks[r];
  for (int phase = 0; phase < EP_PHASES; phase++) {
    if (phase == EP_COMBINE) ep_data_fill_rows(run->data, r, rank->offsets, rank->y);
    if (phase == EP_COMBINE && on_gpu(run) && !moved(rank, ep_device_put_rows(run, r)))
      return false;
    if (!time_rounds(run, r, phase)) return false;
    const ep_rows rows = {rank->recv_x, rank->scales, rank->counts, rank->offsets};
    if (o->verify)
      rank->wrong[phase] = phase == EP_DISPATCH ? ep_wrong_rows(run->data, r, &rows)
                                                : ep_wrong_out(run->data, r, rank->out);
    if (!share(run, rank, phase)) return false;
    if (!succeeded(rank, weft_comm_barrier(rank->comm))) return false;
    if (r == team_first(run->team)) judge(run, phase);
    if (!succeeded(rank, weft_comm_barrier(rank->comm))) return false;
  }
  weft_ep_stats stats = WEFT_EP_STATS_INIT;
  stats.expert_rows = rank->expert_rows;
  stats.wait_ms = rank->wait_ms;
  return succeeded(rank, weft_ep_stats_get(rank->plan, &stats, 0)) && share_statistics(run, rank);
}

static weft_ep_config config_of(const ep_options *o) {
  weft_ep_config config = WEFT_EP_CONFIG_INIT;
  config.tokens_max = o->tokens;
  config.hidden = o->hidden;
  config.experts = o->experts;
  config.topk = o->topk;
  config.dtype = o->dtype == 0 ? WEFT_BF16 : WEFT_E4M3;
  config.layout = o->layout;
  if (o->layout == WEFT_EP_PACKED) config.alignment = 128;
  config.fence = o->fence; /* in the order of weft_ep_fence */
  config.zero_copy = o->backend == BACKEND_CUDA;
  return config;
}

static void *rank_main(void *argument) {
  const job *mine = argument;
  ep_run *run = mine->run;
  ep_rank *rank = &run->ranks[mine->rank];
  const weft_ep_config config = config_of(run->data->options);
  if (succeeded(rank, weft_ep_plan_create(rank->comm, &config, &rank->plan)) &&
      succeeded(rank, weft_ep_handle_create(rank->plan, &rank->handle)) &&
      (!on_gpu(run) || moved(rank, ep_device_make(run, mine->rank))))
    both_phases(run, mine->rank);
  return NULL;
}

/* ---- The team ---- */

static bool secondary(weft_status status) {
  return status == WEFT_ERR_PEER || status == WEFT_ERR_ABORTED || status == WEFT_ERR_TIMEOUT;
}

/* The exit code of the failure that came first in cause. */
static int find_failure(const ep_run *run, error *error) {
  const ep_rank *first = NULL;
  for (int64_t r = 0; r < run->data->options->ranks; r++) {
    const ep_rank *rank = &run->ranks[r];
    if (rank->status == WEFT_OK) continue;
    if (first == NULL || (secondary(first->status) && !secondary(rank->status))) first = rank;
  }
  if (first == NULL) return EXIT_RIGHT;
  error_set(error, "%s (rank %lld: %s)", first->message, (long long)(first - run->ranks),
            weft_status_string(first->status));
  return run_exit_code(first->status);
}

static int run_threads(ep_run *run, error *error) {
  const ep_options *o = run->data->options;
  job *jobs = calloc((size_t)o->ranks, sizeof *jobs);
  const int64_t first = team_first(run->team), end = team_end(run->team, o->ranks);
  int64_t started = first;
  int code = EXIT_RIGHT;
  if (jobs == NULL) {
    error_set(error, "no memory for %lld threads", (long long)o->ranks);
    return EXIT_FAILED;
  }
  for (; started < end && code == EXIT_RIGHT; started++) {
    jobs[started] = (job){.run = run, .rank = started};
    if (pthread_create(&jobs[started].thread, NULL, rank_main, &jobs[started]) == 0) continue;
    error_set(error, "cannot start a thread for rank %lld", (long long)started);
    weft_comm_abort(run->ranks[started].comm);
    code = EXIT_FAILED;
    break;
  }
  for (int64_t r = first; r < started; r++)
    pthread_join(jobs[r].thread, NULL);
  free(jobs);
  return code != EXIT_RIGHT ? code : find_failure(run, error);
}

static int make_team(ep_run *run, error *error) {
  const ep_options *o = run->data->options;
  const weft_ep_config config = config_of(o);
  weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  machine.ranks = world.ranks = o->ranks;
  machine.hosts = world.hosts = o->hosts;
  machine.peer_memory = run->team->world == NULL;
  world.device = on_gpu(run) ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
  if (on_gpu(run)) machine.arch = "sm90";
  run->plan = (weft_ep_plan_info)WEFT_EP_PLAN_INFO_INIT;
  run->ranks = calloc((size_t)o->ranks, sizeof *run->ranks);
  weft_comm **comms = calloc((size_t)o->ranks, sizeof *comms);
  int code = EXIT_FAILED;
  if (run->ranks == NULL || comms == NULL) {
    error_set(error, "no memory for %lld ranks", (long long)o->ranks);
    goto cleanup;
  }
  weft_status status = weft_ep_plan_query(&config, &machine, &run->plan);
  if (run->team->world != NULL)
    comms[run->team->rank] = run->team->world;
  else if (status == WEFT_OK)
    status = weft_comm_create_inproc(&world, comms);
  if (status != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    code = run_exit_code(status);
    goto cleanup;
  }
  for (int64_t r = 0; r < o->ranks; r++)
    run->ranks[r].comm = comms[r];
  for (int64_t r = 0; r < o->ranks; r++)
    if (!make_arrays(run, &run->ranks[r])) {
      error_set(error, "no memory for the %lld rows that a rank may receive",
                (long long)run->plan.rows_max);
      goto cleanup;
    }
  code = EXIT_RIGHT;
cleanup:
  free(comms);
  return code;
}

int ep_run_all(ep_run *run, const ep_data *data, const team *team, error *error) {
  const ep_options *o = data->options;
  *run = (ep_run){.data = data, .team = team};
  int code = make_team(run, error);
  if (code != EXIT_RIGHT) return code;
  progress_begin("ep", EP_PHASES * o->repeat);
  code = run_threads(run, error);
  progress_end();
  for (int phase = 0; phase < EP_PHASES; phase++) {
    run->results[phase].wrong = o->verify ? 0 : -1;
    for (int64_t r = 0; o->verify && r < o->ranks; r++)
      run->results[phase].wrong += run->ranks[r].wrong[phase];
  }
  return code;
}

void ep_run_free(ep_run *run) {
  for (int64_t r = 0; run->ranks != NULL && r < run->data->options->ranks; r++) {
    ep_device_free(&run->ranks[r]);
    weft_ep_handle_destroy(run->ranks[r].handle);
    weft_ep_plan_destroy(run->ranks[r].plan);
  }
  for (int64_t r = 0; run->ranks != NULL && r < run->data->options->ranks; r++) {
    ep_rank *rank = &run->ranks[r];
    if (run->team->world == NULL) weft_comm_destroy(rank->comm);
    free(rank->recv_x);
    free(rank->scales);
    free(rank->counts);
    free(rank->offsets);
    free(rank->y);
    free(rank->out);
    free(rank->bits);
    free(rank->us);
    free(rank->expert_rows);
    free(rank->wait_ms);
  }
  free(run->ranks);
  *run = (ep_run){0};
}
