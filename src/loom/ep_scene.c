/* See ep_scene.h: data, memory and launches. */
#include "ep_scene.h"

#include <string.h>

#include "device/ep/toy.h"

#define TIMEOUT_NS 1000000000ull

enum { DISPATCH_STAGES = 5, COMBINE_STAGES = 3, PIECE = 96, ALIGNMENT = 4 };

extern const struct loom_kernel sm90_ep_toy_bf16, sm90_ep_toy_fp8, sm90_ep_toy_combine,
    smxx_ep_toy_expert;

/* ---- Data ---- */

static uint64_t hash(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

uint32_t ep_scene_tokens(uint32_t rank) {
  static const uint32_t tokens[] = {5, 3, 0, 6};
  return tokens[rank % 4];
}

int32_t ep_scene_topk(const struct ep_scene *s, uint64_t seed, uint32_t rank, uint32_t token,
                      uint32_t k) {
  const uint64_t draw = hash(hash(seed, rank), token);
  if (hash(draw, 100 + k) % 6 == 0) return -1;
  /* differs for each k: an odd step where the experts are a power of two */
  const uint32_t step = s->experts & (s->experts - 1) ? 1 : (1 + s->experts / 4) | 1;
  return (int32_t)((draw + k * step) % s->experts);
}

uint16_t ep_scene_x(uint64_t seed, uint32_t rank, uint32_t token, uint32_t channel) {
  const uint64_t bits = hash(hash(seed + 7, rank * 64 + token), channel);
  return (uint16_t)((bits & 0x8000) | (119 + (bits >> 20) % 16) << 7 | (bits & 0x7f));
}

float ep_scene_weight(const struct ep_scene *s, uint64_t seed, uint32_t rank, uint32_t token,
                      uint32_t k) {
  if (s->form.no_weights) return 1.0f;
  return (float)(hash(hash(seed + 9, rank * 64 + token), k) >> 40) * 0x1p-24f;
}

/* ---- Memory ---- */

static uint64_t zeroed(uint32_t rank, size_t bytes) {
  const uint64_t to = loom_alloc(rank, bytes);
  loom_fill(to, 0, bytes);
  return to;
}

static struct gmem at(uint64_t address) {
  struct gmem p;
  p.a = address;
  return p;
}

void ep_scene_fill(const struct ep_scene *s, uint32_t rank, uint32_t set, uint64_t x_seed) {
  const struct ep_scene_set *e = &s->rank[rank].set[set];
  uint16_t row[EP_SCENE_HIDDEN_MAX];
  for (uint32_t t = 0; t < ep_scene_tokens(rank); t++) {
    for (uint32_t i = 0; i < s->form.hidden; i++)
      row[i] = ep_scene_x(x_seed, rank, t, i);
    loom_write(e->x + (uint64_t)t * s->form.hidden * 2, row, s->form.hidden * 2);
    for (uint32_t k = 0; k < EP_SCENE_TOPK; k++) {
      const float weight = ep_scene_weight(s, x_seed, rank, t, k);
      loom_write(e->weights + (t * EP_SCENE_TOPK + k) * 4, &weight, 4);
    }
  }
}

static void fill_topk(const struct ep_scene *s, uint32_t rank, const struct ep_scene_set *e) {
  const size_t bytes = s->form.topk_i64 ? 8 : 4;
  for (uint32_t t = 0; t < ep_scene_tokens(rank); t++)
    for (uint32_t k = 0; k < EP_SCENE_TOPK; k++) {
      const int64_t expert = ep_scene_topk(s, e->seed, rank, t, k);
      loom_write(e->topk + (t * EP_SCENE_TOPK + k) * bytes, &expert, bytes);
    }
}

static void make_set(const struct ep_scene *s, uint32_t rank, struct ep_scene_set *e,
                     uint64_t seed) {
  const size_t slots = EP_SCENE_TOKENS_MAX * EP_SCENE_TOPK, rows = s->rows_max;
  const size_t h = s->form.hidden, pairs = s->experts * 8;
  e->seed = e->x_seed = seed;
  e->x = loom_alloc(rank, EP_SCENE_TOKENS_MAX * h * 2);
  e->topk = loom_alloc(rank, slots * 8);
  e->weights = loom_alloc(rank, slots * 4);
  e->recv_x = loom_alloc(rank, rows * h * 2);
  e->recv_scales = loom_alloc(rank, (s->scales.stride + 4) * (rows + s->scales.words * 16) * 4);
  e->recv_weights = loom_alloc(rank, rows * 4);
  if (s->form.masking) { /* where rows of a dead rank must become 0 */
    loom_fill(e->recv_x, 0xee, rows * h * 2);
    loom_fill(e->recv_weights, 0xee, rows * 4);
  }
  e->counts = loom_alloc(rank, pairs);
  e->offsets = loom_alloc(rank, pairs);
  e->source_counts = loom_alloc(rank, pairs);
  e->y = loom_alloc(rank, rows * h * 2);
  e->row_gradient = loom_alloc(rank, rows * 4);
  e->out = loom_alloc(rank, EP_SCENE_TOKENS_MAX * h * 2);
  e->weight_gradient = loom_alloc(rank, slots * 4);
  e->expert = zeroed(rank, slots * 4);
  e->row = zeroed(rank, slots * 4);
  e->kept_counts = zeroed(rank, pairs);
  e->kept_offsets = zeroed(rank, pairs);
  e->routing = zeroed(rank, 4);
  e->staged = loom_alloc(rank, EP_SCENE_TOKENS_MAX * h * 2);
  e->staged_weights = loom_alloc(rank, slots * 4);
  fill_topk(s, rank, e);
}

int ep_scene_make(struct ep_scene *s, const struct ep_scene_form *form, uint32_t ranks) {
  memset(s, 0, sizeof *s);
  s->form = *form;
  s->ranks = ranks;
  s->experts = ranks * EP_SCENE_LOCAL;
  s->slab_rows = ranks * EP_SCENE_TOKENS_MAX;
  s->rows_max = EP_SCENE_LOCAL * ep_rounded(s->slab_rows, ALIGNMENT);
  if (form->fp8) {
    s->scales.blocks = (form->hidden + EP_BLOCK - 1) / EP_BLOCK;
    s->scales.words =
        form->scale_format == EP_SCALE_UE8M0 ? (s->scales.blocks + 3) / 4 : s->scales.blocks;
    s->scales.format = form->scale_format;
    s->scales.columns = form->columns;
    s->scales.slab_rows = form->packed ? 0 : s->slab_rows;
    s->scales.stride = !form->columns ? s->scales.words
                       : form->packed ? s->rows_max
                                      : ep_rounded(s->slab_rows, 4);
  }
  const size_t words = ep_words_bytes(ranks, EP_SCENE_LOCAL);
  if (ranks > EP_RANKS_MAX || loom_peers_make(&s->peers, ranks, 1, words, words, TIMEOUT_NS) != 0)
    return -1;
  for (uint32_t r = 0; r < ranks; r++) {
    s->rank[r].control = zeroed(r, 4096);
    s->rank[r].mask = zeroed(r, ranks * 4);
    for (uint32_t set = 0; set < EP_SCENE_HANDLES; set++) {
      make_set(s, r, &s->rank[r].set[set], 1 + set);
      ep_scene_fill(s, r, set, 1 + set);
    }
  }
  return 0;
}

/* ---- Launches ---- */

/* Offsets in a rank's control block. */
enum {
  SENT = 0,
  RECEIVED = 8,
  GATE = 16,
  SLOT_BYTES = 32,
  STATE = 128,
  WAITS = 256,
  ROWS = 512,
  OPERATIONS = 1024
};

static struct ep_team team_of(const struct ep_scene *s, uint32_t rank, uint32_t set, uint32_t kind,
                              uint32_t halves) {
  const struct ep_scene_rank *me = &s->rank[rank];
  const uint64_t slot = me->control + set * SLOT_BYTES;
  struct ep_team t;
  memset(&t, 0, sizeof t);
  t.view = s->peers.view[rank];
  t.words =
      ep_words_of(set * ep_words_of(0, s->ranks, EP_SCENE_LOCAL).end, s->ranks, EP_SCENE_LOCAL);
  t.notice = ep_notice_of(0, s->ranks, EP_SCENE_LOCAL);
  t.sent = at(slot + SENT);
  t.received = at(slot + RECEIVED);
  t.gate = at(slot + GATE);
  t.state = at(me->control + STATE);
  t.mask = at(me->mask);
  t.wait_ns = at(me->control + WAITS);
  t.operations = at(me->control + OPERATIONS + 8 * kind);
  t.routing = at(me->set[set].routing);
  t.kind = kind;
  t.halves = halves;
  t.slot = set;
  t.masking = s->form.masking;
  t.fence = s->form.fence;
  t.experts_local = EP_SCENE_LOCAL;
  t.topk = EP_SCENE_TOPK;
  t.tokens = ep_scene_tokens(rank);
  return t;
}

static void launch(const struct loom_kernel *kernel, const void *args, uint32_t rank, uint32_t ctas,
                   uint32_t shared_bytes) {
  const struct loom_launch l = {kernel, args, rank, ctas, shared_bytes, 0};
  if (loom_launch(&l) != 0) loom_report_wrong("the launch was refused");
}

void ep_scene_dispatch(const struct ep_scene *s, uint32_t rank, uint32_t set, uint32_t halves,
                       uint32_t reuse) {
  const struct ep_scene_set *e = &s->rank[rank].set[set];
  const uint32_t whole = EP_SEND | EP_RECEIVE, from_stage = halves == EP_RECEIVE;
  struct ep_dispatch_args a;
  memset(&a, 0, sizeof a);
  a.team = team_of(s, rank, set, EP_DISPATCH, halves);
  a.x = at(from_stage ? e->staged : e->x);
  a.row_bytes = s->form.hidden * 2;
  a.x_stride = a.row_bytes;
  a.topk = at(reuse ? 0 : e->topk);
  if (!s->form.no_weights) a.weights = at(e->weights);
  if (from_stage) a.weights = at(e->staged_weights);
  if (halves != whole) a.staged = at(e->staged), a.staged_weights = at(e->staged_weights);
  a.recv_x = at(e->recv_x);
  a.recv_scales = at(e->recv_scales);
  a.recv_weights = at(e->recv_weights);
  a.counts = at(e->counts);
  a.offsets = at(e->offsets);
  a.source_counts = at(e->source_counts);
  a.expert = at(e->expert);
  a.row = at(e->row);
  a.kept_counts = at(e->kept_counts);
  a.kept_offsets = at(e->kept_offsets);
  a.expert_rows = at(s->rank[rank].control + ROWS);
  a.scales = s->scales;
  a.pieces = ep_pieces(a.row_bytes, PIECE);
  a.reuse = reuse;
  a.topk_i64 = s->form.topk_i64;
  a.experts = s->experts;
  a.hidden = s->form.hidden;
  a.slab_rows = s->slab_rows;
  a.packed = s->form.packed;
  a.alignment = ALIGNMENT;
  a.rows_max = s->rows_max;
  a.stages = s->form.fp8 ? 0 : DISPATCH_STAGES;
  launch(s->form.fp8 ? &sm90_ep_toy_fp8 : &sm90_ep_toy_bf16, &a, rank, EP_SCENE_CTAS,
         ep_dispatch_shared(s->ranks, s->experts, a.stages, a.pieces.bytes).bytes);
}

void ep_scene_experts(const struct ep_scene *s, uint32_t rank, uint32_t set) {
  const struct ep_scene_set *e = &s->rank[rank].set[set];
  const struct ep_toy_args a = {at(e->recv_x),  at(e->recv_weights),  at(e->counts), at(e->offsets),
                                at(e->y),       at(e->row_gradient),  s->form.fp8,   s->form.hidden,
                                EP_SCENE_LOCAL, rank * EP_SCENE_LOCAL};
  launch(&smxx_ep_toy_expert, &a, rank, 1, 0);
}

static struct ep_combine_args combine_args(const struct ep_scene *s, uint32_t rank, uint32_t set,
                                           uint32_t halves, uint32_t weighted) {
  const struct ep_scene_set *e = &s->rank[rank].set[set];
  struct ep_combine_args a;
  memset(&a, 0, sizeof a);
  a.team = team_of(s, rank, set, EP_COMBINE, halves);
  a.y = at(e->y);
  a.row_gradient = at(e->row_gradient);
  if (weighted) a.weights = at(e->weights);
  a.out = at(e->out);
  a.row_bytes = s->form.hidden * 2;
  a.out_stride = a.row_bytes;
  a.weight_gradient = at(e->weight_gradient);
  a.expert = at(e->expert);
  a.row = at(e->row);
  a.pieces = ep_pieces(a.row_bytes, s->form.fp8 ? 1024 : PIECE);
  a.stages = COMBINE_STAGES;
  return a;
}

static void launch_combine(const struct ep_scene *s, uint32_t rank,
                           const struct ep_combine_args *a) {
  launch(&sm90_ep_toy_combine, a, rank, EP_SCENE_CTAS,
         ep_combine_shared(s->ranks, EP_SCENE_TOPK, a->stages, a->pieces.bytes).bytes);
}

void ep_scene_combine(const struct ep_scene *s, uint32_t rank, uint32_t set, uint32_t halves,
                      uint32_t weighted) {
  const struct ep_combine_args a = combine_args(s, rank, set, halves, weighted);
  launch_combine(s, rank, &a);
}

void ep_scene_refuse(const struct ep_scene *s, uint32_t rank, uint32_t set) {
  struct ep_combine_args a = combine_args(s, rank, set, EP_SEND, 0);
  a.team.kind = EP_REFUSED;
  launch_combine(s, rank, &a);
}
