/* See report.h. Numbers that do not exist are "-" in a table, empty in CSV and null in JSON. */
#include "report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"

static const char *const ERROR_NAMES[CHECK_COUNT] = {"nll", "lse", "entropy", "dx", "dw"};

static double mib(int64_t bytes) {
  return (double)bytes / (1 << 20);
}

double report_flops(const ce_options *o, ce_phase phase) {
  const double forward = 2.0 * (double)o->tokens * (double)o->hidden * (double)o->vocab;
  return phase == PHASE_FORWARD ? forward : 3 * forward;
}

static void cell(int width, const char *format, double value) {
  char text[40] = "-";
  if (!isnan(value)) snprintf(text, sizeof text, format, value);
  printf(" %*s", width, text);
}

static void print_plan_comments(const report *r) {
  const weft_ce_plan_info *plan = &r->plan;
  printf("# plan: %s\n", plan->text);
  printf("# workspace: %.2f MiB local and %.2f MiB symmetric on rank 0; at least %.2f MiB\n",
         mib(plan->local_bytes), mib(plan->symmetric_bytes), mib(plan->least_bytes));
  if (plan->waves > 0)
    printf("# backward: %lld wave%s of %lld vocabulary rows\n", (long long)plan->waves,
           plan->waves == 1 ? "" : "s", (long long)plan->wave_rows);
  if (plan->step_gemms > 0)
    printf("# step: %lld products, the logits of %lld tokens kept at once\n",
           (long long)plan->step_gemms, (long long)plan->token_chunk);
}

static void print_table(const report *r) {
  const ce_options *o = r->options;
  printf("# weft ce: M=%lld H=%lld V=%lld %s, %lld rank%s on %lld host%s, T=%g, cap %g\n",
         (long long)o->tokens, (long long)o->hidden, (long long)o->vocab, dtype_name(o->dtype),
         (long long)o->ranks, o->ranks == 1 ? "" : "s", (long long)o->hosts,
         o->hosts == 1 ? "" : "s", o->temperature, o->softcap);
  printf("# device: %s\n", r->device);
  print_plan_comments(r);
  if (r->results_count == 0) {
    printf("%-9s %14s\n", "phase", "predicted[ms]");
    const double ms[] = {r->plan.forward_ms, r->plan.backward_ms, r->plan.step_ms};
    for (int i = 0; i < 3; i++) {
      printf("%-9s", PHASE_NAMES[i]);
      cell(14, "%.3f", ms[i] > 0 ? ms[i] : NAN);
      printf("\n");
    }
    return;
  }
  printf("# operations: 2*M*H*V for forward, three times that for backward (which recomputes the"
         " logits) and for step; %lld warm-up and %lld timed calls\n",
         (long long)o->warmup, (long long)o->iters);
  printf("# tokens that count: %lld of %lld\n", (long long)r->counted, (long long)o->tokens);
  if (o->verify)
    printf("# verified against an f64 oracle: %s; error of nll, lse, entropy: largest"
           " |error|/(1+max|z|), of dX, dW: norm of the error over norm\n",
           r->sampled ? "64 tokens and 64 vocabulary rows" : "every row");
  else
    printf("# not verified (--verify); #wrong counts rows in which ranks differ\n");
  printf("%-9s %11s %11s %9s %14s %10s %10s %10s %10s %10s %11s %12s %7s\n", "phase", "p50[ms]",
         "min[ms]", "TFLOP/s", "workspace[MiB]", "err_nll", "err_lse", "err_ent", "err_dX",
         "err_dW", "perplexity", "entropy[nat]", "#wrong");
  for (int i = 0; i < r->results_count; i++) {
    const phase_result *p = &r->results[i];
    printf("%-9s", PHASE_NAMES[p->phase]);
    cell(11, "%.3f", p->median_ms);
    cell(11, "%.3f", p->least_ms);
    cell(9, "%.4f", p->tflops);
    cell(14, "%.2f", mib(r->workspace_bytes));
    for (int kind = 0; kind < CHECK_COUNT; kind++)
      cell(10, "%.2e", p->error[kind]);
    cell(11, "%.6g", p->perplexity);
    cell(12, "%.6f", p->mean_entropy);
    printf(" %7lld\n", (long long)p->wrong);
  }
}

static void field(const char *format, double value) {
  if (!isnan(value)) printf(format, value);
  printf(",");
}

static void print_csv(const report *r) {
  if (r->results_count == 0) {
    const weft_ce_plan_info *p = &r->plan;
    printf("local_bytes,symmetric_bytes,least_bytes,waves,wave_rows,step_gemms,token_chunk,units,"
           "forward_ms,backward_ms,step_ms\n%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%.6g,%.6g,"
           "%.6g\n",
           (long long)p->local_bytes, (long long)p->symmetric_bytes, (long long)p->least_bytes,
           (long long)p->waves, (long long)p->wave_rows, (long long)p->step_gemms,
           (long long)p->token_chunk, (long long)p->units, p->forward_ms, p->backward_ms,
           p->step_ms);
    return;
  }
  printf("phase,ms_p50,ms_min,tflops,workspace_mib,err_nll,err_lse,err_entropy,err_dx,err_dw,"
         "perplexity,mean_entropy,wrong,ok\n");
  for (int i = 0; i < r->results_count; i++) {
    const phase_result *p = &r->results[i];
    printf("%s,", PHASE_NAMES[p->phase]);
    field("%.6g", p->median_ms);
    field("%.6g", p->least_ms);
    field("%.6g", p->tflops);
    field("%.6g", mib(r->workspace_bytes));
    for (int kind = 0; kind < CHECK_COUNT; kind++)
      field("%.6g", p->error[kind]);
    field("%.9g", p->perplexity);
    field("%.9g", p->mean_entropy);
    printf("%lld,%s\n", (long long)p->wrong, p->ok ? "true" : "false");
  }
}

/* JSON has no NaN and no infinity. */
static json_t *number(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *text_or_null(const char *text) {
  return text ? json_string(text) : json_null();
}

static json_t *make_config(const ce_options *o) {
  json_t *config = json_object();
  json_object_set_new(config, "tokens", json_integer(o->tokens));
  json_object_set_new(config, "hidden", json_integer(o->hidden));
  json_object_set_new(config, "vocab", json_integer(o->vocab));
  json_object_set_new(config, "ranks", json_integer(o->ranks));
  json_object_set_new(config, "hosts", json_integer(o->hosts));
  json_object_set_new(config, "dtype", json_string(dtype_name(o->dtype)));
  json_object_set_new(config, "temperature", number(o->temperature));
  json_object_set_new(config, "softcap", number(o->softcap));
  json_object_set_new(config, "entropy", json_boolean(o->entropy));
  json_object_set_new(config, "ignore", number(o->ignore));
  json_object_set_new(config, "ignore_index", json_integer(o->ignore_index));
  json_object_set_new(config, "phase", json_string(PHASE_NAMES[o->phase]));
  json_object_set_new(config, "dx", json_string(DX_NAMES[o->dx]));
  json_object_set_new(config, "backend", json_string(BACKEND_NAMES[o->backend]));
  json_object_set_new(config, "transport", json_string(TRANSPORT_NAMES[o->transport]));
  json_object_set_new(config, "workspace_mib", json_integer(o->workspace_mib));
  json_object_set_new(config, "seed", json_integer(o->seed));
  json_object_set_new(config, "warmup", json_integer(o->warmup));
  json_object_set_new(config, "iters", json_integer(o->iters));
  json_object_set_new(config, "verify", json_boolean(o->verify));
  json_object_set_new(config, "x", text_or_null(o->x));
  json_object_set_new(config, "w", text_or_null(o->w));
  json_object_set_new(config, "targets", text_or_null(o->targets));
  return config;
}

static json_t *make_plan(const weft_ce_plan_info *p) {
  json_t *plan = json_object();
  json_object_set_new(plan, "text", json_string(p->text));
  json_object_set_new(plan, "local_bytes", json_integer(p->local_bytes));
  json_object_set_new(plan, "symmetric_bytes", json_integer(p->symmetric_bytes));
  json_object_set_new(plan, "least_bytes", json_integer(p->least_bytes));
  json_object_set_new(plan, "token_chunk", json_integer(p->token_chunk));
  json_object_set_new(plan, "waves", json_integer(p->waves));
  json_object_set_new(plan, "wave_rows", json_integer(p->wave_rows));
  json_object_set_new(plan, "step_gemms", json_integer(p->step_gemms));
  json_object_set_new(plan, "units", json_integer(p->units));
  json_object_set_new(plan, "forward_ms", number(p->forward_ms));
  json_object_set_new(plan, "backward_ms", number(p->backward_ms));
  json_object_set_new(plan, "step_ms", number(p->step_ms));
  return plan;
}

static json_t *make_result(const report *r, const phase_result *p) {
  json_t *result = json_object(), *errors = json_object();
  json_object_set_new(result, "phase", json_string(PHASE_NAMES[p->phase]));
  json_object_set_new(result, "ms_p50", number(p->median_ms));
  json_object_set_new(result, "ms_min", number(p->least_ms));
  json_object_set_new(result, "tflops", number(p->tflops));
  json_object_set_new(result, "workspace_mib", number(mib(r->workspace_bytes)));
  for (int kind = 0; kind < CHECK_COUNT; kind++)
    json_object_set_new(errors, ERROR_NAMES[kind], number(p->error[kind]));
  json_object_set_new(result, "max_rel_err", errors);
  json_object_set_new(result, "perplexity", number(p->perplexity));
  json_object_set_new(result, "mean_entropy", number(p->mean_entropy));
  json_object_set_new(result, "wrong", json_integer(p->wrong));
  json_object_set_new(result, "ok", json_boolean(p->ok));
  return result;
}

static void print_json(const report *r) {
  json_t *root = json_object(), *results = json_array();
  json_object_set_new(root, "op", json_string("ce"));
  json_object_set_new(root, "config", make_config(r->options));
  json_object_set_new(root, "device", json_string(r->device));
  json_object_set_new(root, "plan", make_plan(&r->plan));
  for (int i = 0; i < r->results_count; i++)
    json_array_append_new(results, make_result(r, &r->results[i]));
  json_object_set_new(root, "results", results);
  json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  printf("\n");
  json_decref(root);
}

bool report_print(const report *r) {
  if (r->options->format == FORMAT_JSON)
    print_json(r);
  else if (r->options->format == FORMAT_CSV)
    print_csv(r);
  else
    print_table(r);
  return fflush(stdout) == 0 && !ferror(stdout);
}
