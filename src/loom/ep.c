/* Protocols of dispatch and combine: the kernels of src/device/ep with few threads, at 2 ranks and
 * more, with ordinary kernels between them; with two operations in flight; with masking; with a
 * rank that does not come. */
#include <stdio.h>

#include "ep_scene.h"

enum script {
  ROUNDS,  /* two dispatches on a handle, the experts after each; two combines, likewise */
  FLIGHTS, /* two dispatches in flight, received in the other order, and so their combines */
  ABSENT,  /* the last rank is not there */
  DIES,    /* it says how many rows it has, and no more */
  MIXED,   /* it calls something else */
  REFUSES  /* its host has refused its arguments */
};

struct ep_protocol {
  struct ep_scene_form form;
  enum script script;
};

/* The second dispatch overwrites what the experts have read, the second combine reads what they
 * have written anew: nothing but the operations' own signals orders that between ranks. */
static void play_rounds(const struct ep_scene *s, uint32_t rank) {
  const uint32_t whole = EP_SEND | EP_RECEIVE;
  for (uint32_t round = 0; round < 2; round++) {
    ep_scene_dispatch(s, rank, 0, whole, round);
    ep_scene_experts(s, rank, 0);
  }
  ep_scene_combine(s, rank, 0, whole, 1);
  ep_scene_experts(s, rank, 0);
  ep_scene_combine(s, rank, 0, whole, 0);
}

/* What follows a dispatch that fails: another and a combine, which fail at once. */
static void play_failure(const struct ep_scene *s, uint32_t rank) {
  ep_scene_dispatch(s, rank, 0, EP_SEND | EP_RECEIVE, 0);
  ep_scene_dispatch(s, rank, 0, EP_SEND | EP_RECEIVE, 0);
  ep_scene_combine(s, rank, 0, EP_SEND | EP_RECEIVE, 1);
}

/* What the last rank calls while the others dispatch. */
static void play_other(const struct ep_scene *s, uint32_t rank, enum script script) {
  if (script == MIXED)
    ep_scene_combine(s, rank, 0, EP_SEND | EP_RECEIVE, 1);
  else
    ep_scene_refuse(s, rank, 0);
}

/* Every rank that takes part finds out. */
static void check_disagreement(const struct ep_scene *s, uint32_t rank, enum script script) {
  const uint32_t error = loom_peers_error(&s->peers, rank);
  const uint32_t last = rank == s->ranks - 1;
  char text[160];
  if (script == REFUSES && last) return; /* it knows */
  if (peer_error_kind(error) == (script == MIXED ? PEER_ERROR_DIFFERS : PEER_ERROR_REFUSED)) return;
  snprintf(text, sizeof text, "rank %u: error word %#x where a rank %s", rank, error,
           script == MIXED ? "made another call" : "refused its own");
  loom_report_wrong(text);
}

static void play_flights(const struct ep_scene *s, uint32_t rank) {
  ep_scene_dispatch(s, rank, 0, EP_SEND, 0);
  ep_scene_dispatch(s, rank, 1, EP_SEND, 0);
  ep_scene_dispatch(s, rank, 1, EP_RECEIVE, 0);
  ep_scene_dispatch(s, rank, 0, EP_RECEIVE, 0);
  ep_scene_experts(s, rank, 0);
  ep_scene_experts(s, rank, 1);
  ep_scene_combine(s, rank, 0, EP_SEND, 1);
  ep_scene_combine(s, rank, 1, EP_SEND, 1);
  ep_scene_combine(s, rank, 1, EP_RECEIVE, 1);
  ep_scene_combine(s, rank, 0, EP_RECEIVE, 1);
}

/* A rank waited for in vain: masked, or named in the error. */
static void check_absent(const struct ep_scene *s, uint32_t rank, uint32_t absent) {
  uint32_t mask[EP_RANKS_MAX], expected[EP_RANKS_MAX] = {0};
  const uint32_t error = loom_peers_error(&s->peers, rank);
  char text[160];
  if (!s->form.masking) {
    if (peer_error_kind(error) == PEER_ERROR_TIMEOUT && peer_error_rank(error) == absent) return;
    snprintf(text, sizeof text, "rank %u: error word %#x, expected a timeout of rank %u", rank,
             error, absent);
    loom_report_wrong(text);
    return;
  }
  expected[absent] = 1;
  loom_read(s->rank[rank].mask, mask, s->ranks * 4);
  for (uint32_t r = 0; r < s->ranks; r++)
    if ((mask[r] != 0) != expected[r]) {
      snprintf(text, sizeof text, "rank %u: mask of rank %u is %#x", rank, r, mask[r]);
      loom_report_wrong(text);
    }
}

static void run(const struct loom_protocol *protocol, const struct loom_options *options) {
  const struct ep_protocol *p = protocol->context;
  const uint32_t ranks = options->ranks > protocol->ranks ? options->ranks : protocol->ranks;
  static struct ep_scene scene;
  if (ep_scene_make(&scene, &p->form, ranks) != 0) {
    loom_report_wrong("dispatch and combine take at most 8 ranks here");
    return;
  }
  const int absent = p->script == ABSENT || p->script == DIES ? (int)ranks - 1 : -1;
  const struct ep_scene_fault fault = {absent, p->script == DIES};
  for (uint32_t r = 0; r < ranks; r++) {
    if ((int)r == absent && p->script == DIES) ep_scene_dispatch(&scene, r, 0, EP_SEND, 0);
    if ((int)r == absent) continue;
    if (p->script == MIXED || p->script == REFUSES) {
      if (r + 1 < ranks)
        ep_scene_dispatch(&scene, r, 0, EP_SEND | EP_RECEIVE, 0);
      else
        play_other(&scene, r, p->script);
      continue;
    }
    if (p->script == FLIGHTS)
      play_flights(&scene, r);
    else if (absent >= 0 && !p->form.masking)
      play_failure(&scene, r);
    else
      play_rounds(&scene, r);
  }
  loom_run();
  if (loom_finding_count() > 0) return; /* some results may be bytes that nothing wrote */
  for (uint32_t r = 0; r < ranks; r++) {
    if ((int)r == absent) continue;
    if (p->script == MIXED || p->script == REFUSES) {
      check_disagreement(&scene, r, p->script);
      continue;
    }
    if (absent >= 0) check_absent(&scene, r, (uint32_t)absent);
    if (absent >= 0 && !p->form.masking) continue;
    if (loom_peers_error(&scene.peers, r) != 0) {
      char text[96];
      snprintf(text, sizeof text, "rank %u: error word %#x", r, loom_peers_error(&scene.peers, r));
      loom_report_wrong(text);
      return;
    }
    for (uint32_t set = 0; set < (p->script == FLIGHTS ? 2u : 1u); set++)
      ep_scene_check(&scene, r, set, fault, p->script == FLIGHTS);
  }
}

#define BF16 .hidden = 136, .topk_i64 = 1
#define FP8  .hidden = 1160, .fp8 = 1

/* form, name, verdict, fault injected, text, scene */
#define FORMS(X)                                                                                   \
  X(bf16, "ep-bf16", CLEAN, 0, "dispatch in bf16 and combine, twice on a handle",                  \
    {{BF16}, ROUNDS})                                                                              \
  X(fp8, "ep-fp8", CLEAN, 0,                                                                       \
    "dispatch as E4M3, packed rows, packed scales in columns, and combine",                        \
    {{FP8, .packed = 1, .scale_format = EP_SCALE_UE8M0, .columns = 1}, ROUNDS})                    \
  X(flights, "ep-flights", CLEAN, 0, "two dispatches and two combines in flight",                  \
    {{BF16, .packed = 1}, FLIGHTS})                                                                \
  X(masking, "ep-masking", CLEAN, 0, "dispatch and combine with masking, all ranks there",         \
    {{BF16, .masking = 1, .no_weights = 1}, ROUNDS})                                               \
  X(wide, "ep-wide", CLEAN, 0, "an unqualified fence before each bulk copy",                       \
    {{BF16, .fence = EP_FENCE_WIDE}, ROUNDS})                                                      \
  X(absent, "ep-absent", CLEAN, 1, "a rank does not come: the others name it", {{BF16}, ABSENT})   \
  X(masked, "ep-masked", CLEAN, 1, "a rank does not come: the others mask it and go on",           \
    {{BF16, .masking = 1}, ABSENT})                                                                \
  X(dies, "ep-dies", CLEAN, 1, "a rank dies after its counts: the others name it", {{BF16}, DIES}) \
  X(buried, "ep-buried", CLEAN, 1, "a rank dies after its counts: its rows are 0, it is masked",   \
    {{FP8, .masking = 1}, DIES})                                                                   \
  X(mixed, "ep-mixed", CLEAN, 1, "a rank combines while the others dispatch: all find out",        \
    {{BF16}, MIXED})                                                                               \
  X(refuses, "ep-refuses", CLEAN, 1, "a rank's host refuses its arguments: the others find out",   \
    {{BF16}, REFUSES})                                                                             \
  X(open, "ep-open", FLAGGED, 0, "dispatch and combine without fences",                            \
    {{BF16, .fence = EP_FENCE_OFF}, ROUNDS})

#define DEFINE(form, name_, verdict, fault_, text, ...)                                            \
  static const struct ep_protocol form##_scene = __VA_ARGS__;                                      \
  static const struct loom_protocol form = {.name = name_,                                         \
                                            .summary = text,                                       \
                                            .run = run,                                            \
                                            .context = &form##_scene,                              \
                                            .ranks = 2,                                            \
                                            .strict = LOOM_##verdict,                              \
                                            .lenient = LOOM_##verdict,                             \
                                            .kind = LOOM_PROXY_FENCE,                              \
                                            .fault = fault_};
FORMS(DEFINE)

void loom_ep_register(void) {
#define REGISTER(form, ...) loom_protocol_register(&form);
  FORMS(REGISTER)
}
