/* CUDA graphs, for tests alone: the library captures nothing itself. */
#ifndef WEFT_TESTS_GPU_GRAPH_H
#define WEFT_TESTS_GPU_GRAPH_H

#include "cuda/cuda.h"

struct gpu_graph {
  void *graph, *exec;
};

/* Between begin and end, what is enqueued on the stream is recorded and not run. */
void gpu_graph_begin(cuda_stream stream);
struct gpu_graph gpu_graph_end(cuda_stream stream);
/* Ends a capture that came to nothing. */
void gpu_graph_abandon(cuda_stream stream);
void gpu_graph_launch(struct gpu_graph graph, cuda_stream stream);
void gpu_graph_free(struct gpu_graph graph);

#endif
