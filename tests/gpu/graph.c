/* See graph.h. Takes the driver's functions by name. */
#include "graph.h"

#include <dlfcn.h>
#include <string.h>

#include "gpu.h"

static void find(const char *name, void *function) {
  static void *libcuda;
  if (!libcuda) libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *symbol = libcuda ? dlsym(libcuda, name) : NULL;
  if (!symbol) {
    fprintf(stderr, "the driver has no %s\n", name);
    exit(4);
  }
  memcpy(function, &symbol, sizeof symbol);
}

void gpu_graph_begin(cuda_stream stream) {
  enum { GLOBAL = 0 };
  int (*begin)(cuda_stream, int);
  find("cuStreamBeginCapture_v2", &begin);
  gpu_require(begin(stream, GLOBAL), "cuStreamBeginCapture");
}

struct gpu_graph gpu_graph_end(cuda_stream stream) {
  int (*end)(cuda_stream, void **);
  int (*instantiate)(void **, void *, unsigned long long);
  struct gpu_graph g;
  find("cuStreamEndCapture", &end);
  find("cuGraphInstantiateWithFlags", &instantiate);
  gpu_require(end(stream, &g.graph), "cuStreamEndCapture");
  gpu_require(instantiate(&g.exec, g.graph, 0), "cuGraphInstantiateWithFlags");
  return g;
}

void gpu_graph_abandon(cuda_stream stream) {
  int (*end)(cuda_stream, void **);
  void *graph = NULL;
  find("cuStreamEndCapture", &end);
  end(stream, &graph);
}

void gpu_graph_launch(struct gpu_graph graph, cuda_stream stream) {
  int (*launch)(void *, cuda_stream);
  find("cuGraphLaunch", &launch);
  gpu_require(launch(graph.exec, stream), "cuGraphLaunch");
}

void gpu_graph_free(struct gpu_graph graph) {
  int (*free_exec)(void *), (*free_graph)(void *);
  find("cuGraphExecDestroy", &free_exec);
  find("cuGraphDestroy", &free_graph);
  gpu_require(free_exec(graph.exec), "cuGraphExecDestroy");
  gpu_require(free_graph(graph.graph), "cuGraphDestroy");
}
