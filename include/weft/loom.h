/* loom: runs weft's device code without a GPU, one fiber a GPU thread, under the PTX memory model,
 * and reports what the model does not allow. This header is for host programs that set a scene up:
 * allocate memory, launch kernels that gcc compiled, run them under a seed, read findings.
 *
 * One world at a time per process, one OS thread; run seeds in parallel with fork. Addresses and
 * interleavings depend on the configuration alone, so a seed reproduces a run bit for bit.
 *
 * Experimental: this interface may change between releases. */
#ifndef WEFT_LOOM_H
#define WEFT_LOOM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call site is, which says what dropping it means. */
enum loom_kind {
  LOOM_KIND_plain,   /* not droppable */
  LOOM_KIND_fence,   /* dropped: does nothing */
  LOOM_KIND_acquire, /* dropped: relaxed */
  LOOM_KIND_release, /* dropped: relaxed */
  LOOM_KIND_acq_rel, /* dropped: relaxed */
  LOOM_KIND_wait,    /* dropped: goes on at once, orders nothing */
  LOOM_KIND_barrier  /* dropped: no thread meets there */
};

/* A call of a wrapper in device code. One exists for each place in the source. */
struct loom_site {
  const char *file, *function, *op, *name; /* name: of fences, "" elsewhere */
  int line;
  int kind; /* enum loom_kind */
  int drop; /* set it to leave the operation out */
  int id;   /* index in loom_sites() */
  uint64_t hits;
};

/* What WEFT_KERNEL defines under gcc. */
struct loom_kernel {
  void (*entry)(const void *args);
  const char *name;
  uint32_t threads, cluster;
  size_t args_size;
};

/* How runnable threads and pending async operations are picked. */
enum loom_policy {
  LOOM_UNIFORM,     /* any of them, evenly */
  LOOM_CTA_BATCHED, /* stay in one CTA for a while */
  LOOM_ASYNC_FIRST, /* async operations as soon as they are issued */
  LOOM_ASYNC_LAST,  /* async operations only when no thread can run */
  LOOM_POLICIES
};

struct loom_config {
  size_t size; /* of this struct */
  uint64_t seed;
  enum loom_policy policy;
  uint32_t gpus;          /* ranks; each is one GPU */
  uint32_t gpus_per_host; /* 0: one host */
  uint32_t sms_per_gpu;   /* co-residency limit; 0: 132 */
  uint32_t preempt; /* a thread may lose its turn at one in `preempt` operations; 0: by the seed */
  int lenient;      /* a proxy fence anywhere on the causality path counts */
  int timeouts_expected;  /* a fault is injected: a wait that runs out is no finding */
  uint64_t max_steps;     /* switches before the run counts as livelocked; 0: a default */
  const char *trace_path; /* one line an operation, or NULL */
};

#define LOOM_CONFIG_INIT                                                                           \
  { sizeof(struct loom_config), 0, LOOM_UNIFORM, 1, 0, 0, 0, 0, 0, 0, NULL }

enum loom_finding_kind {
  LOOM_RACE,            /* conflicting accesses, not ordered */
  LOOM_PROXY_FENCE,     /* ordered, but no proxy fence on the way */
  LOOM_ALIAS_FENCE,     /* two addresses of one memory, no fence.proxy.alias */
  LOOM_NC_CONFLICT,     /* ld.global.nc of data that is written while the kernel runs */
  LOOM_UNWRITTEN,       /* read of memory that nothing wrote */
  LOOM_ILLEGAL,         /* outside every allocation, or not such memory */
  LOOM_MISALIGNED,      /* address or size */
  LOOM_BARRIER_MISUSE,  /* counts, re-initialisation, overflow, arrival beyond the count */
  LOOM_PARITY_ALIAS,    /* a waiter slept through two phases */
  LOOM_DIVERGENT,       /* a warp or warpgroup did not meet at one instruction */
  LOOM_REGISTER_HAZARD, /* accumulators touched while wgmma may use them */
  LOOM_NOT_CORESIDENT,  /* CTAs that wait for each other can't all run */
  LOOM_DEADLOCK,
  LOOM_LIVELOCK,
  LOOM_TIMEOUT,      /* a wait ran out and no fault was injected */
  LOOM_EXITED_CTA,   /* shared memory of a CTA that has exited */
  LOOM_WRONG_RESULT, /* reported by a protocol's own check */
  LOOM_FINDING_KINDS
};

struct loom_party {
  const struct loom_site *site; /* NULL: not an operation of device code */
  uint32_t rank, cta, thread;   /* thread: of the issuer */
  int async;                    /* proxy: 0 generic, 1 async */
  int write;
};

struct loom_finding {
  enum loom_finding_kind kind;
  struct loom_party now, before; /* before.site is NULL where there is only one */
  const char *fence;             /* the narrowest fence that would order them, or NULL */
  uint64_t address;              /* as device code sees it */
  uint64_t count;                /* times seen in this run; parties are those of the first */
  char text[512];                /* one line, the whole story */
};

struct loom_stats {
  uint64_t switches, accesses, granules, records_scanned, async_operations, steps;
  uint64_t joins, joins_memoised, joins_computed;
  size_t clock_bytes, shadow_bytes;
};

/* Begins a world; an earlier one ends. Returns 0, or -1 when the configuration can't be met. */
int loom_begin(const struct loom_config *config);
void loom_end(void);

/* Global memory of a GPU: an address that device code takes as struct gmem. Aligned to 1024 bytes;
 * its content counts as unwritten until loom_write, loom_fill or device code writes it. 0 on
 * failure. */
uint64_t loom_alloc(uint32_t gpu, size_t bytes);
/* A second address of the same memory, as a multicast mapping is. */
uint64_t loom_alias(uint64_t address);
/* From the host, before a run or after it; they take part in kernel start and end order. */
void loom_write(uint64_t address, const void *source, size_t bytes);
void loom_fill(uint64_t address, int byte, size_t bytes);
void loom_read(uint64_t address, void *destination, size_t bytes);

/* Element types and swizzles of tensor maps. */
enum loom_dtype { LOOM_BF16, LOOM_F16, LOOM_F32, LOOM_U8 };
enum loom_swizzle { LOOM_SWIZZLE_NONE, LOOM_SWIZZLE_32B, LOOM_SWIZZLE_64B, LOOM_SWIZZLE_128B };

/* Fills 128 bytes that device code takes as struct tensor_map. Dimensions, fastest first, and box
 * in elements; strides in bytes of dimensions 1 and up. Returns -1 where cuTensorMapEncodeTiled
 * would refuse (alignment, box size, swizzle width). */
int loom_tensor_map_encode(void *map, enum loom_dtype dtype, uint32_t rank, uint64_t address,
                           const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           enum loom_swizzle swizzle);

struct loom_launch {
  const struct loom_kernel *kernel;
  const void *args; /* copied */
  uint32_t gpu, ctas, smem_bytes;
  int cooperative; /* all CTAs must be resident together */
};

/* Puts a grid in the order of the GPU's default stream: it starts when earlier grids of that GPU
 * have ended, unless `concurrent` kernels are launched with loom_launch_concurrent. */
int loom_launch(const struct loom_launch *launch);
/* The same, in a stream of its own: free to run beside everything else. */
int loom_launch_concurrent(const struct loom_launch *launch);

/* Runs all that was launched, to the end or until nothing can move. Returns the number of findings
 * (kinds × pairs of sites) so far. */
int loom_run(void);

int loom_finding_count(void);
const struct loom_finding *loom_finding_at(int i);
const char *loom_finding_kind_name(enum loom_finding_kind kind);
/* For a protocol's own check of results. */
void loom_report_wrong(const char *text);

const struct loom_stats *loom_statistics(void);

/* Every call site of the device code in this program. */
struct loom_site *const *loom_sites(int *count);
/* Marks the sites called `label` as dropped: a fence's name, or file:line with the file's last
 * part. Returns how many there are. loom_drop(NULL) restores all. */
int loom_drop(const char *label);
/* "name" or "file:line". */
void loom_site_label(const struct loom_site *site, char *out, size_t size);

/* A protocol that `weft check` can run. */
struct loom_options {
  uint32_t ranks, hosts; /* 0: the protocol's own choice */
};

/* What a protocol's seeds must show. */
enum loom_expectation { LOOM_CLEAN, LOOM_FLAGGED, LOOM_FLAGGED_ONCE /* in some seed at least */ };

struct loom_protocol {
  const char *name, *summary;
  /* Sets a scene up in a world that has begun, runs it and checks its results (loom_report_wrong).
   */
  void (*run)(const struct loom_protocol *protocol, const struct loom_options *options);
  const void *context; /* the protocol's own */
  uint32_t ranks;      /* GPUs of its world by default; 0 counts as 1 */
  uint32_t sms;        /* of each GPU; 0: loom's default */
  int looks_once;      /* branches on a word that is looked at once: seeds differ */
  enum loom_expectation strict, lenient;
  enum loom_finding_kind kind; /* that a form which is not clean must show */
  int fault;                   /* it injects a fault: a wait that runs out is no finding */
};

/* The list that `weft check` knows; the struct must live on. */
void loom_protocol_register(const struct loom_protocol *protocol);
int loom_protocol_count(void);
const struct loom_protocol *loom_protocol_at(int i);
/* One seed of a protocol: begins a world, runs, leaves its findings to be read. Returns their
 * number, -1 when the world could not begin. config's gpus and sms are the protocol's unless the
 * options say. */
int loom_protocol_run(const struct loom_protocol *protocol, const struct loom_options *options,
                      const struct loom_config *config);
/* What the library brings: the litmus programs of docs/loom.md, the Hopper GEMM in toy sizes, the
 * combine forms of docs/fences.md, the loss head's shipped kernels on small problems, the meeting
 * of a team, and dispatch and combine. Each call adds its protocols to the list. */
void loom_litmus_register(void);
void loom_gemm_register(void);
void loom_combine_register(void);
void loom_ce_register(void);
void loom_meeting_register(void);
void loom_ep_register(void);

#ifdef __cplusplus
}
#endif

#endif
