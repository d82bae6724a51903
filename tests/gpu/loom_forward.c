/* Runs the forward kernel in loom at small shapes with several CTAs: right within the contract, no
 * finding, under several seeds and policies; and, with --drop-each, every fence, acquire, wait and
 * barrier of the kernel left out in turn, which must be noticed (a finding or a wrong result) in
 * every seed of one case.
 *
 *   loom_forward [--seeds N] [--drop-each] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "cuda/ce.h"
#include "forward_cases.h"

enum { LOOM_CLUSTERS = 3 };

extern const struct loom_kernel sm90_ce_forward_bf16, sm90_ce_forward_f16;

static int encode(const struct cuda_tensor *t, struct tensor_map *map) {
  return loom_tensor_map_encode(map, t->element == CUDA_F16 ? LOOM_F16 : LOOM_BF16, t->rank,
                                t->address, t->dims, t->strides, t->box, LOOM_SWIZZLE_128B);
}

static uint64_t upload(const void *from, size_t bytes) {
  const uint64_t to = loom_alloc(0, bytes);
  if (to == 0) abort();
  loom_write(to, from, bytes);
  return to;
}

/* Outputs in loom's memory, from their first element past the guard. */
static float *output(const float *from, int64_t tokens, int64_t width) {
  const uint64_t to = upload(from, (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
  return (float *)(uintptr_t)(to + FORWARD_GUARD * (uint64_t)width * 4);
}

static void fetch(float *to, const float *from, int64_t tokens, int64_t width) {
  loom_read((uint64_t)(uintptr_t)from - FORWARD_GUARD * (uint64_t)width * 4, to,
            (size_t)((tokens + 2 * FORWARD_GUARD) * width) * 4);
}

/* A plan as weft_ce_plan_create() would make it, on loom's memory. */
static void make_plan(const struct forward_data *d, weft_ce_plan *plan, weft__sm90_ce *state) {
  memset(plan, 0, sizeof *plan);
  memset(state, 0, sizeof *state);
  plan->config = forward_config(d->c);
  plan->rows = d->c->vocab;
  plan->state = state;
  weft__sm90_forward_layout(&plan->config, &state->layout);
  /* Small enough to have several segments of several pairs, and several groups. */
  state->layout.forward_group = 1;
  state->layout.forward_segments = 2;
  state->layout.forward_pace = d->c->pace;
  state->scratch = loom_alloc(0, (size_t)state->layout.forward_bytes);
  state->errors = loom_alloc(0, sizeof(struct forward_errors));
  const uint64_t mirror = loom_alloc(0, sizeof(struct forward_errors));
  if (state->scratch == 0 || state->errors == 0 || mirror == 0) abort();
  loom_fill(state->errors, 0, sizeof(struct forward_errors));
  loom_fill(mirror, 0, sizeof(struct forward_errors));
  loom_fill(state->scratch, 0, sizeof(struct forward_control));
  state->host_errors = (struct forward_errors *)(uintptr_t)mirror;
  state->timeout_ns = 1000000000;
}

static int launch(const struct forward_data *d, const weft_ce_plan *plan,
                  const weft_ce_args *args) {
  struct forward_args a;
  struct cuda_tensor tensors[2];
  if (weft__sm90_forward_prepare(plan, args, tensors, &a) != WEFT_OK) return -1;
  if (!a.by_hand && (encode(&tensors[0], &a.x) || encode(&tensors[1], &a.w))) return -1;
  const uint32_t units = forward_schedule_count(&a.schedule);
  const struct loom_launch run = {
      .kernel = d->c->dtype == WEFT_F16 ? &sm90_ce_forward_f16 : &sm90_ce_forward_bf16,
      .args = &a,
      .ctas = (units < LOOM_CLUSTERS ? units : LOOM_CLUSTERS) * FORWARD_CLUSTER,
      .smem_bytes = FORWARD_SHARED_BYTES,
      .cooperative = 1};
  return loom_launch(&run);
}

/* 0 where all is right and nothing is found; else says why. */
static int run(const struct forward_data *d, uint64_t seed, char *why, size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  if (loom_begin(&config)) {
    snprintf(why, room, "loom_begin failed");
    return 1;
  }
  const int64_t m = d->c->tokens;
  int status = 1;
  weft_ce_plan plan;
  weft__sm90_ce state;
  struct forward_outputs got;
  if (forward_outputs_make(m, &got)) abort();
  make_plan(d, &plan, &state);
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = m;
  args.x = (void *)(uintptr_t)upload(d->x, d->x_bytes);
  args.w = (void *)(uintptr_t)upload(d->w, d->w_bytes);
  args.x_stride = d->c->x_extra ? d->c->hidden + d->c->x_extra : 0;
  args.w_stride = d->c->w_extra ? d->c->hidden + d->c->w_extra : 0;
  args.target = (void *)(uintptr_t)upload(d->target, d->target_bytes);
  if (d->c->temperature != 0) args.temperature = d->c->temperature;
  if (d->c->temperature_ptr)
    args.temperature_ptr = (float *)(uintptr_t)upload(&args.temperature, 4);
  args.nll = output(got.nll, m, 1);
  args.lse = output(got.lse, m, 1);
  args.entropy = d->c->entropy ? output(got.entropy, m, 1) : NULL;
  args.stats = output(got.stats, m, 4);
  if (launch(d, &plan, &args)) {
    snprintf(why, room, "can't launch");
    goto cleanup;
  }
  if (loom_run()) {
    snprintf(why, room, "%s", loom_finding_at(0)->text);
    goto cleanup;
  }
  fetch(got.nll, args.nll, m, 1);
  fetch(got.lse, args.lse, m, 1);
  if (args.entropy != NULL) fetch(got.entropy, args.entropy, m, 1);
  fetch(got.stats, args.stats, m, 4);
  struct forward_errors errors;
  loom_read((uint64_t)(uintptr_t)state.host_errors, &errors, sizeof errors);
  if (errors.timeout != 0 || errors.bad_targets != d->bad) {
    snprintf(why, room, "errors: timeout %u, %u bad targets, expected %lld", errors.timeout,
             errors.bad_targets, (long long)d->bad);
    goto cleanup;
  }
  status = forward_compare(d, &got, why, room);
cleanup:
  forward_outputs_free(&got);
  loom_end();
  return status;
}

static int is_of_kernel(const struct loom_site *site) {
  const char *file = strrchr(site->file, '/');
  return site->kind != LOOM_KIND_plain && site->hits != 0 &&
         !strncmp(file ? file + 1 : site->file, "sm90_forward", 12);
}

/* The two instances of the header have each their own sites; those of the first case's are taken.
 */
static int drop_each(struct forward_data *data, size_t cases, int seeds, int *passed) {
  int count, failed = 0;
  struct loom_site *const *sites = loom_sites(&count);
  char why[600] = "";
  unsigned char *chosen = calloc((size_t)count, 1);
  if (!chosen) abort();
  for (size_t c = 0; c < cases; c++) {
    if (run(&data[c], 1, why, sizeof why)) printf("%s: %s\n", data[c].c->name, why);
    for (int i = 0; i < count; i++)
      chosen[i] |= (unsigned char)is_of_kernel(sites[i]);
  }
  for (int i = 0; i < count; i++) {
    if (!chosen[i]) continue;
    char label[128], example[600] = "";
    int best = 0;
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    for (size_t c = 0; c < cases && best < seeds; c++) {
      int noticed = 0;
      for (int s = 1; s <= seeds; s++)
        if (run(&data[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    printf("%s line %3d %-36s %-22s %d of %d seeds: %.150s\n", best == seeds ? "found " : "MISSED",
           sites[i]->line, sites[i]->op, label, best, seeds, example);
    fflush(stdout);
    *passed += best == seeds;
    failed += best != seeds;
  }
  free(chosen);
  return failed;
}

int main(int argc, char **argv) {
  int seeds = 4, drops = 0, passed = 0, failed = 0;
  struct forward_data data[8];
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else
      seeds = 0;
  }
  if (seeds < 1 || forward_toy_case_count > sizeof data / sizeof *data) {
    fprintf(stderr, "usage: loom_forward [--seeds N] [--drop-each]\n");
    return 2;
  }
  for (size_t c = 0; c < forward_toy_case_count; c++)
    if (forward_data_make(&forward_toy_cases[c], 7, &data[c])) return 4;
  if (drops) {
    failed = drop_each(data, forward_toy_case_count, seeds, &passed);
  } else {
    for (size_t c = 0; c < forward_toy_case_count; c++)
      for (int s = 1; s <= seeds; s++) {
        char why[600] = "";
        const int bad = run(&data[c], (uint64_t)s, why, sizeof why);
        passed += !bad;
        failed += bad != 0;
        if (bad) printf("FAILED %s, seed %d: %s\n", data[c].c->name, s, why);
      }
  }
  for (size_t c = 0; c < forward_toy_case_count; c++)
    forward_data_free(&data[c]);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
