/* A team rank's part of forward where it has no rows of the vocabulary or the call has no tokens:
 * it shows its peers that it adds nothing, and merges what they have. */
#include "device/ce/sm90_forward_team.h"

WEFT_KERNEL(sm90_ce_forward_absent, FORWARD_ABSENT_THREADS, struct forward_args, args) {
  if (!has_peers(&args)) return; /* a launch that only loads the kernel */
  const uint32_t halves = halves_of(&args), parties = cta_count() * FORWARD_ABSENT_THREADS / 32;
  const struct row_state nothing = {MINUS_INFINITY, 0.0f, 0.0f};
  for (uint32_t half = cta_index() * FORWARD_ABSENT_THREADS / 32 + warp_index();
       half < halves || half == 0; half += parties) {
    for (uint32_t row = lane_index(); row < FORWARD_HALF_TOKENS; row += 32) {
      const uint32_t token = half * FORWARD_HALF_TOKENS + row;
      if (token < args.tokens) share_row(&args, token, nothing, 0.0f);
    }
    warp_sync();
    announce_rows(&args, half);
    merge_half(&args, half);
  }
  leave_exchange(&args, parties);
}
