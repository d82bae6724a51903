/* The flags of `weft ep`: their table, defaults, and what they must be together. */
#ifndef CLI_EP_OPTIONS_H
#define CLI_EP_OPTIONS_H

#include <weft/weft.h>

#include "ce_options.h"

typedef enum ep_strategy {
  STRATEGY_RANDOM,
  STRATEGY_RANDOM_SAME,
  STRATEGY_LOCAL_RAND,
  STRATEGY_LOCAL_SAME,
  STRATEGY_REMOTE_RAND
} ep_strategy;

typedef enum ep_fence { FENCE_ON, FENCE_OFF, FENCE_WIDE } ep_fence;

typedef struct ep_options {
  int64_t tokens, hidden, experts, topk, ranks, hosts;
  int64_t seed, warmup, iters, repeat;
  int dtype, layout, strategy, fence, backend, transport, format;
  bool unsafe, verify, help;
} ep_options;

extern const char *const EP_DTYPE_NAMES[]; /* 0: bf16, 1: fp8 */
extern const char *const LAYOUT_NAMES[];   /* of weft_ep_layout */
extern const char *const STRATEGY_NAMES[]; /* of ep_strategy */
extern const char *const FENCE_NAMES[];    /* of ep_fence */

bool ep_options_parse(ep_options *options, int count, char **arguments, error *error);
/* What depends on the number of ranks, which may be known only when a job has been joined (0 until
 * then). */
bool ep_options_check_ranks(const ep_options *options, error *error);
void ep_options_help(void);

#endif
