/* The GPU backend of ce for compute capability 9.0 from the inside: a plan's state, its workspace,
 * and one function a phase. A phase only enqueues work on the stream: it never waits for the
 * device, allocates nothing and can be captured into a CUDA graph.
 *
 * Workspace, in this order: the words of errors, statistics of a step, then scratch that the phases
 * take in turn, since one call of a plan is in flight at a time. In a team there is a symmetric
 * part besides, in the rank's arena: the words by which ranks announce statistics, then the
 * statistics.
 */
#ifndef WEFT_CUDA_CE_H
#define WEFT_CUDA_CE_H

#include "ce/backend.h"
#include "cuda/backward.h"
#include "cuda/cuda.h"
#include "cuda/team.h"
#include "device/ce/forward.h"

typedef struct weft__sm90_layout {
  int64_t sms;                              /* in use, even */
  int64_t errors_bytes;                     /* each a multiple of 256 */
  int64_t stats_bytes;                      /* of a step: [max_tokens][4] f32 */
  uint32_t forward_segments, forward_group; /* forward_schedule_make()'s */
  uint32_t forward_pace;                    /* steps of depth between clusters, 0: any number */
  int64_t forward_bytes, backward_bytes;    /* scratch of a phase */
  int64_t step_bytes;                       /* of a step that keeps exponentials, 0: none does */
  int64_t local_bytes;                      /* all of it */
  int64_t waves, wave_rows;                 /* of backward */
  int64_t kept_tokens;                      /* whose exponentials step keeps; 0: it recomputes */
  /* of a team's symmetric part: offsets, and its size; 0 without peers */
  int64_t signal_bytes, statistics, symmetric_bytes;
  uint32_t halves; /* as in struct forward_team */
  /* as in struct dx_reduce_args; dx_part is 0 where dX is not summed over the team */
  int64_t dx_words, dx_part, dx_shard;
  uint32_t part_stride, shard_stride;
} weft__sm90_layout;

typedef struct weft__sm90_ce {
  weft__sm90_layout layout;
  int device; /* its ordinal */
  cuda_address workspace;
  int owns_workspace;
  /* parts of the workspace */
  cuda_address errors, stats, scratch;
  struct forward_errors *host_errors; /* pinned; its address on the device is the same */
  uint32_t reported;                  /* bad targets that the team has been told of */
  uint64_t timeout_ns;
  struct cuda_team team; /* team.comm is NULL where the plan has no peers */
  struct cuda_kernel forward, absent, dx_reduce;
  int dx_apart; /* WEFT_DX_APART: dX is summed by a kernel behind backward in any case */
  struct ce_backward_kernel backward, step;
  uint32_t clusters; /* of two CTAs that run at once */
} weft__sm90_ce;

/* ce_layout.c: sizes within the config's budget. *least gets the smallest budget that works. */
weft_status weft__sm90_layout_make(const weft_ce_config *config, int64_t sms, int64_t ranks,
                                   weft__sm90_layout *out, int64_t *least);
void weft__sm90_describe(const weft_ce_config *config, const weft__sm90_layout *layout,
                         weft_ce_plan_info *info);
/* SMs of the machine asked about, of this one, or of an H200. */
int64_t weft__sm90_units(const weft_ce_machine *machine);

/* The phases. Arguments are checked; the plan's context is current. Kernels are loaded by the
 * _load functions when a plan is made. */
weft_status weft__sm90_forward_load(weft_ce_plan *plan);
/* Fills the layout's fields of forward. */
void weft__sm90_forward_layout(const weft_ce_config *config, weft__sm90_layout *layout);
/* All of the kernel's arguments but its two tensor maps, and what those are made of (nothing where
 * out->by_hand). Needs no device. */
weft_status weft__sm90_forward_prepare(const weft_ce_plan *plan, const weft_ce_args *args,
                                       struct cuda_tensor tensors[2], struct forward_args *out);
weft_status weft__sm90_forward(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream);

/* ce_team.c: a plan's part of a team. The symmetric part of the layout; and what forward takes of
 * it, where the plan has peers. */
void weft__sm90_team_layout(const weft_ce_config *config, int64_t ranks, weft__sm90_layout *layout);
void weft__sm90_team_fill(const weft__sm90_ce *state, struct forward_args *args);
weft_status weft__sm90_team_load(weft_ce_plan *plan);
/* Turns backward's dX into this rank's part of the team's sum, where there is one. */
void weft__sm90_team_part(const weft__sm90_ce *state, struct ce_backward_problem *problem);
/* Lets backward sum the parts into args->dx behind its dW; false where it does not. */
bool weft__sm90_team_tiles(const weft_ce_plan *plan, const weft_ce_args *args,
                           struct ce_backward_launch *launch);
/* Sums them by a kernel of its own; nothing where there is no such sum. */
weft_status weft__sm90_team_reduce(weft_ce_plan *plan, const weft_ce_args *args,
                                   cuda_stream stream);
/* Forward of a rank without rows, or of a call without tokens, in a team. */
weft_status weft__sm90_forward_absent(weft_ce_plan *plan, struct forward_args *args,
                                      cuda_stream stream);

weft_status weft__sm90_backward_load(weft_ce_plan *plan);
/* Fills the layout's fields of backward and step from the budget left for them; *least gets the
 * smallest scratch that they can do with. */
weft_status weft__sm90_backward_layout(const weft_ce_config *config, int64_t sms, int64_t budget,
                                       weft__sm90_layout *layout, int64_t *least);
weft_status weft__sm90_backward(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream);
weft_status weft__sm90_step(weft_ce_plan *plan, const weft_ce_args *args, cuda_stream stream);

/* A matrix of the caller's, [rows, hidden] of the plan's dtype, as tensor copies see it: boxes of
 * 64 columns by `box_rows`. Errors: UNSUPPORTED where rows are not 16-byte aligned. */
weft_status weft__sm90_operand(const weft_ce_plan *plan, const char *name, const void *address,
                               int64_t rows, int64_t stride, uint32_t box_rows,
                               struct cuda_tensor *out);

#endif
