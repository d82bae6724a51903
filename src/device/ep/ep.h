/* What host and device agree on for dispatch and combine: the words by which ranks meet, their
 * places in the symmetric arena, kernel arguments and shared memory. Knows no instructions.
 *
 * A plan has two slots, one for each operation in flight. A slot has its own epoch, words and
 * signals; every operation ends by an exchange of all with all, so that when it has ended on a
 * rank, the peers have read what this rank had written to them in the slot. */
#ifndef WEFT_DEVICE_EP_EP_H
#define WEFT_DEVICE_EP_EP_H

#include "device/comm/peers.h"
#include "device/ep/law.h"

/* An instance for loom may have fewer threads. */
#ifndef EP_THREADS
#define EP_THREADS 512 /* of dispatch */
#endif
#ifndef EP_COMBINE_READERS
#define EP_COMBINE_READERS 256
#endif
#define EP_STORE_LAG 3 /* stages of dispatch whose bulk stores may still be reading */
#ifndef EP_BATCH
#define EP_BATCH 2048 /* slots (token, k) whose places are found together */
#endif
#define EP_COMBINE_THREADS (32 + EP_COMBINE_READERS)

enum {
  EP_SLOTS = 2,
  EP_GATE_PATIENCE = 8,     /* time limits of a peer that a rank's own CTAs wait for each other */
  EP_MAX_EXPERTS = 4096,    /* of the team: counters in shared memory */
  EP_WARPS_MAX = 16,        /* of dispatch */
  EP_MAX_TOPK = 32,         /* a lane each */
  EP_STAGES_MAX = 12,       /* of a ring */
  EP_STAGE_BYTES = 16384,   /* of dispatch, at most */
  EP_COMBINE_BYTES = 32768, /* of a stage of combine, all K pieces, at most */
  EP_SHARED_BYTES = 227 * 1024
};

enum { EP_SEND = 1, EP_RECEIVE = 2 };                     /* halves */
enum { EP_DISPATCH = 1, EP_COMBINE = 2, EP_REFUSED = 3 }; /* kinds */
enum { EP_FENCE_ON = 0, EP_FENCE_OFF = 1, EP_FENCE_WIDE = 2 };

/* What a rank says of an operation in its hello, compared by all: kind in bits 28 and up, the
 * routing in use below (0: it is made here). */
HOST_DEVICE uint32_t ep_descriptor(uint32_t kind, uint32_t routing) {
  return kind << 28 | routing;
}
/* The number of the routing that the dispatch of an epoch makes: never 0, the same on all ranks. */
HOST_DEVICE uint32_t ep_routing(uint32_t epoch, uint32_t slot) {
  return (epoch * EP_SLOTS + slot) % 0xffffffeu + 1;
}

/* Offsets in the arena of a slot's words. Each is an array over the ranks of the team, element r
 * belonging to rank r, in the arena of the rank that reads it. */
struct ep_words {
  uint64_t hello;  /* u64: epoch + 1 above, descriptor below, set by r */
  uint64_t counts; /* u64 [ranks][L]: epoch + 1 above, r's rows for this rank's expert below */
  uint64_t grant;  /* u32: epoch + 1: r has said where this rank's rows begin (offer, first) */
  uint64_t permit; /* u32: own word for r, with masking: see sm90_ep_meet.h */
  uint64_t done;   /* u32: CTAs of r that have ended their part, of all epochs */
  uint64_t offer;  /* struct of 4 u64: r's addresses */
  uint64_t first;  /* i32 [ranks][L]: first row of this rank's tokens at each of r's experts */
  uint64_t end;
};

/* The offer: of a dispatch recv_x, recv_scales, recv_weights; of a combine y, row_gradient. */
enum { EP_OFFER_BYTES = 32 };

HOST_DEVICE struct ep_words ep_words_of(uint64_t base, uint32_t ranks, uint32_t experts_local) {
  struct ep_words w;
  const uint64_t pairs = (uint64_t)ranks * experts_local;
  w.hello = base;
  w.counts = w.hello + (uint64_t)ranks * 8;
  w.offer = (w.counts + pairs * 8 + 31) / 32 * 32;
  w.grant = w.offer + (uint64_t)ranks * EP_OFFER_BYTES;
  w.permit = w.grant + (uint64_t)ranks * 4;
  w.done = w.permit + (uint64_t)ranks * 4;
  w.first = w.done + (uint64_t)ranks * 4;
  w.end = (w.first + pairs * 4 + 255) / 256 * 256;
  return w;
}

/* The symmetric part of a plan: words of both slots, notices, and behind them the buffer. */
HOST_DEVICE uint64_t ep_notice_of(uint64_t base, uint32_t ranks, uint32_t experts_local) {
  return base + EP_SLOTS * ep_words_of(0, ranks, experts_local).end;
}
HOST_DEVICE uint64_t ep_words_bytes(uint32_t ranks, uint32_t experts_local) {
  return (ep_notice_of(0, ranks, experts_local) + (uint64_t)ranks * 4 + 255) / 256 * 256;
}

/* What both kernels know of the team and of the operation. */
struct ep_team {
  struct peer_view view;
  struct ep_words words; /* of the slot */
  uint64_t notice;       /* offset of u32 [ranks]: set by a rank that has masked this one */
  /* memory of this rank, zero when the plan is made: */
  struct gmem sent, received; /* two u32 each (device/comm/team.h): epochs of the slot's halves */
  struct gmem gate;           /* u32: epoch + 1: the peers' states are known */
  struct gmem state;          /* u32 [ranks]: 1: takes part in the operation */
  struct gmem mask;       /* u32 [ranks], shown to the host: why a rank is masked; 0: it is not */
  struct gmem wait_ns;    /* u64 [ranks] */
  struct gmem operations; /* u64: ended without an error */
  struct gmem routing;    /* u32 of the handle */
  uint32_t kind, halves, slot;
  uint32_t masking, fence;
  uint32_t experts_local, topk, tokens;
};

struct ep_dispatch_args {
  struct ep_team team;
  struct gmem x;       /* rows of bf16: the caller's, or those that a send half staged */
  uint64_t x_stride;   /* bytes */
  struct gmem topk;    /* the caller's indices */
  struct gmem weights; /* f32 [tokens][K] of x's owner; 0: all 1 */
  struct gmem staged, staged_weights; /* where a send half alone puts x and weights */
  struct gmem recv_x, recv_scales, recv_weights;
  struct gmem counts, offsets, source_counts; /* the caller's, each 0 or i64 */
  /* the handle: */
  struct gmem expert;       /* i32 [tokens][K], −1: none */
  struct gmem row;          /* i32 [tokens][K]: place among this rank's rows, then the row */
  struct gmem kept_counts;  /* i64 [L][ranks] */
  struct gmem kept_offsets; /* i64 [L + 1] */
  struct gmem expert_rows;  /* u64 [L] statistics */
  struct ep_scales scales;
  struct ep_pieces pieces;
  uint32_t reuse, topk_i64, experts, hidden, row_bytes; /* row_bytes: of x */
  uint32_t slab_rows, packed, alignment, rows_max;
  uint32_t stages;
};

struct ep_combine_args {
  struct ep_team team;
  struct gmem y, row_gradient; /* own, for the peers */
  struct gmem weights;         /* f32 [tokens][K]; 0: all 1 */
  struct gmem out;
  uint64_t out_stride; /* bytes */
  struct gmem weight_gradient;
  struct gmem expert, row; /* the handle */
  struct ep_pieces pieces;
  uint32_t row_bytes, stages;
};

/* Shared memory, offsets. The ring stands first. */
struct ep_dispatch_shared {
  uint32_t full, empty;  /* mbarriers [stages] */
  uint32_t offers;       /* u64 [3][ranks]: what the peers have offered */
  uint32_t before, rest; /* u32 [experts]: rows of tokens before the CTA's, and of the others */
  uint32_t ids, rows;    /* i32 [EP_BATCH]: expert and row of the CTA's first slots */
  uint32_t offsets;      /* u32 [experts + 1]: of own experts, used by CTA 0 */
  uint32_t sums;         /* u32 [EP_WARPS_MAX] */
  uint32_t part, in;     /* u32 [ranks] */
  uint32_t waited;       /* u32 [ranks]: ns */
  uint32_t alive;        /* u32 */
  uint32_t bytes;
};

HOST_DEVICE struct ep_dispatch_shared ep_dispatch_shared(uint32_t ranks, uint32_t experts,
                                                         uint32_t stages, uint32_t stage_bytes) {
  struct ep_dispatch_shared s;
  s.full = stages * stage_bytes;
  s.empty = s.full + stages * 8;
  s.offers = s.empty + stages * 8;
  s.before = s.offers + 3 * ranks * 8;
  s.rest = s.before + experts * 4;
  s.ids = s.rest + experts * 4;
  s.rows = s.ids + EP_BATCH * 4;
  s.offsets = s.rows + EP_BATCH * 4;
  s.sums = s.offsets + (experts / ranks + 1) * 4;
  s.part = s.sums + EP_WARPS_MAX * 4;
  s.in = s.part + ranks * 4;
  s.waited = s.in + ranks * 4;
  s.alive = s.waited + ranks * 4;
  s.bytes = s.alive + 16;
  return s;
}

struct ep_combine_shared {
  uint32_t stage_bytes;
  uint32_t full, empty; /* mbarriers [stages] */
  uint32_t offers;      /* u64 [2][ranks] */
  uint32_t weights;     /* f32 [stages][K] */
  uint32_t present;     /* u32 [stages]: rows of the stage */
  uint32_t part, in;    /* u32 [ranks] */
  uint32_t waited;      /* u32 [ranks]: ns */
  uint32_t alive;
  uint32_t bytes;
};

HOST_DEVICE struct ep_combine_shared ep_combine_shared(uint32_t ranks, uint32_t topk,
                                                       uint32_t stages, uint32_t piece_bytes) {
  struct ep_combine_shared s;
  s.stage_bytes = topk * piece_bytes;
  s.full = stages * s.stage_bytes;
  s.empty = s.full + stages * 8;
  s.offers = s.empty + stages * 8;
  s.weights = s.offers + 2 * ranks * 8;
  s.present = s.weights + stages * topk * 4;
  s.part = s.present + stages * 4;
  s.in = s.part + ranks * 4;
  s.waited = s.in + ranks * 4;
  s.alive = s.waited + ranks * 4;
  s.bytes = s.alive + 16;
  return s;
}

#endif
