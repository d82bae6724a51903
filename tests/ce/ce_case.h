/* One test of the loss head: what is asked (ce_case), the data and the right answers (ce_problem),
 * the run on a world, and the verdict by the contract's bounds. Uses the public API alone. */
#ifndef WEFT_TESTS_CE_CASE_H
#define WEFT_TESTS_CE_CASE_H

#include "matrix.h"
#include "support/oracle.h"

enum { UP_NLL = 1, UP_ENTROPY = 2, UP_LSE = 4 };
typedef enum ce_ignore { IGNORE_NONE, IGNORE_SOME, IGNORE_ALL, IGNORE_ALL_BUT_ONE } ce_ignore;
/* How W's rows are split: of the same size; ever larger; all even but one rank with none; all on
 * one rank. */
typedef enum ce_split { SPLIT_EVEN, SPLIT_UNEVEN, SPLIT_ONE_EMPTY, SPLIT_ONE_FULL } ce_split;
typedef enum ce_budget { BUDGET_DEFAULT, BUDGET_LEAST, BUDGET_LARGE } ce_budget;
typedef enum ce_world { WORLD_INPROC, WORLD_EXTERNAL, WORLD_NONE } ce_world;
typedef enum ce_targets { TARGETS_SPREAD, TARGETS_LAST_RANK, TARGETS_FIRST_ROW } ce_targets;

typedef struct ce_case {
  int64_t ranks, tokens, hidden, vocab;
  int dtype, target_dtype, dx_dtype, dw_dtype, dx_mode;
  bool no_dx, no_dw, entropy;
  int upstream; /* UP_… bits; UP_ENTROPY implies entropy */
  double temperature, cap;
  bool temperature_by_pointer;
  ce_ignore ignore;
  int64_t ignore_index;
  ce_targets targets;
  bool accumulate;
  int64_t padding;      /* rows of W past the vocabulary */
  int64_t stride_extra; /* elements between rows of X, W, dX, dW */
  int64_t offset;       /* elements of misalignment of every array */
  int64_t spare_tokens; /* max_tokens beyond tokens */
  ce_split split;
  ce_budget budget;
  bool own_workspace; /* the caller's memory */
  int threads;        /* 0: the library's choice */
  bool step;          /* weft_ce_step instead of forward and backward */
  ce_world world;
  double x_scale, w_scale; /* X ~ x_scale·N(0,1), W ~ w_scale·N(0,1)/√H; 0: 1 */
  uint64_t seed;
} ce_case;

extern const ce_case ce_default; /* one rank, f32, 17 × 64 × 507, nll gradients */

typedef struct ce_problem {
  matrix x, w;   /* w holds the padding too, as NaN */
  matrix target; /* [1, M] */
  matrix up[3];  /* [1, M] f32: nll, entropy, lse; NaN at ignored rows */
  matrix old_dw; /* [V + padding, H] */
  double *xd, *wd, *upd[3];
  int64_t *targets;
  oracle o;
} ce_problem;

/* Inputs from the case's seed; they do not depend on ranks, split, budget, threads, phase, world.
 */
void ce_problem_make(const ce_case *c, ce_problem *p);
/* The right answers for the inputs as they now are: a test may change them in between. */
void ce_problem_solve(const ce_case *c, ce_problem *p);
void ce_problem_free(ce_problem *p);

/* The range of rows of W of one rank. */
void ce_range(const ce_case *c, int64_t rank, int64_t *start, int64_t *local);

/* What one rank wrote. */
typedef struct ce_output {
  matrix nll, lse, entropy, stats, dx, dw;
  weft_status status; /* of the last call */
  weft_ce_plan_info info;
  char failure[400]; /* empty: none */
} ce_output;

/* Runs the case on its world, twice on one plan: the second run must give the bits of the first.
 * `outputs` holds c->ranks. False: the world or a call failed, or memory was touched outside; the
 * message says which. A status of TARGET is no failure. */
bool ce_run(const ce_case *c, const ce_problem *p, ce_output *outputs, char *message, int size);
void ce_outputs_free(const ce_case *c, ce_output *outputs);

/* The same for one rank alone, on a team that the test has made and that the other ranks run on
 * elsewhere. */
bool ce_run_rank(const ce_case *c, const ce_problem *p, int64_t rank, weft_comm *comm,
                 ce_output *output, char *message, int size);
void ce_output_free(ce_output *output);
/* The name of an output whose bits differ, or NULL. */
const char *ce_output_differs(const ce_output *a, const ce_output *b);

typedef struct ce_errors {
  double nll, lse, entropy; /* in units of the bound: right up to 1 */
  double dx, dw;            /* Frobenius, relative */
  int64_t wrong;            /* rows, as the command line counts them */
} ce_errors;

/* Compares all ranks' outputs with the oracle by the contract's bounds. */
bool ce_compare(const ce_case *c, const ce_problem *p, const ce_output *outputs, ce_errors *errors,
                char *message, int size);

/* ce_run and ce_compare of a solved problem. */
bool ce_check_problem(const ce_case *c, const ce_problem *p, char *message, int size);
/* All of it. */
bool ce_check(const ce_case *c, char *message, int size);

/* The case in one line, without the fields that are as in ce_default. */
const char *ce_describe(const ce_case *c, char *text, int size);

#endif
