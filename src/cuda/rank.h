/* A rank of an in-process world on its GPU, from the inside. */
#ifndef WEFT_CUDA_RANK_H
#define WEFT_CUDA_RANK_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/device.h"
#include "cuda/cuda.h"

enum { GPU_RANK_BLOCKS_MAX = 1024, GPU_RANK_ALIGNMENT = 1024 };

/* A part of the arena in use. */
struct arena_block {
  int64_t offset, bytes;
};

struct weft__gpu_rank {
  atomic_llong references;
  int device;
  int64_t sms;
  cuda_stream stream;   /* its own, not ordered with the default stream */
  cuda_event chain;     /* after the latest of the rank's kernels */
  uint64_t capture;     /* the capture that the latest of them is part of, 0: none; its stream, */
  cuda_stream captured; /* and its node that records the event */
  cuda_graph_node record;
  pthread_mutex_t lock; /* of the arena's blocks; and a call's launches hold it, so that they follow
                           each other in the chain as in the streams */
  cuda_address arena;   /* 0: each block is an allocation of its own */
  int64_t arena_bytes;
  struct arena_block *blocks; /* by offset */
  int64_t blocks_count;
};

/* A block of the rank's arena, or an allocation where it has none. Errors: MEMORY. */
weft_status weft__gpu_rank_take(weft__gpu_rank *rank, int64_t bytes, cuda_address *block);
void weft__gpu_rank_give(weft__gpu_rank *rank, cuda_address block); /* 0 is allowed */

#endif
