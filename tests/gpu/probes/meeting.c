/* See meeting.h. */
#include "meeting.h"

#include <string.h>

static const struct gemm_case gemm = {.rows = 640, .cols = 1152, .depth = 1000};

void meeting_prepare(struct meeting_rank *rank, uint32_t ctas, uint32_t ranks, int cooperative,
                     cuda_address words) {
  static const struct gemm_shape shape = {PROBE_GEMM_SHAPE};
  const uint32_t shared = GEMM_SHARED_BYTES(shape.blocks, shape.cols, shape.stages);
  memset(rank, 0, sizeof *rank);
  gpu_require_status(weft__cuda_kernel_load(&test_device_images, "sm90_probes_meeting",
                                            "probe_meeting", 0, shared, &rank->kernel),
                     "probe_meeting");
  if (gemm_data_make(&shape, &gemm, &rank->data)) exit(4);
  gpu_require(weft__cuda_driver()->cuStreamCreate(&rank->stream, GPU_NON_BLOCKING), "stream");
  rank->a = gpu_upload(rank->data.a, rank->data.a_bytes);
  rank->b = gpu_upload(rank->data.b, rank->data.b_bytes);
  rank->c = gpu_upload(rank->data.before, rank->data.c_bytes);
  const struct gemm_problem problem =
      gemm_data_problem(&gemm, &rank->data, rank->a, rank->b, rank->c);
  struct cuda_tensor tensors[3];
  struct tensor_map *maps[3] = {&rank->args.gemm.a, &rank->args.gemm.b, &rank->args.gemm.c};
  gpu_require_status(weft__gemm_plan(&shape, &problem, tensors, &rank->args.gemm), "plan");
  for (int i = 0; i < 3; i++)
    gpu_require_status(weft__cuda_tensor_map_encode(&tensors[i], maps[i]), "map");
  rank->args.counter.a = words;
  rank->args.error.a = words + 8;
  rank->args.timeout_ns = MEETING_LATE_MS * UINT64_C(1000000);
  rank->args.expected = ranks * ctas;
  rank->launch = (struct cuda_launch){.ctas = ctas,
                                      .threads = GEMM_THREADS,
                                      .cluster = GEMM_CLUSTER,
                                      .shared_bytes = shared,
                                      .cooperative = cooperative,
                                      .stream = rank->stream};
}

void meeting_start(struct meeting_rank *rank) {
  gpu_require_status(weft__cuda_launch(&rank->kernel, &rank->launch, &rank->args), "launch");
}

int meeting_finish(struct meeting_rank *rank, cuda_address words) {
  gpu_require(weft__cuda_driver()->cuStreamSynchronize(rank->stream), "meeting");
  uint32_t word[MEETING_WORDS / 4];
  gpu_download(word, words, sizeof word);
  int good = 1;
  if (word[2] != 0 || word[0] != rank->args.expected) {
    printf("%u of %u CTAs came\n", word[0], rank->args.expected);
    good = 0;
  }
  unsigned char *got = malloc(rank->data.c_bytes);
  if (!got) exit(4);
  char why[160];
  gpu_download(got, rank->c, rank->data.c_bytes);
  if (gemm_data_compare(&gemm, &rank->data, got, why, sizeof why)) {
    printf("%s\n", why);
    good = 0;
  }
  free(got);
  return good;
}

void meeting_free(struct meeting_rank *rank) {
  gpu_free(rank->a);
  gpu_free(rank->b);
  gpu_free(rank->c);
  gpu_require(weft__cuda_driver()->cuStreamDestroy(rank->stream), "stream");
  gemm_data_free(&rank->data);
}
