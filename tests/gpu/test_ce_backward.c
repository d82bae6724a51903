/* The backward kernel on the GPU: small problems of every option against f64, outputs and workspace
 * poisoned; and the same bits in a hundred runs. Exits with 77 where there is no such GPU. */
#include <string.h>

#include "ce_backward_cases.h"
#include "gpu.h"

static const struct cuda_driver *driver;
static int passed, failed;

struct device_copy {
  cuda_address x, w, target, stats, g_nll, g_entropy, g_lse, temperature, dx, dw, words, workspace;
  cuda_address loss; /* f32 [3, tokens] */
  size_t workspace_bytes;
};

/* Runs a case `runs` times; every run has to leave the bits of the first. `apart`: as launches of
 * their own. */
static void run_case(const char *kernel_name, const struct ce_backward_case *c, int runs,
                     int apart) {
  struct ce_backward_data data;
  struct ce_backward_kernel kernel;
  struct ce_backward_launch launch;
  struct ce_backward_layout layout;
  struct device_copy at = {0};
  char name[256], why[512] = "";
  const int step = (c->flags & CE_STEP) != 0, entropy = (c->flags & CE_WANTS_ENTROPY) != 0;
  ce_backward_case_name(c, name, sizeof name);
  if (ce_backward_data_make(c, &data)) exit(4);
  gpu_require_status(weft__ce_backward_load(&test_device_images,
                                            kernel_name ? kernel_name
                                            : step
                                                ? weft__ce_step_name((c->flags & CE_F16) != 0)
                                                : weft__ce_backward_name((c->flags & CE_F16) != 0),
                                            0, &kernel),
                     "load");
  gpu_require_status(ce_backward_case_layout(c, &layout), "layout");
  const uint64_t w_skip = (uint64_t)(data.vocab_start * data.w_stride) * 2;
  at.x = gpu_upload(data.x, data.x_bytes);
  at.w = gpu_upload(data.w, data.w_bytes);
  at.target = gpu_upload(data.target, data.target_bytes);
  at.stats = gpu_upload(data.stats, data.stats_bytes);
  at.g_nll = gpu_upload(data.g_nll, data.row_bytes);
  at.g_entropy = gpu_upload(data.g_entropy, data.row_bytes);
  at.g_lse = gpu_upload(data.g_lse, data.row_bytes);
  at.temperature = gpu_upload(&c->temperature, 4);
  at.dx = gpu_allocate(data.dx_bytes);
  at.dw = gpu_allocate(data.dw_bytes);
  at.words = gpu_allocate(8);
  at.loss = gpu_allocate(3 * data.row_bytes);
  at.workspace = gpu_allocate((size_t)layout.bytes);
  struct ce_backward_problem p = ce_backward_data_problem(&data);
  p.x = at.x, p.w = at.w + w_skip, p.target = at.target, p.stats = at.stats;
  p.g_nll = c->flags & CE_NO_NLL ? 0 : at.g_nll;
  p.g_entropy = c->flags & CE_ENTROPY ? at.g_entropy : 0;
  p.g_lse = c->flags & CE_LSE ? at.g_lse : 0;
  p.temperature_ptr = c->flags & CE_T_POINTER ? at.temperature : 0;
  p.dx = c->flags & CE_NO_DX ? 0 : at.dx;
  p.dw = c->flags & CE_NO_DW ? 0 : at.dw;
  p.errors = at.words, p.count_targets = 1;
  p.nll = at.loss, p.lse = at.loss + data.row_bytes;
  p.entropy = entropy ? at.loss + 2 * data.row_bytes : 0;
  p.dx_in_turn = kernel_name != NULL && !strstr(kernel_name, "_dw_");
  gpu_require_status(weft__ce_backward_prepare(&kernel, &p, &layout, at.workspace, &launch),
                     "prepare");
  if (c->clusters && c->clusters < launch.launch.ctas / 2) launch.launch.ctas = c->clusters * 2;

  unsigned char *dx = malloc(data.dx_bytes), *dw = malloc(data.dw_bytes);
  unsigned char *first_dx = malloc(data.dx_bytes), *first_dw = malloc(data.dw_bytes);
  float *loss = malloc(3 * data.row_bytes), *first_loss = malloc(3 * data.row_bytes);
  if (!dx || !dw || !first_dx || !first_dw || !loss || !first_loss) exit(4);
  int bad = 0;
  for (int run = 0; run < runs && !bad; run++) {
    uint32_t words[2] = {0, 0};
    gpu_require(
        driver->cuMemsetD8Async(at.workspace, run % 2 ? 0xff : 0x7f, (size_t)layout.bytes, NULL),
        "memset");
    gpu_require(driver->cuMemsetD8Async(at.loss, 0x5a, 3 * data.row_bytes, NULL), "memset");
    gpu_require(driver->cuMemcpyHtoD(at.dx, data.dx_before, data.dx_bytes), "copy");
    gpu_require(driver->cuMemcpyHtoD(at.dw, data.dw_before, data.dw_bytes), "copy");
    gpu_require(driver->cuMemcpyHtoD(at.words, words, sizeof words), "copy");
    gpu_require_status(apart ? weft__ce_backward_run_apart(&kernel, &launch, NULL)
                             : weft__ce_backward_run(&kernel, &launch, NULL),
                       "run");
    gpu_require(driver->cuCtxSynchronize(), "the kernel");
    gpu_download(dx, at.dx, data.dx_bytes);
    gpu_download(dw, at.dw, data.dw_bytes);
    gpu_download(words, at.words, sizeof words);
    gpu_download(loss, at.loss, 3 * data.row_bytes);
    if (words[0] || words[1] != data.bad) {
      snprintf(why, sizeof why, "error word %#x, %u bad targets, expected %u", words[0], words[1],
               data.bad);
      bad = 1;
    } else if (run == 0) {
      bad = ce_backward_data_compare(&data, dx, dw, why, sizeof why);
      if (!bad && step)
        bad = ce_backward_data_compare_loss(&data, loss, loss + c->tokens,
                                            entropy ? loss + 2 * c->tokens : NULL, why, sizeof why);
      memcpy(first_loss, loss, 3 * data.row_bytes);
      memcpy(first_dx, dx, data.dx_bytes);
      memcpy(first_dw, dw, data.dw_bytes);
    } else if (memcmp(first_dx, dx, data.dx_bytes) || memcmp(first_dw, dw, data.dw_bytes) ||
               memcmp(first_loss, loss, 3 * data.row_bytes)) {
      snprintf(why, sizeof why, "run %d has other bits", run);
      bad = 1;
    }
  }
  passed += !bad;
  failed += bad;
  if (bad)
    printf("FAILED %s %s%s: %s\n", kernel_name ? kernel_name : "", name,
           apart ? " (launches apart)" : "", why);
  else
    printf("ok     %s%s: dX %.4f%% dW %.4f%%, %d runs\n", name, apart ? " (launches apart)" : "",
           100 * ce_backward_dx_error, 100 * ce_backward_dw_error, runs);
  fflush(stdout);
  free(dx), free(dw), free(first_dx), free(first_dw), free(loss), free(first_loss);
  const cuda_address all[] = {at.x,     at.w,         at.target, at.stats,
                              at.g_nll, at.g_entropy, at.g_lse,  at.temperature,
                              at.dx,    at.dw,        at.words,  at.workspace};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu_free(all[i]);
  ce_backward_data_free(&data);
}

int main(int argc, char **argv) {
  struct cuda_device_info info;
  const int quick = argc > 1 && !strcmp(argv[1], "--quick");
  driver = gpu_open(&info);
  if (info.arch != CUDA_ARCH_SM90) {
    printf("skipped: this kernel is for compute capability 9.0\n");
    return GPU_SKIPPED;
  }
  for (size_t i = 0; i < ce_backward_case_count; i++)
    if (!quick || ce_backward_cases[i].tokens <= 400) run_case(NULL, &ce_backward_cases[i], 3, 0);
  run_case(NULL, &ce_backward_cases[3], 1, 1);
  const struct ce_backward_case often = {900, 264, 1500, 2, CE_IGNORE | CE_ENTROPY, 1, 0, 1, 0};
  run_case(NULL, &often, 100, 0);
  const struct ce_backward_case steps = {900, 264, 1500, 1, CE_STEP | CE_IGNORE | CE_WANTS_ENTROPY,
                                         1,   0,   1,    0};
  run_case(NULL, &steps, 100, 0);
  run_case("sm90_backward_dx_turn", &ce_backward_cases[3], 1, 0);
  run_case("sm90_backward_dx_turn", &ce_backward_cases[4], 1, 0);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
