/* What host and device of the combine study agree on. Every rank sends rows to every rank and sums
 * what it receives: out[token] = the sum over senders s of inbox[s][token]. A row is f32, one stage
 * of the receiver's ring. Knows no instructions. */
#ifndef WEFT_DEVICE_EP_STUDY_COMBINE_H
#define WEFT_DEVICE_EP_STUDY_COMBINE_H

#include "device/ptx/address.h"

enum {
  COMBINE_RANKS_MAX = 16,
  COMBINE_ROW_BYTES = 1024,                  /* 64 readers by 16 bytes */
  COMBINE_ROW_WORDS = COMBINE_ROW_BYTES / 4, /* f32 */
  COMBINE_STAGES = 3,
  COMBINE_READERS = 64,
  COMBINE_THREADS = 96, /* a warp that loads, two that read */
  COMBINE_CTAS = 2,     /* CTA 0 sends, CTA 1 receives */
  COMBINE_SHARED_BYTES = COMBINE_STAGES * (COMBINE_ROW_BYTES + 16)
};

struct combine_args {
  struct gmem source;                   /* own rows to send, [receiver][token] */
  struct gmem inbox[COMBINE_RANKS_MAX]; /* of each rank, [sender][token] */
  struct gmem flags[COMBINE_RANKS_MAX]; /* of each rank, a u32 for each sender, 0 at the start */
  struct gmem out;                      /* own, [token] */
  struct gmem error;                    /* own, u32 */
  uint64_t timeout_ns;
  uint32_t rank, ranks, tokens;
};

#endif
