/* weft: the loss head and the expert exchange of a large language model, over a team of ranks.
 *
 * This header is the whole public API. It is C99, compiles as C++ too, and includes nothing of
 * CUDA: a stream is a void pointer, and NULL on CPUs.
 *
 * Conventions, valid for every function unless its own text says otherwise:
 *  - It returns a weft_status. On anything but WEFT_OK, weft_last_error() names the argument, its
 *    value and what was expected. Nothing prints, aborts or exits.
 *  - Counts are int64_t, strides are in elements, sizes in bytes. Matrices are row-major.
 *  - Config and argument structs start with `size`, grow only at the end, and are initialised by
 * the macro of their name (WEFT_..._INIT). They are read during the call and not kept.
 *  - Arrays belong to the caller. Handles belong to the caller until their destroy function.
 *  - Functions may be called from any thread; one handle is used by one thread at a time.
 *  - "Collective over T" means that every rank of team T makes the call, in the same order.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_NUMBER                                                                        \
  (WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH)

/* ---- Status, errors, logging, memory ------------------------------------------------------- */

typedef enum weft_status {
  WEFT_OK = 0,
  WEFT_ERR_ARGUMENT = 1,    /* an argument of this rank is wrong */
  WEFT_ERR_UNSUPPORTED = 2, /* right in itself, but not offered here (device, build, version) */
  WEFT_ERR_MEMORY = 3,      /* the allocator or the symmetric arena has no more */
  WEFT_ERR_WORKSPACE = 4,   /* budget or given workspace too small; the message names the least */
  WEFT_ERR_MISMATCH = 5,    /* the ranks of a team disagree; every rank gets this status */
  WEFT_ERR_TARGET = 6,      /* a target is outside the vocabulary and is not ignore_index */
  WEFT_ERR_TIMEOUT = 7,     /* a rank did not come in time */
  WEFT_ERR_ABORTED = 8,     /* weft_comm_abort() was called on some rank of the world */
  WEFT_ERR_PEER = 9,        /* another rank refused the call; its own status says why */
  WEFT_ERR_BUSY = 10,       /* the handle is already in use by a call */
  WEFT_ERR_SYSTEM = 11      /* the operating system, a driver or a foreign library failed */
} weft_status;

/** The version of the library that runs, as WEFT_VERSION_NUMBER is built. Compare it with the
 * header's to find a mismatch. Never fails. */
WEFT_API int weft_version(void);

/** A short name for a status, such as "mismatch". Never NULL, static storage. */
WEFT_API const char *weft_status_string(weft_status status);

/** The last message of the calling thread: argument, value, expectation. Empty if there was none.
 * Valid until the thread's next call of a weft function; successful calls leave it as it is. */
WEFT_API const char *weft_last_error(void);

typedef enum weft_log_level {
  WEFT_LOG_ERROR = 1,
  WEFT_LOG_WARNING = 2,
  WEFT_LOG_INFO = 3,
  WEFT_LOG_DEBUG = 4
} weft_log_level;

typedef void (*weft_log_fn)(void *user, weft_log_level level, const char *message);

/** Sends the library's log lines up to `level` to `fn`; NULL (the default) makes it silent. Global.
 * `fn` may be called from any thread and must not call weft. */
WEFT_API weft_status weft_log_set(weft_log_fn fn, void *user, weft_log_level level);

typedef void *(*weft_alloc_fn)(void *user, size_t alignment, size_t bytes);
typedef void (*weft_free_fn)(void *user, void *pointer);

/** Replaces the allocator of host memory; NULL, NULL restores the C library's. Global; call it
 * while no weft handle exists (else WEFT_ERR_BUSY). `alloc` returns memory aligned to `alignment`
 * (a power of two, at most 4096) or NULL, which the library reports as WEFT_ERR_MEMORY. */
WEFT_API weft_status weft_allocator_set(weft_alloc_fn alloc, weft_free_fn free, void *user);

/* ---- What is here --------------------------------------------------------------------------- */

typedef enum weft_device {
  WEFT_DEVICE_AUTO = 0,
  WEFT_DEVICE_CPU = 1,
  WEFT_DEVICE_CUDA = 2
} weft_device;

typedef struct weft_system_info {
  size_t size;
  int64_t cores;    /* cores this process may run on */
  const char *isa;  /* instruction set the CPU backend chose: "avx512", "avx2", "baseline" */
  const char *blas; /* the CBLAS library in use, its version and kernel, or why there is none */
  int32_t cpu_available;   /* 1 when the CPU backend can run here */
  int32_t cuda_available;  /* 1 when the GPU backend can run here */
  const char *cuda_reason; /* what was found, or why the GPU backend is off */
  int32_t mpi_available;
  int32_t nvshmem_available;
  const char *mpi_reason;
  const char *nvshmem_reason;
} weft_system_info;

#define WEFT_SYSTEM_INFO_INIT                                                                      \
  { sizeof(weft_system_info), 0, NULL, NULL, 0, 0, NULL, 0, 0, NULL, NULL }

/** Fills `info` with what this library found on this machine. Strings have static storage. May open
 * the BLAS library. Thread-safe. */
WEFT_API weft_status weft_system_info_get(weft_system_info *info);

/* ---- Memory of a GPU ------------------------------------------------------------------------ */

/* For callers that have no CUDA of their own: programs that use this library alone. What cudaMalloc
 * and its like give serves every call as well. `gpu` is a device's ordinal, or −1 for that of the
 * thread's current CUDA context, the first device where there is none. All answer UNSUPPORTED where
 * there is no GPU, and leave the thread's current context as it was. */

/** Allocates memory of a GPU, aligned to 256 bytes, not initialised. Not while a stream of the
 * device is being captured. Errors: ARGUMENT, UNSUPPORTED, MEMORY. */
WEFT_API weft_status weft_memory_alloc(int32_t gpu, int64_t bytes, void **memory);

/** Gives memory back; work that uses it must have ended. NULL is allowed. */
WEFT_API weft_status weft_memory_free(int32_t gpu, void *memory);

/** Copies between host and GPU, either way, or within one of them: in order with the work of
 * `stream` (a CUstream or cudaStream_t; NULL: the default one). The host's memory may be used
 * again when the stream has come so far (weft_memory_synchronize). */
WEFT_API weft_status weft_memory_copy(int32_t gpu, void *to, const void *from, int64_t bytes,
                                      void *stream);

/** Waits until the work of a stream has ended. What kernels of it failed with comes back here too.
 * Errors: UNSUPPORTED, SYSTEM. */
WEFT_API weft_status weft_memory_synchronize(int32_t gpu, void *stream);

/* ---- Teams ---------------------------------------------------------------------------------- */

/* The most ranks of any world, and of one whose ranks all live in one process. */
#define WEFT_RANKS_MAX        65536
#define WEFT_INPROC_RANKS_MAX 512

/* One rank's view of a team. */
typedef struct weft_comm weft_comm;

typedef struct weft_world_config {
  size_t size;
  int64_t ranks; /* 1 to WEFT_RANKS_MAX; in one process to WEFT_INPROC_RANKS_MAX */
  int64_t hosts; /* hosts that the ranks stand for, in blocks of ranks / hosts; divides ranks */
  int64_t arena_bytes; /* symmetric memory of each rank; 0: taken as plans need it */
  int64_t timeout_ms;  /* how long a rank waits for a peer; 0: WEFT_TIMEOUT_MS, else ten minutes */
  int32_t device;      /* weft_device; AUTO: the GPU where there is a usable one, else the CPU */
  int32_t reserved;    /* 0 */
  const int32_t *gpus; /* [ranks] GPU of each in-process rank, or NULL: rank modulo GPU count */
} weft_world_config;

#define WEFT_WORLD_CONFIG_INIT                                                                     \
  { sizeof(weft_world_config), 1, 1, 0, 0, WEFT_DEVICE_AUTO, 0, NULL }

/** Makes a world whose ranks live in this process: threads on CPUs, streams on GPUs. All ranks are
 * made at once: `comms` receives config->ranks handles, each to be destroyed. Not collective.
 *
 * Kernels of several GPU ranks wait for each other. So ranks of one GPU share out its SMs, and
 * calls of different ranks must go to different streams, none of which waits for another rank's
 * work: not to the default stream. All ranks issue a team's calls in one order. More than 8 ranks
 * on a GPU need CUDA_DEVICE_MAX_CONNECTIONS in the environment before the process's first use of
 * CUDA. GPUs of several ranks need peer access. While kernels of a team run, a call that waits for
 * their GPU (making or destroying a plan, cudaMalloc, cudaFree) may wait for ever for a rank that
 * the same thread is to issue next.
 * Errors: ARGUMENT, MEMORY, UNSUPPORTED (no such device, or ranks that can't run at once). */
WEFT_API weft_status weft_comm_create_inproc(const weft_world_config *config, weft_comm **comms);

/* The caller's own exchange between processes. Both functions are collective over the world, block,
 * and return 0 for success. allgather: `recv` gets ranks × bytes, in rank order. */
typedef struct weft_exchange {
  size_t size;
  int64_t rank;
  void *user;
  int (*allgather)(void *user, const void *send, void *recv, size_t bytes);
  int (*barrier)(void *user);
} weft_exchange;

#define WEFT_EXCHANGE_INIT                                                                         \
  { sizeof(weft_exchange), 0, NULL, NULL, NULL }

/** Makes this process's rank of a world on top of the caller's exchange. Collective over the world.
 * Errors: ARGUMENT, UNSUPPORTED. */
WEFT_API weft_status weft_comm_create_external(const weft_world_config *config,
                                               const weft_exchange *exchange, weft_comm **comm);

/** Makes this process's rank of a world over an MPI communicator: `mpi_comm` points to an MPI_Comm,
 * or is NULL for all processes, and config->ranks is its size, or 0. The transport is a shared
 * object of its own, opened at run time; where nobody has initialised MPI, it does so, and
 * finalizes it at exit. Collective over the communicator. Calls on the team reach MPI from the
 * calling thread: below MPI_THREAD_SERIALIZED that must be MPI's own. After a TIMEOUT, a process
 * should end with a status that is not 0, so that the launcher ends the others. Errors: ARGUMENT,
 * UNSUPPORTED (no MPI), MISMATCH, PEER, TIMEOUT, SYSTEM. */
WEFT_API weft_status weft_comm_create_mpi(const weft_world_config *config, const void *mpi_comm,
                                          weft_comm **comm);

typedef struct weft_unique_id {
  unsigned char bytes[256];
} weft_unique_id;

/** Makes an id that the caller carries to the other ranks of an NVSHMEM world. */
WEFT_API weft_status weft_unique_id_create(weft_unique_id *id);

/** Makes this process's rank of an NVSHMEM world. Collective over the world. NVSHMEM is opened at
 * run time. Errors: ARGUMENT, UNSUPPORTED. */
WEFT_API weft_status weft_comm_create_nvshmem(const weft_world_config *config,
                                              const weft_unique_id *id, int64_t rank,
                                              weft_comm **comm);

/** Makes a team of the parent's ranks start, start + stride, …, `ranks` of them. Collective over
 * the new team only: ranks outside do not call, and teams may be made at different times. `stride`
 * ≥ 1. The k-th creation of a member list by one rank matches the k-th by the others. */
WEFT_API weft_status weft_comm_split_stride(weft_comm *parent, int64_t start, int64_t stride,
                                            int64_t ranks, weft_comm **team);

/** The same from a list of parent ranks, without repetition, in the order of the new team's ranks.
 */
WEFT_API weft_status weft_comm_split_list(weft_comm *parent, const int64_t *members, int64_t ranks,
                                          weft_comm **team);

typedef struct weft_comm_info {
  size_t size;
  int64_t rank, ranks;             /* in this team */
  int64_t world_rank, world_ranks; /* in its world */
  int64_t host, hosts;             /* hosts are numbered by their first appearance in the team */
  int64_t local_rank, local_ranks; /* among this team's ranks on this rank's host */
  int64_t ranks_per_host;          /* 0 where hosts hold different numbers of this team's ranks */
  int64_t timeout_ms;
  int32_t device;        /* WEFT_DEVICE_CPU or WEFT_DEVICE_CUDA */
  int32_t gpu;           /* ordinal, −1 on CPUs */
  const char *transport; /* "inproc", "external", "mpi", "nvshmem" */
} weft_comm_info;

#define WEFT_COMM_INFO_INIT                                                                        \
  { sizeof(weft_comm_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL }

/** Tells a team's shape and this rank's place in it. Not collective. */
WEFT_API weft_status weft_comm_info_get(const weft_comm *comm, weft_comm_info *info);

/** Waits until every rank of the team is here. Collective over the team, blocks the host.
 * Errors: TIMEOUT (names the ranks that did not come), ABORTED. */
WEFT_API weft_status weft_comm_barrier(weft_comm *comm);

/** Brings `bytes` of host memory of every rank to every rank: `recv` gets ranks × bytes, in rank
 * order. For the small change of a job (sizes, ids, verdicts). Collective over the team, blocks the
 * host; `bytes` is the same everywhere (else MISMATCH). Errors: ARGUMENT, MISMATCH, TIMEOUT (names
 * the ranks that did not come), ABORTED, PEER. */
WEFT_API weft_status weft_comm_allgather(weft_comm *comm, const void *send, void *recv,
                                         size_t bytes);

typedef struct weft_async_error {
  size_t size;
  int32_t status; /* weft_status; WEFT_OK when nothing has gone wrong */
  int32_t reserved;
  int64_t rank;      /* team rank that found it */
  int64_t peer;      /* rank waited for, −1 when none */
  int64_t count;     /* how many of this kind */
  char message[232]; /* phase and detail, zero-terminated */
} weft_async_error;

#define WEFT_ASYNC_ERROR_INIT                                                                      \
  {                                                                                                \
    sizeof(weft_async_error), 0, 0, 0, -1, 0, {                                                    \
      0                                                                                            \
    }                                                                                              \
  }

/** What went wrong on the team while calls ran (timeouts, bad targets), without synchronising with
 * a device. Not collective. The state is sticky until weft_comm_reset(). */
WEFT_API weft_status weft_comm_async_error(weft_comm *comm, weft_async_error *error);

/** Ends every wait of every rank of the team with WEFT_ERR_ABORTED, now and until a reset. Not
 * collective; may be called from any thread, while another thread uses the same handle. */
WEFT_API weft_status weft_comm_abort(weft_comm *comm);

/** Clears timeouts, aborts and async errors of a team. Collective over the team, once no call of it
 * runs any more. Errors: TIMEOUT (not all ranks came; the team stays as it was). */
WEFT_API weft_status weft_comm_reset(weft_comm *comm);

/** Releases one rank's view. Not collective. Plans of the team must be gone (else WEFT_ERR_BUSY,
 * and the handle stays). NULL is allowed. */
WEFT_API weft_status weft_comm_destroy(weft_comm *comm);

/** The stream of a rank's own that NULL stands for in calls of plans, in a world of several GPU
 * ranks; NULL in any other. It is not ordered with the default stream. Not collective. */
WEFT_API weft_status weft_comm_stream_get(const weft_comm *comm, void **stream);

/** Between start and end, one thread issues the collective calls of several in-process GPU ranks:
 * those that meet on the host (splits, plans, barrier, reset) happen at the end, each rank's in the
 * order in which they were issued, and what they give is there when end has returned; ce's forward,
 * backward and step only enqueue and happen at once, so they need no group. The status of end is
 * that of the rank that failed first in cause. Groups may be nested. CPU ranks are threads and need
 * none: UNSUPPORTED. */
WEFT_API weft_status weft_group_start(void);
WEFT_API weft_status weft_group_end(void);

/* ---- ce: linear cross entropy --------------------------------------------------------------- */

/* z = c(X·Wᵀ) / T, where c is the identity or cap·tanh(·/cap). Per token:
 *   lse = log Σ exp z,  nll = lse − z[target],  entropy = −Σ p log p,  p = exp(z − lse)
 *   dZ = (g_nll·(p − onehot) − g_entropy·p·(log p + entropy) + g_lse·p) / T · c'(X·Wᵀ)
 *   dX = dZ·W summed over the team,  dW = dZᵀ·X
 */

typedef enum weft_dtype {
  WEFT_DTYPE_DEFAULT = 0,
  WEFT_F32 = 1,
  WEFT_BF16 = 2,
  WEFT_F16 = 3,
  WEFT_I32 = 4,
  WEFT_I64 = 5,
  WEFT_E4M3 = 6 /* 8 bits: sign, 4 of exponent (bias 7), 3 of fraction; no infinity, most 448 */
} weft_dtype;

typedef enum weft_dx_mode {
  WEFT_DX_ALL_REDUCE = 0,     /* every rank gets the whole dX, bit-equal on all */
  WEFT_DX_REDUCE_SCATTER = 1, /* rank r gets token rows [r·s, r·s + s), s = ⌈tokens / ranks⌉ */
  WEFT_DX_NONE = 2            /* every rank gets its own shard's part of the sum */
} weft_dx_mode;

enum {                      /* weft_ce_config.wants */
       WEFT_CE_ENTROPY = 1, /* forward or step writes the entropy, or it carries a gradient */
       WEFT_CE_DX = 2,      /* backward or step writes dX */
       WEFT_CE_DW = 4,      /* backward or step writes dW */
       WEFT_CE_STEP = 8     /* weft_ce_step will be called: loss and gradients in one call */
};

typedef struct weft_ce_config {
  size_t size;
  int64_t max_tokens;       /* largest number of tokens of any call, ≥ 0 */
  int64_t hidden;           /* H ≥ 1 */
  int64_t vocab;            /* V ≥ 1, of the whole team; rows of W from V on are padding */
  int64_t vocab_start;      /* first global row of this rank's W */
  int64_t vocab_local;      /* rows of this rank's W, ≥ 0; the ranks' ranges follow each other
                               from 0 in rank order, without gap or overlap, and cover V */
  int64_t ignore_index;     /* target value of a row that does not count */
  int64_t workspace_budget; /* bytes that local + symmetric workspace may take; 0: the default */
  void *workspace;          /* the local part from the caller (64-byte aligned), or NULL: owned */
  int64_t workspace_bytes;  /* size of `workspace` */
  float softcap;            /* cap > 0, its reciprocal finite; or 0: none */
  int32_t wants;            /* WEFT_CE_ENTROPY | WEFT_CE_DX | WEFT_CE_DW | WEFT_CE_STEP */
  int32_t dtype;            /* of X and W: WEFT_F32, WEFT_BF16, WEFT_F16 */
  int32_t w_dtype;          /* DEFAULT: as dtype; any other is unsupported now */
  int32_t target_dtype;     /* WEFT_I64 or WEFT_I32 */
  int32_t dx_dtype;         /* DEFAULT: as dtype; or WEFT_F32 */
  int32_t dw_dtype;         /* DEFAULT: as dtype; or WEFT_F32 */
  int32_t dx_mode;          /* weft_dx_mode */
  int32_t deterministic;    /* 1: the same bits each time; 0: the backend may reorder sums */
  int32_t max_sms;          /* GPU: SMs this plan may take, 0: all */
  int32_t threads;   /* CPU: threads of this rank, at most 1024; 0: WEFT_NUM_THREADS, else cores /
                        ranks */
  int32_t x_sharded; /* reserved, 0 */
  int32_t bias;      /* reserved, 0 */
  int32_t device;    /* weft_device; AUTO: the team's, or the CPU without a team */
} weft_ce_config;

#define WEFT_CE_CONFIG_INIT                                                                        \
  {                                                                                                \
    sizeof(weft_ce_config), 0, 0, 0, 0, 0, -100, 0, NULL, 0, 0.0f, 0, WEFT_F32,                    \
        WEFT_DTYPE_DEFAULT, WEFT_I64, WEFT_DTYPE_DEFAULT, WEFT_DTYPE_DEFAULT, WEFT_DX_ALL_REDUCE,  \
        1, 0, 0, 0, 0, WEFT_DEVICE_AUTO                                                            \
  }

typedef struct weft_ce_plan weft_ce_plan;

/** Makes a plan. Collective over `comm`, whose ranks' configs are compared: a mismatch is
 * WEFT_ERR_MISMATCH on every rank. `comm` may be NULL: one rank without a team, on the device
 * that the config names. The plan holds its workspace until it is destroyed and must not outlive
 * the team. A plan on a GPU without a team is on the device of the thread's current CUDA context,
 * or the first one where there is none; every call may come with any context current, and leaves it
 * so. A plan can't be made while a stream of the device is being captured. Errors: ARGUMENT,
 * UNSUPPORTED, MEMORY, WORKSPACE, MISMATCH, PEER, TIMEOUT, ABORTED. */
WEFT_API weft_status weft_ce_plan_create(weft_comm *comm, const weft_ce_config *config,
                                         weft_ce_plan **plan);

/* The machine a plan is asked for when none is at hand. */
typedef struct weft_ce_machine {
  size_t size;
  const char *arch; /* "cpu", "sm90", "sm100" */
  int64_t units;    /* CPU: threads of this rank; GPU: SMs; 0: those of this machine */
  int64_t ranks;
  int64_t hosts;
} weft_ce_machine;

#define WEFT_CE_MACHINE_INIT                                                                       \
  { sizeof(weft_ce_machine), "cpu", 0, 1, 1 }

typedef struct weft_ce_plan_info {
  size_t size;
  int64_t local_bytes;     /* workspace that the caller may supply */
  int64_t symmetric_bytes; /* workspace that peers read, from the team's arena */
  int64_t least_bytes;     /* smallest workspace_budget that a plan of this config accepts */
  int64_t token_chunk;     /* tokens that step keeps logits of at once; 0: step recomputes */
  int64_t waves;           /* passes over this rank's vocabulary in backward */
  int64_t wave_rows;       /* vocabulary rows of one wave */
  int64_t step_gemms;      /* 3: logits are kept; 4: they are recomputed */
  int64_t units;           /* threads or SMs in use */
  double forward_ms, backward_ms, step_ms; /* operations over a nominal rate; 0: not predicted */
  char text[256];                          /* the plan in a sentence */
} weft_ce_plan_info;

#define WEFT_CE_PLAN_INFO_INIT                                                                     \
  {                                                                                                \
    sizeof(weft_ce_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, {                            \
      0                                                                                            \
    }                                                                                              \
  }

/** Plans without making anything: exact workspace, waves, predicted times. Needs no device. Not
 * collective. Errors: as weft_ce_plan_create() for what one rank can see. */
WEFT_API weft_status weft_ce_plan_query(const weft_ce_config *config,
                                        const weft_ce_machine *machine, weft_ce_plan_info *info);

/** The same for a plan that exists. */
WEFT_API weft_status weft_ce_plan_info_get(const weft_ce_plan *plan, weft_ce_plan_info *info);

/** What went wrong while calls of the plan ran on a GPU (bad targets, timeouts), without
 * synchronising with the device: seen once the kernel that found it has ended. With a team, the
 * team's state, as weft_comm_async_error(); without one, the plan's own, which lasts as long as the
 * plan and counts up. On CPUs a plan without a team has nothing to tell, since its calls return
 * their errors. Not collective. */
WEFT_API weft_status weft_ce_plan_async_error(weft_ce_plan *plan, weft_async_error *error);

/** Releases a plan. Not collective; its last call must have ended on every rank (a later call of
 * weft_comm_barrier() shows that). NULL is allowed. */
WEFT_API weft_status weft_ce_plan_destroy(weft_ce_plan *plan);

/* Arguments of one call; each function below says which it reads. A stride of 0 means contiguous
 * rows. M = tokens, H, V_local from the config. Outputs must not overlap inputs or each
 * other, and nothing the workspace. */
typedef struct weft_ce_args {
  size_t size;
  int64_t tokens;               /* M ≤ max_tokens, the same on all ranks */
  const void *x;                /* [M, H], the same values on all ranks */
  int64_t x_stride;             /* ≥ H */
  const void *w;                /* [V_local, H] */
  int64_t w_stride;             /* ≥ H */
  const void *target;           /* [M] global vocabulary ids, the same on all ranks */
  float temperature;            /* T > 0, its reciprocal finite */
  int32_t dw_accumulate;        /* 1: add to what dw holds; 0: overwrite */
  const float *temperature_ptr; /* if not NULL, T is read from here (GPU: device memory) */
  const float *g_nll;           /* [M] upstream gradients; NULL counts as 0 */
  const float *g_entropy;       /* [M] */
  const float *g_lse;           /* [M] */
  float *stats; /* [M, 4]: m, Σe^(z−m), z[target], Σe^(z−m)·(z−m), over the team; the last may be
                   0 where the plan does not want entropy */
  float *nll;        /* [M] */
  float *lse;        /* [M] */
  float *entropy;    /* [M] */
  void *dx;          /* [M, H], or [s, H] of a reduce-scatter */
  int64_t dx_stride; /* ≥ H */
  void *dw;          /* [V_local, H] */
  int64_t dw_stride; /* ≥ H */
} weft_ce_args;

#define WEFT_CE_ARGS_INIT                                                                          \
  {                                                                                                \
    sizeof(weft_ce_args), 0, NULL, 0, NULL, 0, NULL, 1.0f, 0, NULL, NULL, NULL, NULL, NULL, NULL,  \
        NULL, NULL, NULL, 0, NULL, 0                                                               \
  }

/** Loss. Reads x, w, target, temperature; writes those of nll, lse, entropy, stats that are not
 * NULL, the same bits on all ranks. The bits of a row depend on that row, W and the plan alone.
 * Collective over the plan's team. A row whose target is ignore_index gets nll = entropy = 0 and
 * its true lse. A target outside [0, V): nll is NaN, and the status TARGET comes back on every rank
 * after everything was computed (GPU: by weft_comm_async_error()). CPU: `stream` is NULL, results
 * are there on return. GPU: asynchronous on `stream`, capturable; in a world of several GPU ranks
 * NULL is the rank's own (weft_comm_stream_get). There the ranks do not meet on the host: ranks
 * whose tokens differ get MISMATCH by weft_comm_async_error(), and where a rank's arguments are
 * refused the others' kernels wait for it until the timeout, or weft_comm_abort(). Errors:
 * ARGUMENT, MISMATCH, PEER, TARGET, TIMEOUT, ABORTED, BUSY. */
WEFT_API weft_status weft_ce_forward(weft_ce_plan *plan, const weft_ce_args *args, void *stream);

/** Gradients. Reads x, w, target, temperature, stats (from forward of the same inputs), g_nll,
 * g_entropy, g_lse; writes dx and dw where the plan wants them. A row whose target is ignore_index
 * or out of range contributes exactly 0 whatever its upstream gradients hold. Collective; stream
 * and errors as weft_ce_forward(). */
WEFT_API weft_status weft_ce_backward(weft_ce_plan *plan, const weft_ce_args *args, void *stream);

/** Loss and gradients in one call, for upstream gradients known beforehand. Reads what both read
 * but stats; writes what both write. The plan must want WEFT_CE_STEP. Collective; stream and errors
 * as weft_ce_forward(). */
WEFT_API weft_status weft_ce_step(weft_ce_plan *plan, const weft_ce_args *args, void *stream);

/* ---- ep: expert parallelism ------------------------------------------------------------------ */

/* Dispatch sends each token's row to the ranks that hold its experts; combine brings the experts'
 * rows back and sums them by weight. R ranks hold E experts, rank r those from r·L on, L = E / R.
 *   x [n, H] bf16, 0 ≤ n ≤ tokens_max, n different on each rank
 *   topk_idx [n, K]: experts of the whole team, or −1 for none; no expert twice in a token
 * A rank receives a row for each of its experts that a token of any rank names, in the order
 * (expert, source rank, token), in one of two layouts:
 *   slab [L, R·tokens_max, H]: an expert's rows begin at row expert·R·tokens_max
 *   packed [rows_max, H]: an expert's rows begin at the end of the expert before, rounded up to a
 *   multiple of `alignment`
 * Rows that nothing was received for are not written. With reuse, the rows of a rank that was
 * masked in the meantime are 0.
 *
 * As E4M3 a row has a scale for each 128 channels (the last block may be shorter). With a the
 * largest |x| of the block, at least 1e-4: scale = a / 448, rounded up to a power of two where that
 * is asked for; code = x · (1 / scale), in f32, rounded to nearest even, at most 448 in size. A
 * block that holds an infinity or a NaN has NaN for its scale and all its codes.
 *   row-major [rows, B] with B = ⌈H / 128⌉, or column-major [B, scale_stride] (slab: that for each
 *   expert); packed UE8M0 takes B = ⌈⌈H / 128⌉ / 4⌉ words, block 4·w + i in byte i of word w, 0
 *   beyond the last block, 255 for NaN
 *
 * Combine: out [n, H] bf16 = Σ w·y in top-k order, each step a fused multiply-add in f32, from 0;
 * slots of −1 and of masked ranks are skipped.
 *
 * Backward: the gradient of dispatch's x is a combine without weights, and that of its topk_weights
 * comes with it (row_gradient to weight_gradient); the gradient of combine's y is a dispatch on the
 * same handle (reuse), times the received weight.
 */

#define WEFT_EP_TOKENS_MAX  8192
#define WEFT_EP_TOPK_MAX    32
#define WEFT_EP_EXPERTS_MAX 65536

typedef enum weft_ep_layout { WEFT_EP_SLAB = 0, WEFT_EP_PACKED = 1 } weft_ep_layout;

typedef enum weft_ep_scale {
  WEFT_EP_SCALE_F32 = 0,  /* f32 */
  WEFT_EP_SCALE_POW2 = 1, /* f32, rounded up to a power of two */
  WEFT_EP_SCALE_UE8M0 = 2 /* the power of two's exponent + 127, four to a 32-bit word */
} weft_ep_scale;

typedef enum weft_ep_order { WEFT_EP_ROW_MAJOR = 0, WEFT_EP_COLUMN_MAJOR = 1 } weft_ep_order;

/* Fences between ordinary accesses and bulk copies in the GPU's kernels; docs/fences.md. A CPU has
 * none. */
typedef enum weft_ep_fence {
  WEFT_EP_FENCE_ON = 0,  /* the narrowest that are enough */
  WEFT_EP_FENCE_OFF = 1, /* none: results may be wrong; for measurements */
  WEFT_EP_FENCE_WIDE = 2 /* an unqualified one before each bulk copy; for measurements */
} weft_ep_fence;

typedef struct weft_ep_config {
  size_t size;
  int64_t tokens_max; /* largest n of any rank and call, 0 to WEFT_EP_TOKENS_MAX */
  int64_t hidden;     /* H, a multiple of 8 */
  int64_t experts; /* E of the whole team, a multiple of the ranks, at most WEFT_EP_EXPERTS_MAX */
  int64_t topk;    /* K, 1 to WEFT_EP_TOPK_MAX */
  int64_t timeout_ms;      /* how long a call waits for a peer; 0: the team's */
  void *workspace;         /* the local part from the caller (64-byte aligned), or NULL: owned */
  int64_t workspace_bytes; /* size of `workspace` */
  int32_t dtype;           /* of received rows: WEFT_BF16, or WEFT_E4M3 */
  int32_t layout;          /* weft_ep_layout */
  int32_t alignment;       /* PACKED: of each expert's first row, 1 to 4096; SLAB: 1 */
  int32_t scale_format;    /* weft_ep_scale, of E4M3 */
  int32_t scale_order;     /* weft_ep_order */
  int32_t topk_dtype;      /* WEFT_I64 or WEFT_I32 */
  int32_t masking;         /* 1: a rank that does not come in time is left out from then on;
                              0: it is an error */
  int32_t zero_copy;       /* 1: the plan has a buffer for combine's input */
  int32_t max_sms;         /* GPU: SMs a call may take, 0: all */
  int32_t device;          /* weft_device; AUTO: the team's, or the CPU without a team */
  int32_t fence;           /* weft_ep_fence */
  int32_t reserved;        /* 0 */
} weft_ep_config;

#define WEFT_EP_CONFIG_INIT                                                                        \
  {                                                                                                \
    sizeof(weft_ep_config), 0, 0, 0, 1, 0, NULL, 0, WEFT_BF16, WEFT_EP_SLAB, 1, WEFT_EP_SCALE_F32, \
        WEFT_EP_ROW_MAJOR, WEFT_I64, 0, 0, 0, WEFT_DEVICE_AUTO, WEFT_EP_FENCE_ON, 0                \
  }

typedef struct weft_ep_plan weft_ep_plan;

/** Makes a plan. Collective over `comm`, whose ranks' configs are compared: a mismatch is
 * WEFT_ERR_MISMATCH on every rank. `comm` may be NULL: one rank without a team. The plan must not
 * outlive the team. Masking needs ranks of one process. Errors: ARGUMENT, UNSUPPORTED, MEMORY,
 * WORKSPACE, MISMATCH, PEER, TIMEOUT, ABORTED. */
WEFT_API weft_status weft_ep_plan_create(weft_comm *comm, const weft_ep_config *config,
                                         weft_ep_plan **plan);

/* The machine a plan is asked for when none is at hand. */
typedef struct weft_ep_machine {
  size_t size;
  const char *arch; /* "cpu", "sm90", "sm100" */
  int64_t ranks;
  int64_t hosts;
  int32_t peer_memory; /* 1: ranks can load each other's memory (one process); 0: they exchange */
  int32_t reserved;    /* 0 */
} weft_ep_machine;

#define WEFT_EP_MACHINE_INIT                                                                       \
  { sizeof(weft_ep_machine), "cpu", 1, 1, 1, 0 }

typedef struct weft_ep_plan_info {
  size_t size;
  int64_t local_bytes;     /* workspace that the caller may supply */
  int64_t symmetric_bytes; /* workspace that peers read, from the team's arena */
  int64_t handle_bytes;    /* memory of each handle */
  int64_t experts_local;   /* L */
  int64_t rows_max;        /* rows of a receive array: slab L·R·tokens_max; packed: of the worst
                              case, every token of every rank to as many experts here as it may */
  int64_t scale_stride;    /* 32-bit elements from a row (column-major: a column) of scales to the
                              next; a column's is a multiple of 4. 0 for bf16 */
  int64_t recv_bytes;      /* of recv_x */
  int64_t scale_bytes;     /* of recv_scales */
  int64_t buffer_bytes;    /* of the buffer for combine's input, 0 without zero_copy */
  char text[256];          /* the plan in a sentence */
} weft_ep_plan_info;

#define WEFT_EP_PLAN_INFO_INIT                                                                     \
  {                                                                                                \
    sizeof(weft_ep_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {                                        \
      0                                                                                            \
    }                                                                                              \
  }

/** Plans without making anything: exact workspace and the sizes of receive arrays. Needs no device.
 * Not collective. Errors: as weft_ep_plan_create() for what one rank can see. */
WEFT_API weft_status weft_ep_plan_query(const weft_ep_config *config,
                                        const weft_ep_machine *machine, weft_ep_plan_info *info);

/** The same for a plan that exists. */
WEFT_API weft_status weft_ep_plan_info_get(const weft_ep_plan *plan, weft_ep_plan_info *info);

/** Releases a plan. Not collective; its last call must have ended on every rank that is not masked.
 * Errors: BUSY (handles of the plan are alive, or a call is running). NULL is allowed. */
WEFT_API weft_status weft_ep_plan_destroy(weft_ep_plan *plan);

/** The plan's buffer for combine's input: rows_max rows of H bf16, which peers load without a copy.
 * Errors: UNSUPPORTED (the config has no zero_copy). */
WEFT_API weft_status weft_ep_combine_buffer(weft_ep_plan *plan, void **buffer);

/* Which rows went where: filled by a dispatch, read by combines and by dispatches of the same
 * routing. Belongs to the caller, who may have any number of them. */
typedef struct weft_ep_handle weft_ep_handle;

/** Makes a handle of a plan. Not collective; the ranks use their handles in the same order. Errors:
 * ARGUMENT, MEMORY. */
WEFT_API weft_status weft_ep_handle_create(weft_ep_plan *plan, weft_ep_handle **handle);

/** Releases a handle and the routing that it holds. Not collective. NULL is allowed. Errors: BUSY
 * (an operation of it is in flight). */
WEFT_API weft_status weft_ep_handle_destroy(weft_ep_handle *handle);

/* Arguments of a dispatch. The send half reads the first group, which is free again when it
 * returns; the receive half writes the second, of which all but recv_x may be NULL (as E4M3,
 * recv_scales too must be given). */
typedef struct weft_ep_dispatch_args {
  size_t size;
  int64_t tokens;            /* n; with reuse, that of the handle */
  const void *x;             /* [n, H] bf16 */
  int64_t x_stride;          /* ≥ H, 0: contiguous */
  const void *topk_idx;      /* [n, K]; not read with reuse */
  const float *topk_weights; /* [n, K], for recv_weights; NULL: all 1 */
  int32_t reuse;             /* 1: the routing that the handle has */
  int32_t reserved;          /* 0 */
  void *recv_x;              /* rows of H, bf16 or E4M3 */
  void *recv_scales;         /* f32 or 32-bit words, as the config says */
  float *recv_weights;       /* a row each: the weight of its token for its expert */
  int64_t *counts;           /* [L] rows of each expert */
  int64_t *offsets;          /* [L + 1] first row of each expert; the last: where the next would
                                begin */
  int64_t *source_counts;    /* [L, R] rows of each expert from each rank */
} weft_ep_dispatch_args;

#define WEFT_EP_DISPATCH_ARGS_INIT                                                                 \
  {                                                                                                \
    sizeof(weft_ep_dispatch_args), 0, NULL, 0, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL,     \
        NULL                                                                                       \
  }

/** Sends and receives rows; the handle then holds the routing. Collective over the plan's team.
 * CPU: `stream` is NULL, results are there on return. One call of a plan runs at a time; two
 * operations may be in flight, sent and not yet received. Where a rank refuses its arguments, the
 * others get PEER; where ranks call different things, all get MISMATCH. After TIMEOUT the team's
 * state is sticky until weft_comm_reset(), which also drops operations in flight and clears masks.
 *
 * GPU: arrays are memory of the rank's GPU, rows aligned to 16 bytes (else UNSUPPORTED), and where
 * ranks share a process over several GPUs, allocated so that peers may address them (cuMemAlloc,
 * weft_memory_alloc). The call enqueues one kernel on `stream` (NULL: the rank's own,
 * weft_comm_stream_get()) and returns; it can be captured into a graph, which may be replayed. What
 * the CPU returns for more than one rank (PEER, MISMATCH, TIMEOUT, and ARGUMENT for topk_idx, which
 * kernels check) comes by weft_comm_async_error() and stops the team until its reset. Results of a
 * failed operation are not defined. A graph that holds one half of an operation and is replayed
 * where the slot is in use, or the other half missing, does nothing and reports BUSY. At most 4096
 * experts.
 * Errors: ARGUMENT, MISMATCH, PEER, TIMEOUT (names the rank), ABORTED, BUSY. */
WEFT_API weft_status weft_ep_dispatch(weft_ep_handle *handle, const weft_ep_dispatch_args *args,
                                      void *stream);

/** The send half. Ranks of one process don't wait here, but for peers that still read what was sent
 * two operations before; in a world over the caller's exchange the ranks meet here. A third
 * operation in flight is BUSY. Collective; errors as weft_ep_dispatch(). */
WEFT_API weft_status weft_ep_dispatch_send(weft_ep_handle *handle,
                                           const weft_ep_dispatch_args *args, void *stream);

/** The receive half. Receive halves may come in another order than their send halves, the same on
 * all ranks. ARGUMENT leaves the operation in flight; any other error ends it. Collective; errors
 * as weft_ep_dispatch(). */
WEFT_API weft_status weft_ep_dispatch_receive(weft_ep_handle *handle,
                                              const weft_ep_dispatch_args *args, void *stream);

/* Arguments of a combine. The send half reads the first group, which must stay as it is until the
 * receive half has returned; the receive half reads and writes the second. */
typedef struct weft_ep_combine_args {
  size_t size;
  const void *y;             /* rows of H bf16, in the places where dispatch put them */
  const float *row_gradient; /* a row each, or NULL: values that go back to the slot (token, k) that
                                the row came from */
  const float *topk_weights; /* [n, K], or NULL: all 1 */
  void *out;                 /* [n, H] bf16 */
  int64_t out_stride;        /* ≥ H, 0: contiguous */
  float *weight_gradient;    /* [n, K], or NULL: row_gradient by slot; 0 for what was skipped or not
                                given */
} weft_ep_combine_args;

#define WEFT_EP_COMBINE_ARGS_INIT                                                                  \
  { sizeof(weft_ep_combine_args), NULL, NULL, NULL, NULL, 0, NULL }

/** Brings rows back and sums them; may be called again and again on a handle that has a routing.
 * Collective; stream, flight and errors as weft_ep_dispatch(). */
WEFT_API weft_status weft_ep_combine(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                     void *stream);

/** The send half: shows y to the peers. Waiting, flight and errors as weft_ep_dispatch_send(). */
WEFT_API weft_status weft_ep_combine_send(weft_ep_handle *handle, const weft_ep_combine_args *args,
                                          void *stream);

/** The receive half; as weft_ep_dispatch_receive(). It returns when no peer reads y any more. */
WEFT_API weft_status weft_ep_combine_receive(weft_ep_handle *handle,
                                             const weft_ep_combine_args *args, void *stream);

/** Which ranks are masked for this rank: mask[r] is 1 for a rank that is left out since it did not
 * come in time, else 0. `ranks` is the team's, [ranks] the size of `mask`. Not collective. */
WEFT_API weft_status weft_ep_mask_get(weft_ep_plan *plan, int32_t *mask, int64_t ranks);

/* Sums since the plan was made or the last reset of them. Arrays are the caller's, or NULL. */
typedef struct weft_ep_stats {
  size_t size;
  int64_t dispatches, combines; /* received without an error */
  int64_t *expert_rows;         /* [L] rows received by dispatches */
  double *wait_ms;              /* [R] time that receive halves waited for each rank */
} weft_ep_stats;

#define WEFT_EP_STATS_INIT                                                                         \
  { sizeof(weft_ep_stats), 0, 0, NULL, NULL }

/** Tells the statistics, and sets them to 0 where `reset` is not 0. Not collective. */
WEFT_API weft_status weft_ep_stats_get(weft_ep_plan *plan, weft_ep_stats *stats, int32_t reset);

#ifdef __cplusplus
}
#endif
#endif
