/* Runs every wrapper test in loom, under a seed, and compares the hashes of the outputs with a file
 * of lines that a GPU wrote (wrappers_gpu --lines). Where a raw file of the GPU's is given too, it
 * says at which byte they differ first. Any finding of loom's is a failure: the kernels are meant
 * to be right.
 *
 *   wrappers_loom EXPECT [--raw FILE] [--seed N] [--only NAME] [--lines FILE] */
#include <stdlib.h>
#include <string.h>

#include <weft/loom.h>

#include "wrapper_tests.h"

#define X(kernel, image) extern const struct loom_kernel kernel;
WRAPPER_KERNELS(X)
#undef X

static const struct loom_kernel *kernel_named(const char *name) {
#define X(kernel, image)                                                                           \
  if (!strcmp(name, #kernel)) return &kernel;
  WRAPPER_KERNELS(X)
#undef X
  return NULL;
}

static int encode(const struct cuda_tensor *t, uint64_t address, struct tensor_map *map) {
  static const enum loom_dtype types[] = {
      [CUDA_BF16] = LOOM_BF16, [CUDA_F16] = LOOM_F16, [CUDA_F32] = LOOM_F32, [CUDA_U8] = LOOM_U8};
  static const enum loom_swizzle swizzles[] = {[CUDA_SWIZZLE_NONE] = LOOM_SWIZZLE_NONE,
                                               [CUDA_SWIZZLE_32] = LOOM_SWIZZLE_32B,
                                               [CUDA_SWIZZLE_64] = LOOM_SWIZZLE_64B,
                                               [CUDA_SWIZZLE_128] = LOOM_SWIZZLE_128B};
  return loom_tensor_map_encode(map, types[t->element], t->rank, address, t->dims, t->strides,
                                t->box, swizzles[t->swizzle]);
}

/* NULL, or what went wrong. */
static const char *run(const struct wrapper_test *test, uint64_t seed, const unsigned char *in,
                       unsigned char *out) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed;
  config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
  if (loom_begin(&config)) return "loom_begin failed";
  struct wrapper_args args;
  memset(&args, 0, sizeof args);
  args.in.a = loom_alloc(0, test->in_bytes);
  args.out.a = loom_alloc(0, test->out_bytes);
  args.parameter = test->parameter;
  if (!args.in.a || !args.out.a) return "loom_alloc failed";
  loom_write(args.in.a, in, test->in_bytes);
  loom_fill(args.out.a, WRAPPER_OUT_BYTE, test->out_bytes);
  if (test->map != MAP_NONE &&
      encode(&test->tensor, test->map == MAP_IN ? args.in.a : args.out.a, &args.map))
    return "the tensor map is refused";
  const struct loom_launch launch = {.kernel = kernel_named(test->kernel),
                                     .args = &args,
                                     .ctas = test->cluster,
                                     .smem_bytes = test->shared_bytes};
  if (loom_launch(&launch)) return "loom_launch failed";
  if (loom_run()) return loom_finding_at(0)->text;
  loom_read(args.out.a, out, test->out_bytes);
  return NULL;
}

static void show_difference(FILE *raw, long offset, const struct wrapper_test *test,
                            const unsigned char *out) {
  static unsigned char theirs[WRAPPER_OUT_MAX];
  if (!raw || fseek(raw, offset, SEEK_SET) ||
      fread(theirs, 1, test->out_bytes, raw) != test->out_bytes)
    return;
  uint32_t count = 0;
  for (uint32_t i = 0; i < test->out_bytes; i += 4) {
    if (!memcmp(theirs + i, out + i, 4)) continue;
    uint32_t got, want;
    memcpy(&got, out + i, 4);
    memcpy(&want, theirs + i, 4);
    if (count++ < 4) printf("  byte %u: loom %08x, GPU %08x\n", i, got, want);
  }
  printf("  %u of %u words differ\n", count, test->out_bytes / 4);
}

int main(int argc, char **argv) {
  const char *expect = argc > 1 ? argv[1] : NULL, *raw_path = NULL, *only = NULL, *lines = NULL;
  uint64_t seed = 1;
  for (int i = 2; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (value && !strcmp(argv[i], "--raw"))
      raw_path = value;
    else if (value && !strcmp(argv[i], "--seed"))
      seed = strtoull(value, NULL, 0);
    else if (value && !strcmp(argv[i], "--only"))
      only = value;
    else if (value && !strcmp(argv[i], "--lines"))
      lines = value;
    else
      expect = NULL;
  }
  if (!expect) {
    fprintf(stderr, "usage: wrappers_loom EXPECT [--raw FILE] [--seed N] [--only NAME] "
                    "[--lines FILE]\n");
    return 2;
  }
  static struct wrapper_test tests[WRAPPER_TESTS_MAX];
  static unsigned char in[WRAPPER_OUT_MAX], out[WRAPPER_OUT_MAX];
  const size_t count = wrapper_tests_make(tests);
  FILE *raw = raw_path ? fopen(raw_path, "rb") : NULL;
  FILE *written = lines ? fopen(lines, "w") : NULL;
  int passed = 0, failed = 0;
  long offset = 0;
  for (size_t i = 0; i < count; offset += tests[i].out_bytes, i++) {
    if (only && strncmp(tests[i].name, only, strlen(only))) continue;
    wrapper_input(&tests[i], i, in);
    const char *why = run(&tests[i], seed, in, out);
    uint64_t want = 0;
    int differs = 0;
    if (!why && written && !tests[i].illegal) wrapper_write_line(written, &tests[i], out);
    if (tests[i].illegal) {
      why = why ? NULL : "no finding, though a GPU refuses it";
    } else if (!why && wrapper_find_hash(expect, tests[i].name, &want)) {
      why = "the GPU's file has no such test";
    } else if (!why && want != wrapper_hash(out, tests[i].out_bytes)) {
      why = "differs from the GPU";
      differs = 1;
    }
    passed += why == NULL;
    failed += why != NULL;
    if (why) printf("FAILED %s: %s\n", tests[i].name, why);
    if (differs) show_difference(raw, offset, &tests[i], out);
    loom_end();
  }
  if (raw) fclose(raw);
  if (written) fclose(written);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
