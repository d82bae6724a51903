/* Runs the GEMM kernels in loom: the cases' exact bits, no finding, under several seeds and
 * policies; and, with
 * --drop-each, every fence, acquire, wait and barrier of the kernel left out in turn, which must be
 * noticed (a finding or a wrong result) in every seed.
 *
 *   loom_gemm [--seeds N] [--variant NAME] [--drop-each] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "gemm_cases.h"
#include "gemm_variants.h"

enum { LOOM_CLUSTERS = 2 }; /* four CTAs, unless a case asks for fewer */

#define X(name, shape, product) extern const struct loom_kernel name;
GEMM_VARIANTS(X)
#undef X

struct variant {
  const char *name;
  struct gemm_shape shape;
  const struct loom_kernel *kernel;
};

static int encode(const struct cuda_tensor *t, struct tensor_map *map) {
  return loom_tensor_map_encode(map, t->element == CUDA_F32 ? LOOM_F32 : LOOM_BF16, t->rank,
                                t->address, t->dims, t->strides, t->box, LOOM_SWIZZLE_128B);
}

/* 0 where all is right and nothing is found; else says why. */
static int run(const struct variant *v, const struct gemm_case *gemm, const struct gemm_data *data,
               uint64_t seed, char *why, size_t room) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  if (loom_begin(&config)) {
    snprintf(why, room, "loom_begin failed");
    return 1;
  }
  int status = 1;
  unsigned char *got = malloc(data->c_bytes);
  const uint64_t a = loom_alloc(0, data->a_bytes), b = loom_alloc(0, data->b_bytes);
  const uint64_t c = loom_alloc(0, data->c_bytes);
  struct gemm_args args;
  struct cuda_tensor tensors[3];
  const struct gemm_problem problem = gemm_data_problem(gemm, data, a, b, c);
  if (!got || !a || !b || !c || weft__gemm_plan(&v->shape, &problem, tensors, &args) != WEFT_OK ||
      encode(&tensors[0], &args.a) || encode(&tensors[1], &args.b) ||
      encode(&tensors[2], &args.c)) {
    snprintf(why, room, "can't set the scene");
    goto cleanup;
  }
  loom_write(a, data->a, data->a_bytes);
  loom_write(b, data->b, data->b_bytes);
  loom_write(c, data->before, data->c_bytes);
  uint32_t clusters = gemm->clusters ? gemm->clusters : LOOM_CLUSTERS;
  if (clusters > gemm_schedule_count(&args.schedule))
    clusters = gemm_schedule_count(&args.schedule);
  const struct loom_launch launch = {
      .kernel = v->kernel,
      .args = &args,
      .ctas = clusters * GEMM_CLUSTER,
      .smem_bytes = GEMM_SHARED_BYTES(v->shape.blocks, v->shape.cols, v->shape.stages)};
  if (loom_launch(&launch)) {
    snprintf(why, room, "loom_launch failed");
    goto cleanup;
  }
  if (loom_run()) {
    snprintf(why, room, "%s", loom_finding_at(0)->text);
    goto cleanup;
  }
  loom_read(c, got, data->c_bytes);
  status = gemm_data_compare(gemm, data, got, why, room);
cleanup:
  free(got);
  loom_end();
  return status;
}

static int is_of_kernel(const struct loom_site *site) {
  const char *file = strrchr(site->file, '/');
  return site->kind != LOOM_KIND_plain && site->hits != 0 &&
         !strcmp(file ? file + 1 : site->file, "sm90_gemm.h");
}

/* Instances of one header have each their own sites: those of other instances have no hits. */
static int drop_each(const struct variant *v, int seeds, int *passed) {
  int count, failed = 0;
  struct loom_site *const *sites = loom_sites(&count);
  char why[600];
  struct gemm_data data[8];
  if (gemm_toy_case_count > 8) abort();
  for (size_t c = 0; c < gemm_toy_case_count; c++)
    if (gemm_data_make(&v->shape, &gemm_toy_cases[c], &data[c])) abort();
  unsigned char *chosen = calloc((size_t)count, 1);
  for (size_t c = 0; c < gemm_toy_case_count; c++) {
    if (run(v, &gemm_toy_cases[c], &data[c], 1, why, sizeof why)) printf("%s: %s\n", v->name, why);
    for (int i = 0; i < count; i++)
      chosen[i] |= (unsigned char)is_of_kernel(sites[i]);
  }
  for (int i = 0; i < count; i++) {
    if (!chosen[i]) continue;
    char label[128], example[600] = "";
    loom_site_label(sites[i], label, sizeof label);
    sites[i]->drop = 1;
    int best = 0;
    for (size_t c = 0; c < gemm_toy_case_count && best < seeds; c++) {
      int noticed = 0;
      for (int s = 1; s <= seeds; s++)
        if (run(v, &gemm_toy_cases[c], &data[c], (uint64_t)s, why, sizeof why)) {
          noticed++;
          memcpy(example, why, sizeof why);
        }
      if (noticed > best) best = noticed;
    }
    sites[i]->drop = 0;
    const int good = best == seeds;
    printf("%s %-16s line %3d %-36s %-22s %d of %d seeds: %.150s\n", good ? "found " : "MISSED",
           v->name, sites[i]->line, sites[i]->op, label, best, seeds, example);
    fflush(stdout);
    *passed += good;
    failed += !good;
  }
  free(chosen);
  for (size_t c = 0; c < gemm_toy_case_count; c++)
    gemm_data_free(&data[c]);
  return failed;
}

int main(int argc, char **argv) {
  static const struct variant variants[] = {
#define X(name, shape, product) {#name, {shape}, &name},
      GEMM_VARIANTS(X)
#undef X
  };
  int seeds = 3, drops = 0, passed = 0, failed = 0;
  const char *only = "sm90_gemm_toy";
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--drop-each"))
      drops = 1;
    else if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
      seeds = atoi(argv[++i]);
    else if (i + 1 < argc && !strcmp(argv[i], "--variant"))
      only = argv[++i];
    else
      seeds = 0;
  }
  if (seeds < 1) {
    fprintf(stderr, "usage: loom_gemm [--seeds N] [--variant NAME] [--drop-each]\n");
    return 2;
  }
  for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
    if (strncmp(variants[v].name, only, strlen(only))) continue;
    if (drops) {
      failed += drop_each(&variants[v], seeds, &passed);
      continue;
    }
    for (size_t c = 0; c < gemm_toy_case_count; c++) {
      struct gemm_data data;
      const struct gemm_case *gemm = &gemm_toy_cases[c];
      if (gemm_data_make(&variants[v].shape, gemm, &data)) return 4;
      for (int s = 1; s <= seeds; s++) {
        char why[600] = "";
        const int bad = run(&variants[v], gemm, &data, (uint64_t)s, why, sizeof why);
        passed += !bad;
        failed += bad != 0;
        if (bad)
          printf("FAILED %s %lldx%lld over %lld %s, seed %d: %s\n", variants[v].name,
                 (long long)gemm->rows, (long long)gemm->cols, (long long)gemm->depth,
                 gemm->f32_out ? "f32" : "bf16", s, why);
      }
      gemm_data_free(&data);
    }
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
