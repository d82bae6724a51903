/* The meeting kernel (meeting.h). */
#include "device/comm/meeting.h"
#include "device/comm/team.h"

WEFT_KERNEL(smxx_meeting, MEETING_THREADS, struct meeting_args, args) {
  const struct peer_view *const view = &args.view;
  const uint32_t ranks = view->ranks, place = cta_index() * MEETING_THREADS + thread_index();
  const uint32_t places = cta_count() * MEETING_THREADS, epoch = epoch_read(args.epoch);
  const uint64_t written = args.signals + (uint64_t)cta_index() * 2 * ranks * 4;
  const uint64_t read = written + (uint64_t)ranks * 4;
  for (uint32_t round = 0; round < args.rounds; round++) {
    const uint32_t value = epoch * args.rounds + round + 1;
    for (uint32_t to = 0; to < ranks; to++)
      st_global_u32(peer_at(view, to, args.inbox + ((uint64_t)view->rank * places + place) * 4),
                    meeting_value(view->rank, to, value, place));
    team_barrier(view, written, value, PEER_PHASE_ENTRY);
    uint32_t sum = 0;
    for (uint32_t from = 0; from < ranks; from++)
      sum += ld_global_u32(
          peer_at(view, view->rank, args.inbox + ((uint64_t)from * places + place) * 4));
    st_global_u32(gmem_add(args.out, ((uint64_t)round * places + place) * 4), sum);
    team_barrier(view, read, value, PEER_PHASE_EXIT);
  }
  if (thread_index() == 0) epoch_end(args.epoch, epoch, cta_count());
}
