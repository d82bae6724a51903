/* The executor's state: threads, CTAs, launches, memory regions, pending async operations, and the
 * one world that holds them. Every file of loom but clock and fiber may know it. */
#ifndef WEFT_LOOM_STATE_H
#define WEFT_LOOM_STATE_H

#include "clock.h"

#include "device/ptx/types.h"

#include <weft/loom.h>

/* What a thread knows: one clock a kind of knowledge. Its own entry in each is kept apart, in
 * `own`, so that clocks change only when threads meet. */
enum {
  K_OBSERVED,     /* happened before */
  K_ASYNC_GLOBAL, /* made visible to the async proxy, global memory */
  K_ASYNC_SHARED, /* the same, shared memory */
  K_ALIAS,        /* made visible through other addresses of the same memory */
  K_EXECUTED, /* known to have executed, beyond what is observed: by links that order no memory */
  K_OWNER,    /* accesses of a CTA's threads that the same CTA's fences cover, shared memory */
  K_INIT,     /* barrier initialisations published by fence.mbarrier_init */
  KNOWN
};

struct view {
  clk k[KNOWN];
};

struct known {
  struct view v;
  uint32_t own[KNOWN];
  uint32_t who;
};

/* Collects the views of many arrivals; own entries are set together when it is closed. */
struct gather_entry {
  uint32_t who, own[KNOWN];
};
struct gather {
  struct view v;
  uint32_t n, capacity;
  struct gather_entry *entry;
};

/* One access in a 16-byte granule. */
enum { REC_ASYNC = 1, REC_WRITE = 2, REC_STRONG = 4, REC_NC = 8 };
struct record {
  uint32_t who, time;
  uint16_t site, mask;
  uint8_t flags, scope, alias, pad;
  uint16_t cta, thread; /* of the issuer */
};

struct granule {
  uint32_t n, capacity;
  struct record *more; /* NULL while `few` suffices */
  struct record few[2];
};

#define GRANULE_BLOCK 64u

struct region {
  uint8_t *base;
  struct granule *shadow;
  uint16_t *written; /* one bit a byte of each granule */
  uint8_t *touched;  /* not 0: some granule of a block of GRANULE_BLOCK has records */
  size_t bytes, mapped;
  uint32_t gpu;
  struct cta *cta; /* shared memory; NULL for global */
  uint32_t alias;  /* 0: the first address of its memory */
  uint32_t first;  /* index of the region whose memory this is */
  uint64_t address;
};

struct cta;
struct thread;
struct launch;

struct bulk_group {
  uint32_t index, reads, writes; /* operations left */
};

#define WGMMA_ACCUMULATORS 8

/* Accumulators of a thread that wgmma uses. While a group is in flight the program's registers hold
 * poison; afterwards `value` is what was handed back, so that changes by the program are seen. */
struct accumulator {
  float *d;
  uint32_t count, group; /* group: the last one that uses it */
  int in_flight;
  struct loom_site *site; /* of that last one */
  float value[128];
};

enum thread_state { THREAD_NEW, THREAD_READY, THREAD_BLOCKED, THREAD_DONE };

struct thread {
  struct loom_self self;
  void *sp;
  uint64_t *stack_mark; /* lowest word of a stack without a guard page, else NULL */
  struct cta *cta;
  uint32_t index, warp, lane;
  enum thread_state state;
  struct known known;
  struct thread *next; /* in a list of waiters */
  struct loom_site *site;

  /* fence.acq_rel: what the last one publishes, and what relaxed loads saw, by distance */
  struct view fenced;
  int fenced_scope; /* -1: none */
  struct view pending[4];
  int pending_any;

  /* waiting for a word */
  uint64_t word, error_word, deadline;
  int timed_out;

  uint32_t exchange[2], exchange_turn;

  uint32_t channel_read, channel_write; /* bulk groups; 0: none yet */
  uint32_t committed, open;             /* groups committed; operations in the open group */
  int waits_bulk;
  struct loom_site *last_store; /* and the group it is in */
  uint32_t last_store_group;
  struct bulk_group *group;
  uint32_t groups, groups_capacity;

  uint32_t wait_phase;      /* phase a barrier wait began in */
  uint32_t cluster_arrived; /* cluster barrier phase arrived at, + 1; 0: none to wait for */

  struct accumulator *accumulator[WGMMA_ACCUMULATORS];
  uint32_t accumulators;
  int wgmma_fenced; /* since the last wgmma wait */
};

struct waited_on {
  uint32_t who, time;
};

struct mbarrier {
  uint32_t address, count, pending, phase; /* phase: number of completed ones */
  int64_t tx;
  int valid;
  struct loom_site *init_site;
  uint32_t init_who, init_time;
  struct gather gather;           /* arrivals of its own CTA, and async operations */
  struct gather cluster;          /* arrivals of other CTAs that release at cluster scope */
  struct view done, cluster_done; /* of the last completed phase */
  uint32_t channel_phase;         /* phase + 1 in which the channel was last gathered */
  clk arrivals;                   /* of the last completed phase, nothing else */
  struct thread *waiting;
  uint32_t channel;
  /* who passed a wait for the last completed phase */
  struct waited_on *passed;
  uint32_t passes, passes_capacity;
};

struct named_barrier {
  uint32_t arrived, expected;
  clk arrivals; /* of the round before */
  struct gather gather;
  struct thread *waiting;
  struct loom_site *site;
};

struct warp_meeting {
  uint32_t arrived, registers; /* registers: of each lane, as setmaxnreg last left them */
  struct loom_site *site;
  struct gather gather;
  struct thread *thread[32];
};

struct wgmma_op {
  uint32_t n;
  int dtype, scale_d, a_mn, b_mn;
  uint64_t desc_a, desc_b;
  struct loom_site *site;
  struct accumulator *d[128];
  struct known known[128];
  struct wgmma_op *next;
};

struct wgmma_group {
  struct wgmma_op *first, *last;
  struct wgmma_group *next;
};

struct warpgroup {
  uint32_t arrived;
  struct gather gather;
  struct loom_site *site;
  struct thread *thread[128];
  uint32_t channel, committed, executed;
  struct wgmma_op *building; /* some of the 128 threads have issued it */
  struct wgmma_op *open, *open_last;
  struct wgmma_group *first, *last; /* committed, not executed */
  struct thread *waiting;
};

struct cluster {
  uint32_t size, arrived, live;
  uint32_t phase;
  struct gather gather;
  struct view done;
  struct thread *waiting;
  struct cta **cta;
};

struct visit {
  uint32_t who, time, thread;
  const struct cta *from;
  struct loom_site *site;
};

struct cta {
  uint32_t id, gpu, index, rank; /* id: over the run; index: in the grid; rank: in the cluster */
  struct launch *launch;
  struct cluster *cluster;
  struct region *smem;
  uint32_t threads, live, warps;
  int started, exited;
  struct thread *thread;
  uint16_t *mbarrier_at; /* by address / 8: index + 1 */
  struct mbarrier **mbarrier;
  uint32_t mbarriers;
  struct named_barrier named[16];
  struct warp_meeting *meeting;
  struct warpgroup *warpgroup;
  uint32_t next_channel, elect_salt;
  uint32_t registers_free; /* given up by setmaxnreg and not taken */
  struct thread *register_waiters;
  struct gather cluster_gather; /* what passes between its own threads at a cluster barrier */
  struct view cluster_done;
  struct view leaving; /* what its exited threads knew */
  struct visit *visit; /* arrivals from other CTAs of the cluster */
  uint32_t visits, visits_capacity;
};

struct launch {
  struct loom_launch config;
  void *args;
  struct launch *after; /* the grid before in its stream */
  uint32_t first_cta, started, live;
  uint64_t start_order, end_order; /* 0: not yet */
  struct view end;                 /* joined exits of its threads */
  struct gather end_gather;
  uint32_t parts_per_cta; /* how much of an SM a CTA takes, of SM_PARTS */
  int in_stream;
};

#define SM_PARTS 3072

enum op_kind { OP_LOAD, OP_STORE, OP_WGMMA };

/* A box of 16-byte units between shared and global memory (bulk copies are one row). */
struct box {
  uint64_t global;             /* address of the first element, before the coordinates */
  uint32_t shared;             /* offset of the first unit */
  uint32_t units;              /* in all */
  uint32_t row_units;          /* units in the fastest dimension */
  uint32_t dims;               /* 0: linear */
  uint32_t element;            /* bytes */
  uint32_t extent[3];          /* of the box */
  int32_t at[3];               /* coordinates */
  uint64_t size[3], stride[3]; /* of the tensor; strides in bytes */
  uint32_t swizzle;            /* log2 of its span over 16, 0 none: 1, 2, 3 for 32, 64, 128 bytes */
};

/* An async operation between its issue and its end. */
struct op {
  enum op_kind kind;
  struct loom_site *site;
  struct known known; /* at issue */
  struct cta *issuer;
  struct thread *thread; /* of the issuer */
  struct box box;
  struct cta *shared_cta; /* whose shared memory the box is in */
  uint32_t done, turn;    /* units moved in this half; the unit it starts at */

  struct cta *source_cta; /* copies between shared memories: where from, else NULL */
  uint32_t source_shared;
  struct mbarrier *barrier; /* loads: what they complete on, in shared_cta */

  uint32_t group; /* stores: the bulk group */
  int reduce;     /* LOOM_REDUCE_ */
  int writing;    /* sources have been read */
  uint8_t *buffer;
  uint16_t *written; /* which bytes of the buffer were, a mask a unit */

  struct warpgroup *warpgroup; /* wgmma: the group to run is its first */
};

/* A release that loads of this word may find. */
struct word_entry {
  struct view v;
  struct cta *cta;
  int scope;
};
struct word {
  uint64_t location; /* region << 40 | offset, + 1; 0: free */
  uint32_t n, capacity;
  struct word_entry *entry;
};

struct world {
  int begun, running, stopped;
  struct loom_config config;
  uint64_t random;
  uint64_t time;  /* virtual, ns */
  uint32_t epoch; /* source of all times in clocks */
  uint64_t order; /* of launches' starts and ends */

  struct region *region;
  uint32_t regions, regions_capacity, global_regions;

  struct launch **launch;
  uint32_t launches;
  struct cta **cta;
  uint32_t ctas, leaves, first_channel_leaf;
  uint32_t *sm_parts; /* in use, a GPU */
  size_t stacks_used, stacks_total;

  struct thread **ready;
  uint32_t readies, ready_capacity, live;
  struct op **pending;
  uint32_t pendings, pending_capacity;
  struct thread *word_waiters;
  struct thread *current;
  struct cta *last_cta;
  void *scheduler;

  struct word *word;
  uint32_t words, word_capacity;

  struct loom_finding *finding;
  uint32_t findings, finding_capacity;
  struct loom_stats stats;
  void *trace;
};

extern struct world L;

/* site.c: counts, traces, maybe yields; true when the site is dropped. */
int enter(struct loom_site *site);

/* sched.c */
uint32_t random_next(void);
uint32_t random_below(uint32_t n);
void ready(struct thread *t);
void block(struct loom_site *site);
void yield_turn(void);
void wake_all(struct thread **list);
void pending_add(struct op *op);
/* Ends the run from inside a thread: the finding said why. It does not return; an address
 * sanitizer, which would walk what it takes for the only stack, is not told. */
#ifdef __SANITIZE_ADDRESS__
void stop_run(void);
#else
void stop_run(void) __attribute__((noreturn));
#endif
void schedule(void);
void thread_main(void);

/* launch.c */
void launches_reset(void);
void launches_prepare(void);
void launches_start(void);
void thread_exited(struct thread *t);
uint32_t channel_new(struct cta *cta);
int ctas_waiting_to_start(void);
int ctas_waiting_for_room(void);

/* barrier.c */
void cluster_check(struct cluster *cluster);

/* known.c */
void known_tick(struct known *known);
int known_seen(const struct known *known, int which, uint32_t who, uint32_t time);
/* Whether all those arrivals are observed, or at least known to have executed. */
int known_arrivals(const struct known *known, clk arrivals);
/* Clocks that may pass between CTAs at this distance. */
uint32_t pass_mask(int same_cta);
void known_acquire(struct known *known, const struct view *v, uint32_t mask);
struct view known_view(const struct thread *t);
void gather_add(struct gather *gather, const struct thread *t, uint32_t mask);
void gather_executed(struct gather *gather, const struct thread *t);
void known_acquire_executed(struct known *known, const struct view *v);
void gather_channel(struct gather *gather, uint32_t who, uint32_t time);
struct view gather_close(struct gather *gather);
/* The entries alone: who arrived, and when. */
clk gather_arrivals(const struct gather *gather);
void gather_free(struct gather *gather);
/* 0 same CTA, 1 same cluster, 2 same GPU, 3 other GPU: the narrowest scope that holds both. */
int distance(const struct cta *a, const struct cta *b);

#endif
