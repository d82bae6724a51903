/* The host side of the meeting kernel: a team, several launches a rank that nothing orders between
 * ranks, and the sums. */
#include "device/comm/meeting.h"

#include <stdio.h>
#include <weft/loom.h>

#include "peers.h"

enum { CTAS = 2, ROUNDS = 2, LAUNCHES = 2, PLACES = CTAS * MEETING_THREADS };
#define TIMEOUT_NS 1000000000ull

extern const struct loom_kernel smxx_meeting;

static void compare(uint64_t out, uint32_t rank, uint32_t ranks) {
  uint32_t got[ROUNDS][PLACES];
  loom_read(out, got, sizeof got);
  for (uint32_t round = 0; round < ROUNDS; round++)
    for (uint32_t place = 0; place < PLACES; place++) {
      uint32_t sum = 0;
      for (uint32_t from = 0; from < ranks; from++)
        sum += meeting_value(from, rank, (LAUNCHES - 1) * ROUNDS + round + 1, place);
      if (got[round][place] == sum) continue;
      char text[160];
      snprintf(text, sizeof text, "rank %u round %u place %u: %u, expected %u", rank, round, place,
               got[round][place], sum);
      loom_report_wrong(text);
      return;
    }
}

static void run(const struct loom_protocol *protocol, const struct loom_options *options) {
  const uint32_t ranks = options->ranks > protocol->ranks ? options->ranks : protocol->ranks;
  const size_t signals = (size_t)CTAS * 2 * ranks * 4, inbox = (size_t)ranks * PLACES * 4;
  struct loom_peers peers;
  uint64_t out[LOOM_PEERS_MAX];
  if (loom_peers_make(&peers, ranks, 1, signals + inbox, signals, TIMEOUT_NS) != 0) {
    loom_report_wrong("a meeting takes at most 64 ranks");
    return;
  }
  for (uint32_t r = 0; r < ranks; r++) {
    struct meeting_args args = {.view = peers.view[r], .signals = 0, .inbox = signals};
    args.rounds = ROUNDS;
    args.epoch.a = loom_alloc(r, 8);
    args.out.a = out[r] = loom_alloc(r, ROUNDS * PLACES * 4);
    loom_fill(args.epoch.a, 0, 8);
    const struct loom_launch launch = {protocol->context, &args, r, CTAS, 0, 0};
    for (int i = 0; i < LAUNCHES; i++)
      if (loom_launch(&launch) != 0) loom_report_wrong("the launch was refused");
  }
  loom_run();
  if (loom_finding_count() > 0) return; /* some results may be bytes that nothing wrote */
  for (uint32_t r = 0; r < ranks; r++)
    compare(out[r], r, ranks);
}

static const struct loom_protocol meeting = {
    .name = "team-meeting",
    .summary = "ranks that store into each other's arenas, with a "
               "barrier of the team before and after reading",
    .run = run,
    .context = &smxx_meeting,
    .ranks = 2};

void loom_meeting_register(void) {
  loom_protocol_register(&meeting);
}
