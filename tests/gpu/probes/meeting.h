/* One rank of a meeting: a GEMM launch that first waits for all CTAs of all ranks, and the check of
 * what it left. */
#ifndef WEFT_TESTS_GPU_PROBES_MEETING_H
#define WEFT_TESTS_GPU_PROBES_MEETING_H

#include "../gemm_cases.h"
#include "../gpu.h"
#include "probe_args.h"

enum { MEETING_LATE_MS = 5000, MEETING_WORDS = 16 };

struct meeting_rank {
  struct gemm_data data;
  struct cuda_kernel kernel;
  struct meeting_args args;
  struct cuda_launch launch;
  cuda_stream stream;
  cuda_address a, b, c;
};

/* `words`: MEETING_WORDS zero bytes that all ranks share. */
void meeting_prepare(struct meeting_rank *rank, uint32_t ctas, uint32_t ranks, int cooperative,
                     cuda_address words);
void meeting_start(struct meeting_rank *rank);
/* Waits; 1 where all have met and this rank's result is right. Says what is wrong. */
int meeting_finish(struct meeting_rank *rank, cuda_address words);
void meeting_free(struct meeting_rank *rank);

#endif
