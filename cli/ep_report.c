/* See ep_report.h. What was not checked is "-" in a table, empty in CSV and null in JSON. */
#include "ep_report.h"

#include <jansson.h>
#include <stdio.h>

static const char *const PHASES[EP_PHASES] = {"dispatch", "combine"};

bool ep_result_ok(const ep_result *result) {
  return result->wrong <= 0 && result->rounds_differ == 0;
}

/* Rows that the ranks' experts got a dispatch: least, mean and most; and the longest wait. */
typedef struct summary {
  int64_t least, most;
  double mean, wait_ms;
} summary;

static summary summarise(const ep_run *run) {
  const ep_options *o = run->data->options;
  const int64_t calls = o->warmup + o->iters * o->repeat;
  summary s = {INT64_MAX, 0, 0, 0};
  for (int64_t r = 0; r < o->ranks; r++) {
    for (int64_t e = 0; e < run->plan.experts_local; e++) {
      const int64_t rows = run->ranks[r].expert_rows[e] / calls;
      if (rows < s.least) s.least = rows;
      if (rows > s.most) s.most = rows;
      s.mean += (double)rows / (double)o->experts;
    }
    for (int64_t from = 0; from < o->ranks; from++)
      if (run->ranks[r].wait_ms[from] > s.wait_ms) s.wait_ms = run->ranks[r].wait_ms[from];
  }
  return s;
}

static void print_table(const ep_run *run, const char *device) {
  const ep_options *o = run->data->options;
  const summary s = summarise(run);
  printf("# weft ep: T=%lld H=%lld E=%lld K=%lld %s %s, %lld rank%s on %lld host%s, %s\n",
         (long long)o->tokens, (long long)o->hidden, (long long)o->experts, (long long)o->topk,
         EP_DTYPE_NAMES[o->dtype], LAYOUT_NAMES[o->layout], (long long)o->ranks,
         o->ranks == 1 ? "" : "s", (long long)o->hosts, o->hosts == 1 ? "" : "s",
         STRATEGY_NAMES[o->strategy]);
  printf("# device: %s\n# plan: %s\n", device, run->plan.text);
  printf("# workspace of a rank: %.2f MiB local, %.2f MiB symmetric\n",
         (double)run->plan.local_bytes / (1 << 20), (double)run->plan.symmetric_bytes / (1 << 20));
  printf("# rows of an expert: %lld to %lld, mean %.1f; longest wait for a rank, in all: %.3f ms\n",
         (long long)s.least, (long long)s.most, s.mean, s.wait_ms);
  printf("# %lld round%s of %lld calls: slowest rank of each, median and least of the rounds\n",
         (long long)o->repeat, o->repeat == 1 ? "" : "s", (long long)o->iters);
  printf("# bytes: those that must be read and written, of all ranks: dispatch reads n*H and writes"
         " n*K*H\n# elements, combine the reverse\n");
  printf("%-9s %12s %12s %12s %8s %14s\n", "phase", "p50[us]", "min[us]", "[GB/s]", "#wrong",
         "#rounds differ");
  for (int i = 0; i < EP_PHASES; i++) {
    const ep_result *p = &run->results[i];
    char wrong[24] = "-";
    if (p->wrong >= 0) snprintf(wrong, sizeof wrong, "%lld", (long long)p->wrong);
    printf("%-9s %12.2f %12.2f %12.2f %8s %14lld\n", PHASES[i], p->us_p50, p->us_min, p->gbps,
           wrong, (long long)p->rounds_differ);
  }
}

static void print_csv(const ep_run *run) {
  const ep_options *o = run->data->options;
  printf("phase,tokens,hidden,experts,topk,ranks,hosts,dtype,layout,strategy,us_p50,us_min,gbps,"
         "wrong,rounds_differ,ok\n");
  for (int i = 0; i < EP_PHASES; i++) {
    const ep_result *p = &run->results[i];
    char wrong[24] = "";
    if (p->wrong >= 0) snprintf(wrong, sizeof wrong, "%lld", (long long)p->wrong);
    printf("%s,%lld,%lld,%lld,%lld,%lld,%lld,%s,%s,%s,%.3f,%.3f,%.3f,%s,%lld,%s\n", PHASES[i],
           (long long)o->tokens, (long long)o->hidden, (long long)o->experts, (long long)o->topk,
           (long long)o->ranks, (long long)o->hosts, EP_DTYPE_NAMES[o->dtype],
           LAYOUT_NAMES[o->layout], STRATEGY_NAMES[o->strategy], p->us_p50, p->us_min, p->gbps,
           wrong, (long long)p->rounds_differ, ep_result_ok(p) ? "true" : "false");
  }
}

static void set_int(json_t *object, const char *key, int64_t value) {
  json_object_set_new(object, key, json_integer(value));
}

static void set_text(json_t *object, const char *key, const char *value) {
  json_object_set_new(object, key, json_string(value));
}

static json_t *make_config(const ep_options *o) {
  json_t *config = json_object();
  set_int(config, "tokens", o->tokens);
  set_int(config, "hidden", o->hidden);
  set_int(config, "experts", o->experts);
  set_int(config, "topk", o->topk);
  set_int(config, "ranks", o->ranks);
  set_int(config, "hosts", o->hosts);
  set_text(config, "dtype", EP_DTYPE_NAMES[o->dtype]);
  set_text(config, "layout", LAYOUT_NAMES[o->layout]);
  set_text(config, "strategy", STRATEGY_NAMES[o->strategy]);
  set_text(config, "fence", FENCE_NAMES[o->fence]);
  set_text(config, "transport", TRANSPORT_NAMES[o->transport]);
  set_int(config, "seed", o->seed);
  set_int(config, "warmup", o->warmup);
  set_int(config, "iters", o->iters);
  set_int(config, "repeat", o->repeat);
  return config;
}

static json_t *make_statistics(const ep_run *run) {
  const ep_options *o = run->data->options;
  json_t *ranks = json_array();
  for (int64_t r = 0; r < o->ranks; r++) {
    json_t *rank = json_object(), *rows = json_array(), *waits = json_array();
    for (int64_t e = 0; e < run->plan.experts_local; e++)
      json_array_append_new(rows, json_integer(run->ranks[r].expert_rows[e]));
    for (int64_t from = 0; from < o->ranks; from++)
      json_array_append_new(waits, json_real(run->ranks[r].wait_ms[from]));
    json_object_set_new(rank, "expert_rows", rows);
    json_object_set_new(rank, "wait_ms", waits);
    json_array_append_new(ranks, rank);
  }
  return ranks;
}

static void print_json(const ep_run *run, const char *device) {
  json_t *root = json_object(), *plan = json_object(), *results = json_array();
  set_text(root, "op", "ep");
  json_object_set_new(root, "config", make_config(run->data->options));
  set_text(root, "device", device);
  set_text(plan, "text", run->plan.text);
  set_int(plan, "local_bytes", run->plan.local_bytes);
  set_int(plan, "symmetric_bytes", run->plan.symmetric_bytes);
  set_int(plan, "rows_max", run->plan.rows_max);
  json_object_set_new(root, "plan", plan);
  for (int i = 0; i < EP_PHASES; i++) {
    const ep_result *p = &run->results[i];
    json_t *result = json_object();
    set_text(result, "phase", PHASES[i]);
    json_object_set_new(result, "us_p50", json_real(p->us_p50));
    json_object_set_new(result, "us_min", json_real(p->us_min));
    json_object_set_new(result, "gbps", json_real(p->gbps));
    json_object_set_new(result, "wrong", p->wrong < 0 ? json_null() : json_integer(p->wrong));
    set_int(result, "rounds_differ", p->rounds_differ);
    json_object_set_new(result, "ok", json_boolean(ep_result_ok(p)));
    json_array_append_new(results, result);
  }
  json_object_set_new(root, "results", results);
  json_object_set_new(root, "statistics", make_statistics(run));
  json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  printf("\n");
  json_decref(root);
}

bool ep_report_print(const ep_run *run, const char *device) {
  const int format = run->data->options->format;
  if (format == FORMAT_JSON)
    print_json(run, device);
  else if (format == FORMAT_CSV)
    print_csv(run);
  else
    print_table(run, device);
  return fflush(stdout) == 0 && !ferror(stdout);
}
