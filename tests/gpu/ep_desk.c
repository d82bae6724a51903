/* See ep_desk.h. */
#include "ep_desk.h"

#include <string.h>

static const struct cuda_driver *driver;

static void *pointer(cuda_address address) {
  return (void *)(uintptr_t)address;
}

void desk_world(int64_t ranks, int64_t timeout_ms, weft_comm **comms) {
  static const int32_t gpus[EP_RANKS] = {0};
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = ranks;
  world.device = WEFT_DEVICE_CUDA;
  world.gpus = gpus;
  world.timeout_ms = timeout_ms;
  gpu_require_status(weft_comm_create_inproc(&world, comms), "comm_create_inproc");
  driver = weft__cuda_driver();
}

static cuda_address filled(size_t bytes) {
  const cuda_address address = gpu_allocate(bytes + 64);
  gpu_require(driver->cuMemsetD8Async(address, 0xff, bytes + 64, NULL), "memset");
  return address;
}

static void open_set(struct desk *d, int64_t rank, int set) {
  const ep_case *c = &d->c[set];
  struct desk_set *s = &d->rank[rank].set[set];
  const size_t n = (size_t)c->tokens[rank], h = (size_t)c->hidden, k = (size_t)c->topk;
  const size_t rows = (size_t)d->info.rows_max;
  s->in = ep_inputs_make(c, rank, c->seed);
  s->again = ep_inputs_make(c, rank, c->seed + 99);
  s->got = ep_received_make(&d->info, c);
  s->x = gpu_upload(s->in.x, n * h * 2 + 2);
  s->topk = gpu_upload(s->in.topk_idx, n * k * 8 + 8);
  s->weights = gpu_upload(s->in.weights, n * k * 4 + 4);
  s->x_again = gpu_upload(s->again.x, n * h * 2 + 2);
  s->weights_again = gpu_upload(s->again.weights, n * k * 4 + 4);
  s->recv_x = filled((size_t)d->info.recv_bytes);
  s->recv_scales = filled((size_t)d->info.scale_bytes);
  s->recv_weights = filled(rows * 4);
  s->counts = filled((size_t)d->info.experts_local * 8);
  s->offsets = filled((size_t)d->info.experts_local * 8 + 8);
  s->source_counts = filled((size_t)(d->info.experts_local * c->ranks) * 8);
  s->y = filled(rows * h * 2);
  s->row_gradient = filled(rows * 4);
  s->out = filled(n * h * 2);
  s->weight_gradient = filled(n * k * 4);
  gpu_require_status(weft_ep_handle_create(d->rank[rank].plan, &s->handle), "handle_create");
}

void desk_open(struct desk *d, const ep_case *c, int sets, weft_comm **comms,
               const weft_ep_config *config) {
  const weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
  memset(d, 0, sizeof *d);
  d->sets = sets;
  d->info = info;
  for (int i = 0; i < sets; i++) {
    d->c[i] = *c;
    d->c[i].seed = c->seed + 7 * (uint64_t)i;
  }
  if (c->ranks > 1) gpu_require_status(weft_group_start(), "group_start");
  for (int64_t r = 0; r < c->ranks; r++) {
    d->rank[r].comm = comms[r];
    gpu_require_status(weft_ep_plan_create(comms[r], config, &d->rank[r].plan), "ep_plan_create");
  }
  if (c->ranks > 1) gpu_require_status(weft_group_end(), "group_end");
  gpu_require_status(weft_ep_plan_info_get(d->rank[0].plan, &d->info), "plan_info_get");
  for (int64_t r = 0; r < c->ranks; r++) {
    gpu_require_status(weft_comm_stream_get(comms[r], &d->rank[r].stream), "stream_get");
    for (int i = 0; i < sets; i++)
      open_set(d, r, i);
  }
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
}

void desk_close(struct desk *d) {
  gpu_require(driver->cuCtxSynchronize(), "synchronize");
  for (int64_t r = 0; r < d->c[0].ranks; r++) {
    for (int i = 0; i < d->sets; i++) {
      struct desk_set *s = &d->rank[r].set[i];
      const cuda_address all[] = {
          s->x,           s->topk,         s->weights,      s->x_again,         s->recv_x,
          s->recv_scales, s->recv_weights, s->counts,       s->offsets,         s->source_counts,
          s->y,           s->out,          s->row_gradient, s->weight_gradient, s->weights_again};
      for (size_t a = 0; a < sizeof all / sizeof all[0]; a++)
        gpu_free(all[a]);
      ep_inputs_free(&s->in);
      ep_inputs_free(&s->again);
      ep_received_free(&s->got);
      gpu_require_status(weft_ep_handle_destroy(s->handle), "handle_destroy");
    }
    gpu_require_status(weft_ep_plan_destroy(d->rank[r].plan), "plan_destroy");
  }
}

weft_ep_dispatch_args desk_dispatch_args(const struct desk *d, int64_t rank, int set, int again) {
  const struct desk_set *s = &d->rank[rank].set[set];
  weft_ep_dispatch_args a = WEFT_EP_DISPATCH_ARGS_INIT;
  a.tokens = d->c[set].tokens[rank];
  a.x = pointer(again ? s->x_again : s->x);
  a.topk_idx = again ? NULL : pointer(s->topk);
  a.topk_weights = (const float *)pointer(again ? s->weights_again : s->weights);
  a.reuse = again;
  a.recv_x = pointer(s->recv_x);
  a.recv_scales = pointer(s->recv_scales);
  a.recv_weights = (float *)pointer(s->recv_weights);
  a.counts = (int64_t *)pointer(s->counts);
  a.offsets = (int64_t *)pointer(s->offsets);
  a.source_counts = (int64_t *)pointer(s->source_counts);
  return a;
}

weft_ep_combine_args desk_combine_args(const struct desk *d, int64_t rank, int set, int weighted) {
  const struct desk_set *s = &d->rank[rank].set[set];
  weft_ep_combine_args a = WEFT_EP_COMBINE_ARGS_INIT;
  a.y = pointer(s->y);
  a.out = pointer(s->out);
  if (d->c[set].zero_copy)
    gpu_require_status(weft_ep_combine_buffer(d->rank[rank].plan, (void **)&a.y), "buffer");
  if (!weighted) return a;
  a.topk_weights = (const float *)pointer(s->weights);
  a.row_gradient = (const float *)pointer(s->row_gradient);
  a.weight_gradient = (float *)pointer(s->weight_gradient);
  return a;
}

void desk_wait(struct desk *d) {
  for (int64_t r = 0; r < d->c[0].ranks; r++)
    gpu_require(driver->cuStreamSynchronize((cuda_stream)d->rank[r].stream), "synchronize");
}

void desk_poison(struct desk *d, int64_t rank, int set) {
  const struct desk_set *s = &d->rank[rank].set[set];
  const ep_case *c = &d->c[set];
  const cuda_stream stream = (cuda_stream)d->rank[rank].stream;
  gpu_require(driver->cuMemsetD8Async(s->recv_x, 0xff, (size_t)d->info.recv_bytes + 1, stream),
              "x");
  gpu_require(
      driver->cuMemsetD8Async(s->out, 0xff, (size_t)(c->tokens[rank] * c->hidden) * 2 + 1, stream),
      "out");
  gpu_require(driver->cuMemsetD8Async(s->weight_gradient, 0xff,
                                      (size_t)(c->tokens[rank] * c->topk) * 4 + 1, stream),
              "gradient");
}

static void fetch(struct desk *d, int64_t rank, int set) {
  const struct desk_set *s = &d->rank[rank].set[set];
  const size_t experts = (size_t)d->info.experts_local;
  gpu_download(s->got.x, s->recv_x, (size_t)d->info.recv_bytes);
  if (d->info.scale_bytes > 0)
    gpu_download(s->got.scales, s->recv_scales, (size_t)d->info.scale_bytes);
  if (d->info.rows_max > 0)
    gpu_download(s->got.weights, s->recv_weights, (size_t)d->info.rows_max * 4);
  gpu_download(s->got.counts, s->counts, experts * 8);
  gpu_download(s->got.offsets, s->offsets, experts * 8 + 8);
  gpu_download(s->got.source_counts, s->source_counts, experts * (size_t)d->c[0].ranks * 8);
}

int desk_check_received(struct desk *d, int64_t rank, int set, int again, char why[256]) {
  const ep_case *c = &d->c[set];
  fetch(d, rank, set);
  return ep_check_received(c, &d->info, rank, c->seed, c->seed + (again ? 99 : 0),
                           &d->rank[rank].set[set].got, why);
}

int desk_check_combined(struct desk *d, int64_t rank, int set, int weighted, int64_t dead,
                        char why[256]) {
  const ep_case *c = &d->c[set];
  const struct desk_set *s = &d->rank[rank].set[set];
  const size_t n = (size_t)c->tokens[rank];
  uint16_t *out = (uint16_t *)malloc(n * (size_t)c->hidden * 2 + 2);
  float *values = (float *)malloc(n * (size_t)c->topk * 4 + 4);
  if (out == NULL || values == NULL) exit(4);
  if (n > 0) {
    gpu_download(out, s->out, n * (size_t)c->hidden * 2);
    gpu_download(values, s->weight_gradient, n * (size_t)c->topk * 4);
  }
  const int wrong =
      ep_check_combined(c, rank, c->seed, weighted, dead, out, weighted ? values : NULL, why);
  free(out);
  free(values);
  return wrong;
}

void desk_experts(struct desk *d, int64_t rank, int set) {
  const struct desk_set *s = &d->rank[rank].set[set];
  const size_t rows = (size_t)d->info.rows_max;
  if (rows == 0) return;
  uint16_t *y = (uint16_t *)malloc(rows * (size_t)d->c[set].hidden * 2);
  float *values = (float *)calloc(rows, 4);
  if (y == NULL || values == NULL) exit(4);
  fetch(d, rank, set);
  ep_fill_rows(&d->c[set], &d->info, rank, &s->got, y, values);
  const weft_ep_combine_args a = desk_combine_args(d, rank, set, 0);
  gpu_require(
      driver->cuMemcpyHtoD((cuda_address)(uintptr_t)a.y, y, rows * (size_t)d->c[set].hidden * 2),
      "y");
  gpu_require(driver->cuMemcpyHtoD(s->row_gradient, values, rows * 4), "row_gradient");
  free(y);
  free(values);
}
