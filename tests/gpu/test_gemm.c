/* Runs every GEMM variant on the GPU over the exact cases and compares all of C, guards included,
 * to the bit. */
#include <string.h>

#include "gemm_cases.h"
#include "gemm_variants.h"
#include "gpu.h"

static int run_case(const struct gemm_kernel *loaded, const struct gemm_case *gemm, char *why,
                    size_t room) {
  struct gemm_data data;
  if (gemm_data_make(&loaded->shape, gemm, &data)) {
    snprintf(why, room, "no host memory");
    return 1;
  }
  struct gemm_kernel kernel = *loaded;
  if (gemm->clusters && gemm->clusters < kernel.clusters_max) kernel.clusters_max = gemm->clusters;
  const cuda_address a = gpu_upload(data.a, data.a_bytes), b = gpu_upload(data.b, data.b_bytes);
  const cuda_address c = gpu_upload(data.before, data.c_bytes);
  const struct gemm_problem problem = gemm_data_problem(gemm, &data, a, b, c);
  struct gemm_launch launch;
  gpu_require_status(weft__gemm_prepare(&kernel, &problem, &launch), "prepare");
  gpu_require_status(weft__gemm_run(&kernel, &launch, NULL), "launch");
  gpu_require(weft__cuda_driver()->cuCtxSynchronize(), "the kernel");
  unsigned char *got = malloc(data.c_bytes);
  int failed = 1;
  if (got) {
    gpu_download(got, c, data.c_bytes);
    failed = gemm_data_compare(gemm, &data, got, why, room);
  } else {
    snprintf(why, room, "no host memory");
  }
  free(got);
  gpu_free(a);
  gpu_free(b);
  gpu_free(c);
  gemm_data_free(&data);
  return failed;
}

/* What the planner must refuse rather than read wrongly. */
static int refuses(const struct gemm_kernel *kernel, const struct gemm_problem *problem) {
  struct gemm_launch launch;
  return weft__gemm_prepare(kernel, problem, &launch) == WEFT_ERR_ARGUMENT &&
         weft_last_error()[0] != '\0';
}

static int check_refusals(const struct gemm_kernel *kernel) {
  const cuda_address memory = gpu_allocate(1 << 20);
  const struct gemm_problem good = {
      .rows = 64, .cols = 64, .depth = 64, .a = {memory, 64}, .b = {memory, 64}, .c = {memory, 64}};
  struct gemm_launch launch;
  int failed = weft__gemm_prepare(kernel, &good, &launch) != WEFT_OK;
  struct gemm_problem bad = good;
  bad.a.stride = 68; /* 136 bytes */
  failed += !refuses(kernel, &bad);
  bad = good, bad.b.address += 8;
  failed += !refuses(kernel, &bad);
  bad = good, bad.c.stride = 56; /* shorter than a row */
  failed += !refuses(kernel, &bad);
  bad = good, bad.depth = 0;
  failed += !refuses(kernel, &bad);
  bad = good, bad.rows = INT64_C(1) << 31;
  failed += !refuses(kernel, &bad);
  gpu_free(memory);
  return failed;
}

int main(void) {
  struct cuda_device_info info;
  gpu_open(&info);
  printf("# GEMM on %s, exact cases\n", info.name);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: these kernels are for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  static const struct {
    const char *name;
    struct gemm_shape shape;
  } variants[] = {
#define X(name, shape, product) {#name, {shape}},
      GEMM_VARIANTS(X)
#undef X
  };
  int passed = 0, failed = 0;
  for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
    struct gemm_kernel kernel;
    gpu_require_status(
        weft__gemm_load(&test_device_images, variants[v].name, &variants[v].shape, 0, &kernel),
        variants[v].name);
    printf("# %s: %d registers, %d bytes of local memory, %u clusters\n", variants[v].name,
           kernel.kernel.registers, kernel.kernel.local_bytes, kernel.clusters_max);
    for (size_t i = 0; i < gemm_case_count + gemm_toy_case_count; i++) {
      const struct gemm_case *gemm =
          i < gemm_case_count ? &gemm_cases[i] : &gemm_toy_cases[i - gemm_case_count];
      char why[160] = "";
      if (run_case(&kernel, gemm, why, sizeof why) == 0) {
        passed++;
        continue;
      }
      failed++;
      printf("FAILED %s %lldx%lld over %lld %s: %s\n", variants[v].name, (long long)gemm->rows,
             (long long)gemm->cols, (long long)gemm->depth, gemm->f32_out ? "f32" : "bf16", why);
    }
    const int wrong = check_refusals(&kernel);
    if (wrong)
      printf("FAILED %s: %d bad problems taken or good ones refused\n", variants[v].name, wrong);
    passed += wrong == 0;
    failed += wrong != 0;
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
