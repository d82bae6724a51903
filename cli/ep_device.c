/* See ep_device.h. */
#include "ep_device.h"

static int64_t row_bytes(const ep_options *o) {
  return o->hidden * (o->dtype == 0 ? 2 : 1);
}

static bool make(ep_device *d, void **array, int64_t bytes, const void *from) {
  if (weft_memory_alloc(d->gpu, bytes > 0 ? bytes : 1, array) != WEFT_OK) return false;
  return from == NULL || bytes == 0 ||
         weft_memory_copy(d->gpu, *array, from, bytes, d->stream) == WEFT_OK;
}

bool ep_device_make(const ep_run *run, int64_t r) {
  const ep_options *o = run->data->options;
  const ep_tokens *t = &run->data->ranks[r];
  const weft_ep_plan_info *p = &run->plan;
  ep_rank *rank = &run->ranks[r];
  ep_device *d = &rank->device;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  void *y = NULL;
  if (weft_comm_info_get(rank->comm, &info) != WEFT_OK ||
      weft_comm_stream_get(rank->comm, &d->stream) != WEFT_OK ||
      weft_ep_combine_buffer(rank->plan, &y) != WEFT_OK)
    return false;
  d->gpu = info.gpu;
  d->y = y;
  const int64_t slots = o->tokens * o->topk, elements = o->tokens * o->hidden;
  return make(d, &d->x, elements * 2, t->x) && make(d, &d->topk, slots * 8, t->topk) &&
         make(d, &d->weights, slots * 4, t->weights) && make(d, &d->recv_x, p->recv_bytes, NULL) &&
         make(d, &d->scales, p->scale_bytes, NULL) &&
         make(d, &d->counts, p->experts_local * 8, NULL) &&
         make(d, &d->offsets, p->experts_local * 8 + 8, NULL) &&
         make(d, &d->out, elements * 2, NULL) &&
         weft_memory_synchronize(d->gpu, d->stream) == WEFT_OK;
}

void ep_device_free(ep_rank *rank) {
  ep_device *d = &rank->device;
  void *const arrays[] = {d->x,      d->topk,   d->weights, d->recv_x,
                          d->scales, d->counts, d->offsets, d->out};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
    weft_memory_free(d->gpu, arrays[i]);
  *d = (ep_device){0};
}

void ep_device_dispatch(const ep_rank *rank, weft_ep_dispatch_args *a) {
  const ep_device *d = &rank->device;
  a->x = d->x;
  a->topk_idx = d->topk;
  a->recv_x = d->recv_x;
  a->recv_scales = d->scales;
  a->counts = d->counts;
  a->offsets = d->offsets;
}

void ep_device_combine(const ep_rank *rank, weft_ep_combine_args *a) {
  const ep_device *d = &rank->device;
  a->y = d->y;
  a->topk_weights = d->weights;
  a->out = d->out;
}

/* An expert's rows of `bytes` each, one way or the other. */
static bool copy_rows(const ep_rank *rank, void *on_gpu, void *on_host, int64_t bytes,
                      int64_t experts, bool back) {
  const ep_device *d = &rank->device;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t at = rank->offsets[e] * bytes, all = rank->counts[e] * bytes;
    char *const gpu = (char *)on_gpu + at, *const host = (char *)on_host + at;
    if (all > 0 &&
        weft_memory_copy(d->gpu, back ? host : gpu, back ? gpu : host, all, d->stream) != WEFT_OK)
      return false;
  }
  return true;
}

bool ep_device_put(const ep_run *run, int64_t r, int phase) {
  const ep_options *o = run->data->options;
  const ep_rank *rank = &run->ranks[r];
  const ep_device *d = &rank->device;
  bool good = true;
  if (phase == EP_DISPATCH)
    good = copy_rows(rank, d->recv_x, rank->recv_x, row_bytes(o), run->plan.experts_local, false);
  else if (o->tokens > 0)
    good = weft_memory_copy(d->gpu, d->out, rank->out, o->tokens * o->hidden * 2, d->stream) ==
           WEFT_OK;
  return good && weft_memory_synchronize(d->gpu, d->stream) == WEFT_OK;
}

bool ep_device_put_rows(const ep_run *run, int64_t r) {
  const ep_options *o = run->data->options;
  const ep_rank *rank = &run->ranks[r];
  const ep_device *d = &rank->device;
  return copy_rows(rank, d->y, rank->y, o->hidden * 2, run->plan.experts_local, false) &&
         weft_memory_synchronize(d->gpu, d->stream) == WEFT_OK;
}

bool ep_device_fetch(const ep_run *run, int64_t r, int phase) {
  const ep_options *o = run->data->options;
  ep_rank *rank = &run->ranks[r];
  const ep_device *d = &rank->device;
  const int64_t experts = run->plan.experts_local;
  if (phase == EP_COMBINE) {
    if (o->tokens > 0 && weft_memory_copy(d->gpu, rank->out, d->out, o->tokens * o->hidden * 2,
                                          d->stream) != WEFT_OK)
      return false;
    return weft_memory_synchronize(d->gpu, d->stream) == WEFT_OK;
  }
  if (weft_memory_copy(d->gpu, rank->counts, d->counts, experts * 8, d->stream) != WEFT_OK ||
      weft_memory_copy(d->gpu, rank->offsets, d->offsets, experts * 8 + 8, d->stream) != WEFT_OK ||
      weft_memory_synchronize(d->gpu, d->stream) != WEFT_OK)
    return false;
  return copy_rows(rank, d->recv_x, rank->recv_x, row_bytes(o), experts, true) &&
         (o->dtype == 0 ||
          copy_rows(rank, d->scales, rank->scales, run->plan.scale_stride * 4, experts, true)) &&
         weft_memory_synchronize(d->gpu, d->stream) == WEFT_OK;
}
