/* Runs every wrapper test on the GPU. Writes a line a test with the hash of its output, and all
 * outputs one after the other, raw; and compares the hashes with a file of such lines, if one is
 * given: what loom or another GPU answered. Each test runs twice, and must answer alike.
 *
 *   wrappers_gpu [--lines FILE] [--raw FILE] [--expect FILE] [--illegal]
 *
 * --illegal runs what a GPU refuses, too; each such test ends a child, and must. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../gpu.h"
#include "wrapper_tests.h"

static struct wrapper_test tests[WRAPPER_TESTS_MAX];

static void run(const struct cuda_driver *driver, const struct wrapper_test *test,
                const unsigned char *in, unsigned char *out) {
  struct cuda_kernel kernel;
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, test->image, test->kernel, 0,
                                            test->shared_bytes, &kernel),
                     test->name);
  memset(out, WRAPPER_OUT_BYTE, test->out_bytes);
  struct wrapper_args args;
  memset(&args, 0, sizeof args);
  args.in.a = gpu_upload(in, test->in_bytes);
  args.out.a = gpu_upload(out, test->out_bytes);
  args.parameter = test->parameter;
  if (test->map != MAP_NONE) {
    struct cuda_tensor tensor = test->tensor;
    tensor.address = test->map == MAP_IN ? args.in.a : args.out.a;
    gpu_require_status(weft__cuda_tensor_map_encode(&tensor, &args.map), test->name);
  }
  const struct cuda_launch launch = {.ctas = test->cluster,
                                     .threads = test->threads,
                                     .cluster = test->cluster,
                                     .shared_bytes = test->shared_bytes};
  gpu_require_status(weft__cuda_launch(&kernel, &launch, &args), test->name);
  gpu_require(driver->cuCtxSynchronize(), test->name);
  gpu_download(out, args.out.a, test->out_bytes);
  gpu_free(args.in.a);
  gpu_free(args.out.a);
}

/* What the children, which hold the GPU, leave for the parent. A test that breaks its context ends
 * its child; the next child goes on behind it. */
enum state { NOT_RUN = 0, RAN, UNSTEADY, BROKEN };
struct results {
  volatile size_t next;
  volatile unsigned char state[WRAPPER_TESTS_MAX];
  unsigned char out[WRAPPER_TESTS_MAX][WRAPPER_OUT_MAX];
};

static int illegal_too;

static int run_rest(struct results *results, size_t count) {
  static unsigned char in[WRAPPER_OUT_MAX], again[WRAPPER_OUT_MAX];
  struct cuda_device_info info;
  const struct cuda_driver *driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  if (results->next == 0) printf("# wrappers on %s, %zu tests\n", info.name, count);
  fflush(stdout);
  while (results->next < count) {
    const size_t i = results->next;
    if (tests[i].illegal && !illegal_too) {
      results->next = i + 1;
      continue;
    }
    wrapper_input(&tests[i], i, in);
    run(driver, &tests[i], in, results->out[i]);
    run(driver, &tests[i], in, again);
    const int steady = memcmp(results->out[i], again, tests[i].out_bytes) == 0;
    results->state[i] = steady ? RAN : UNSTEADY;
    results->next = i + 1;
  }
  return 0;
}

/* 0, or GPU_SKIPPED. */
static int run_all(struct results *results, size_t count) {
  while (results->next < count) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) exit(run_rest(results, count));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return 4;
    if (WIFEXITED(status) && WEXITSTATUS(status) == GPU_SKIPPED) return GPU_SKIPPED;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    results->state[results->next] = BROKEN;
    results->next++;
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *lines_path = NULL, *raw_path = NULL, *expect = NULL;
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(argv[i], "--illegal"))
      illegal_too = 1;
    else if (value && !strcmp(argv[i], "--lines"))
      lines_path = value, i++;
    else if (value && !strcmp(argv[i], "--raw"))
      raw_path = value, i++;
    else if (value && !strcmp(argv[i], "--expect"))
      expect = value, i++;
    else {
      fprintf(stderr, "usage: wrappers_gpu [--lines FILE] [--raw FILE] [--expect FILE] "
                      "[--illegal]\n");
      return 2;
    }
  }
  const size_t count = wrapper_tests_make(tests);
  struct results *results =
      mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (results == MAP_FAILED) return 4;
  const int status = run_all(results, count);
  if (status) return status;

  FILE *lines = lines_path ? fopen(lines_path, "w") : NULL;
  FILE *raw = raw_path ? fopen(raw_path, "wb") : NULL;
  if ((lines_path && !lines) || (raw_path && !raw)) {
    fprintf(stderr, "can't write %s\n", lines_path && !lines ? lines_path : raw_path);
    return 4;
  }
  int passed = 0, failed = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t want = 0;
    const uint64_t got = wrapper_hash(results->out[i], tests[i].out_bytes);
    const char *why = NULL;
    if (tests[i].illegal) {
      if (illegal_too && results->state[i] != BROKEN) why = "is legal here after all";
    } else if (results->state[i] == BROKEN)
      why = "broke its context";
    else if (results->state[i] == UNSTEADY)
      why = "two runs differ";
    else if (expect && wrapper_find_hash(expect, tests[i].name, &want))
      why = "not in the file";
    else if (expect && want != got)
      why = "differs from the file";
    /* a place for every test, so that offsets hold; a line for those with an answer */
    if (raw) fwrite(results->out[i], 1, tests[i].out_bytes, raw);
    if (lines && results->state[i] == RAN) wrapper_write_line(lines, &tests[i], results->out[i]);
    passed += why == NULL && (illegal_too || !tests[i].illegal);
    failed += why != NULL;
    if (why) printf("FAILED %s: %s\n", tests[i].name, why);
  }
  if (lines && fclose(lines)) failed++;
  if (raw && fclose(raw)) failed++;
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
