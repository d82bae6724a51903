/* The CPU backend's vtable: a plan's workspace, and the order of the phases of each call. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/env.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "cpu/blas.h"
#include "cpu/ce.h"

static weft_status threads_of(const weft_ce_config *config, const weft_ce_machine *machine,
                              int64_t *threads) {
  if (config->threads > WEFT__MAX_THREADS)
    return weft__fail(WEFT_ERR_ARGUMENT, "config.threads is %d, expected 0 to %d", config->threads,
                      WEFT__MAX_THREADS);
  int64_t units = machine->units > 0 ? machine->units : weft__cores() / machine->ranks;
  if (units < 1) units = 1;
  *threads = config->threads > 0 ? config->threads
                                 : weft__env_int("WEFT_NUM_THREADS", WEFT__MAX_THREADS, units);
  if (*threads > WEFT__MAX_THREADS) {
    weft__log(WEFT_LOG_WARNING, "a rank uses %d of its %" PRId64 " threads, which is the most",
              WEFT__MAX_THREADS, *threads);
    *threads = WEFT__MAX_THREADS;
  }
  return WEFT_OK;
}

/* A core's f32 GEMM rate, for orientation alone: GFLOP/s seen on server cores at about 2.3 GHz. */
static double nominal_gflops(const char *isa) {
  if (strcmp(isa, "avx512") == 0) return 120.0;
  return strcmp(isa, "avx2") == 0 ? 65.0 : 15.0;
}

static void describe(const weft_ce_config *c, const weft__cpu_layout *l, weft_ce_plan_info *info) {
  info->local_bytes = l->local_bytes;
  info->symmetric_bytes = l->symmetric_bytes;
  info->token_chunk = l->kept_chunk;
  info->waves = l->waves;
  info->wave_rows = l->wave_tiles * l->tile_rows;
  const bool gradients = c->wants & (WEFT_CE_DX | WEFT_CE_DW);
  info->step_gemms = (c->wants & WEFT_CE_STEP) ? (!gradients ? 1 : l->kept_chunk > 0 ? 3 : 4) : 0;
  info->units = l->threads;
  const double gemm_ms = 2.0 * (double)c->max_tokens * (double)c->hidden * (double)c->vocab_local /
                         (nominal_gflops(weft__rows_best()->isa) * l->threads) * 1e-6;
  info->forward_ms = gemm_ms;
  info->backward_ms = 3.0 * gemm_ms;
  info->step_ms = info->step_gemms * gemm_ms;
  char step[96] = "";
  if (l->kept_chunk > 0)
    snprintf(step, sizeof step, "; step keeps the logits of %" PRId64 " tokens (3 GEMMs)",
             l->kept_chunk);
  else if ((c->wants & WEFT_CE_STEP) && gradients)
    snprintf(step, sizeof step, "; step recomputes the logits (4 GEMMs)");
  snprintf(info->text, sizeof info->text,
           "%d thread%s, tiles of %" PRId64 " vocabulary rows; backward in %" PRId64
           " wave%s of %" PRId64 " tiles%s",
           l->threads, l->threads == 1 ? "" : "s", l->tile_rows, l->waves, l->waves == 1 ? "" : "s",
           l->wave_tiles, step);
}

static weft_status layout(const weft_ce_config *config, const weft_ce_machine *machine,
                          weft_ce_plan_info *info) {
  weft__cpu_layout l;
  int64_t threads = 0;
  WEFT__TRY(threads_of(config, machine, &threads));
  WEFT__TRY(
      weft__cpu_layout_make(config, machine->ranks, threads, WEFT__NO_CAP, &l, &info->least_bytes));
  if (config->workspace != NULL && config->workspace_bytes < l.local_bytes)
    return weft__fail(WEFT_ERR_WORKSPACE,
                      "config.workspace_bytes is %" PRId64 ", expected at least %" PRId64,
                      config->workspace_bytes, l.local_bytes);
  describe(config, &l, info);
  return WEFT_OK;
}

/* ---- Life of a plan ---- */

static void destroy(weft_ce_plan *plan) {
  weft__cpu_ce *s = (weft__cpu_ce *)plan->state;
  if (s == NULL) return;
  weft__pool_destroy(s->pool);
  weft__blas_give(s->blas_threads);
  weft__free(s->owned_workspace);
  if (s->symmetric != NULL) weft__comm_arena_take(plan->comm, -s->layout.symmetric_bytes);
  weft__free(s->symmetric);
  weft__free(s->peers);
  weft__free(s);
  plan->state = NULL;
}

static void *carve(unsigned char **next, int64_t bytes) {
  unsigned char *start = *next;
  *next += bytes;
  return start;
}

static void place(weft__cpu_ce *s, unsigned char *workspace) {
  const weft__cpu_layout *l = &s->layout;
  s->x = (float *)carve(&workspace, l->x_bytes);
  s->z = (float *)carve(&workspace, l->z_bytes);
  s->tile_stats = (weft__stats *)carve(&workspace, l->tile_stats_bytes);
  s->stats = (weft__stats *)carve(&workspace, l->stats_bytes);
  s->gathered = (weft__stats *)carve(&workspace, l->gathered_bytes);
  s->target = (int64_t *)carve(&workspace, l->target_bytes);
  s->scratch = (unsigned char *)carve(&workspace, l->threads * l->scratch_bytes);
  s->dx_sum = (float *)(l->symmetric_bytes > 0 ? s->symmetric : carve(&workspace, l->dx_bytes));
}

static weft_status create(weft_ce_plan *plan) {
  const weft_ce_config *c = &plan->config;
  weft__cpu_ce *s = NULL;
  int64_t least = 0;
  WEFT__TRY(weft__blas_open());
  WEFT__TRY(weft__alloc((void **)&s, sizeof *s, "plan"));
  plan->state = s;
  s->rows = weft__rows_best();
  /* A smaller chunk of step, for a peer's sake, must not turn what it frees into more than was
   * asked for: the caller's workspace has the size that the rank's own layout needs. */
  weft_ce_config capped = *c;
  capped.workspace_budget = plan->info.local_bytes + plan->info.symmetric_bytes;
  WEFT__TRY(weft__cpu_layout_make(&capped, plan->ranks, plan->info.units, plan->info.token_chunk,
                                  &s->layout, &least));
  describe(c, &s->layout, &plan->info);
  WEFT__TRY(weft__blas_take(s->layout.threads));
  s->blas_threads = s->layout.threads;
  WEFT__TRY(weft__cpu_invariant_blas(&s->blas_logits));
  if (s->layout.symmetric_bytes > 0) {
    WEFT__TRY(weft__comm_arena_take(plan->comm, s->layout.symmetric_bytes));
    const weft_status status =
        weft__alloc(&s->symmetric, (size_t)s->layout.symmetric_bytes, "symmetric workspace");
    if (status != WEFT_OK) {
      weft__comm_arena_take(plan->comm, -s->layout.symmetric_bytes);
      return status;
    }
  }
  unsigned char *workspace = (unsigned char *)c->workspace;
  if (workspace == NULL) {
    WEFT__TRY(weft__alloc(&s->owned_workspace, (size_t)s->layout.local_bytes, "workspace"));
    workspace = (unsigned char *)s->owned_workspace;
  }
  place(s, workspace);
  WEFT__TRY(weft__alloc((void **)&s->peers, (size_t)plan->ranks * sizeof(void *), "peers"));
  return weft__pool_create(&s->pool, s->layout.threads);
}

static weft_status connect(weft_ce_plan *plan) {
  weft__cpu_ce *s = (weft__cpu_ce *)plan->state;
  if (plan->comm == NULL || !plan->comm->transport->loads_peers) return WEFT_OK;
  void *own = s->dx_sum;
  return weft__comm_allgather(plan->comm, &own, s->peers, sizeof own);
}

/* ---- Calls ---- */

static void set_chunk(weft__cpu_call *call, int64_t first, int64_t largest) {
  const int64_t rest = call->args->tokens - first;
  call->first_token = first;
  call->tokens = rest < largest ? rest : largest;
  weft__cpu_load_chunk(call);
}

static void set_wave(weft__cpu_call *call, int64_t first_tile, int64_t largest) {
  const int64_t rest = call->state->layout.tiles - first_tile;
  call->first_tile = first_tile;
  call->tiles = rest < largest ? rest : largest;
  call->first_wave = first_tile == 0;
}

/* dX of a rank without rows is 0: there is no wave that would write it. */
static void zero_dx(weft__cpu_call *call) {
  const weft__cpu_layout *l = &call->state->layout;
  const int64_t h = call->plan->config.hidden;
  if (l->tiles > 0) return;
  if (l->dx_buffer)
    memset(call->state->dx_sum, 0, (size_t)(call->args->tokens * h) * sizeof(float));
}

static weft_status forward(weft__cpu_call *call) {
  call->row_stats = NULL;
  call->keep_logits = false;
  for (int64_t t = 0; t < call->args->tokens; t += call->tokens) {
    set_chunk(call, t, call->state->layout.loss_chunk);
    set_wave(call, 0, call->state->layout.tiles);
    weft__cpu_logits_phase(call);
    weft__cpu_merge_tiles(call);
  }
  call->first_token = 0;
  call->tokens = call->args->tokens;
  return weft__cpu_exchange_stats(call);
}

/* The products of a wave whose tiles hold gradients. */
static void products(weft__cpu_call *call) {
  const int32_t wants = call->plan->config.wants;
  call->add_to_dw = call->args->dw_accumulate || call->first_token > 0;
  if (wants & WEFT_CE_DW) weft__cpu_weights_phase(call);
  if (wants & WEFT_CE_DX) weft__cpu_inputs_phase(call);
}

static void backward(weft__cpu_call *call, const weft__stats *stats) {
  const weft__cpu_layout *l = &call->state->layout;
  call->bad_targets = 0; /* step's forward has counted them already */
  for (int64_t t = 0; t < call->args->tokens; t += call->tokens) {
    set_chunk(call, t, l->gradient_chunk);
    weft__cpu_drop_rows(call);
    call->row_stats = stats + t;
    for (int64_t tile = 0; tile < l->tiles; tile += call->tiles) {
      set_wave(call, tile, l->wave_tiles);
      weft__cpu_logits_phase(call);
      products(call);
    }
  }
}

static weft_status step_kept(weft__cpu_call *call) {
  for (int64_t t = 0; t < call->args->tokens; t += call->tokens) {
    call->row_stats = NULL;
    call->keep_logits = true;
    set_chunk(call, t, call->state->layout.kept_chunk);
    set_wave(call, 0, call->state->layout.tiles);
    weft__cpu_logits_phase(call);
    weft__cpu_merge_tiles(call);
    WEFT__TRY(weft__cpu_exchange_stats(call));
    weft__cpu_write_loss(call);
    call->row_stats = call->state->stats + t;
    weft__cpu_drop_rows(call);
    call->pending_gradient = true;
    products(call);
  }
  return WEFT_OK;
}

/* Loss outputs of all tokens; forward's chunks have overwritten each other's targets. */
static void write_all_loss(weft__cpu_call *call) {
  call->bad_targets = 0;
  for (int64_t t = 0; t < call->args->tokens; t += call->tokens) {
    const int64_t rest = call->args->tokens - t, largest = call->state->layout.loss_chunk;
    call->first_token = t;
    call->tokens = rest < largest ? rest : largest;
    weft__cpu_load_targets(call);
    weft__cpu_write_loss(call);
  }
}

static weft_status run_phase(weft__cpu_call *call, weft__ce_phase phase) {
  const int32_t wants = call->plan->config.wants;
  const bool kept = phase == WEFT__STEP && call->state->layout.kept_chunk > 0;
  if (phase != WEFT__BACKWARD && !kept) {
    WEFT__TRY(forward(call));
    write_all_loss(call);
  }
  /* a step that wants no gradient is a forward */
  if (phase == WEFT__FORWARD || !(wants & (WEFT_CE_DX | WEFT_CE_DW))) return WEFT_OK;
  zero_dx(call);
  if (kept)
    WEFT__TRY(step_kept(call));
  else
    backward(call, phase == WEFT__STEP ? call->state->stats : (weft__stats *)call->args->stats);
  if (wants & WEFT_CE_DW) weft__cpu_zero_padding(call);
  return wants & WEFT_CE_DX ? weft__cpu_reduce_dx(call) : WEFT_OK;
}

/* A temperature by pointer is host memory here: it becomes a number that the ranks compare. */
static weft_status check(const weft_ce_plan *plan, weft_ce_args *args, const void *stream) {
  (void)plan;
  if (stream != NULL)
    return weft__fail(WEFT_ERR_ARGUMENT, "stream is %p, expected NULL on a CPU", stream);
  if (args->temperature_ptr == NULL) return WEFT_OK;
  const float t = *args->temperature_ptr;
  if (!weft__divides(t))
    return weft__fail(
        WEFT_ERR_ARGUMENT,
        "*args.temperature_ptr is %g, expected a number above 0 with a finite reciprocal",
        (double)t);
  args->temperature = t;
  args->temperature_ptr = NULL;
  return WEFT_OK;
}

static weft_status run(weft_ce_plan *plan, weft__ce_phase phase, const weft_ce_args *args,
                       void *stream) {
  (void)stream;
  weft__cpu_call call = {0};
  call.plan = plan;
  call.state = (weft__cpu_ce *)plan->state;
  call.args = args;
  const float t = args->temperature;
  call.scale = (weft__logit_scale){1.0f / t, plan->config.softcap};
  weft__blas_enter();
  const weft_status status = run_phase(&call, phase);
  weft__blas_leave();
  if (status != WEFT_OK) return status;
  if (call.bad_targets > 0) {
    const weft_status bad = weft__fail(
        WEFT_ERR_TARGET,
        "%" PRId64 " targets are outside 0 … %" PRId64 " and are not ignore_index %" PRId64
        ", the first at token %" PRId64,
        call.bad_targets, plan->config.vocab - 1, plan->config.ignore_index, call.first_bad);
    if (plan->comm != NULL)
      weft__comm_report(plan->comm, bad, -1, call.bad_targets, weft_last_error());
    return bad;
  }
  return WEFT_OK;
}

const weft__ce_backend weft__ce_cpu = {.name = "cpu",
                                       .layout = layout,
                                       .create = create,
                                       .connect = connect,
                                       .destroy = destroy,
                                       .check = check,
                                       .run = run};
