/* A small program of somebody else's, built against the installed tree alone: two ranks on threads
 * score two tokens whose logits are all -10 over 1025 words, so the loss is ln 1025 by hand. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <weft/weft.h>

enum { M = 2, H = 8, V = 1025, RANKS = 2, SPLIT = 500 };

static float x[M * H], w[V * H], dw[V * H], nll[RANKS][M], entropy[RANKS][M];
static const int64_t target[M] = {3, 1024};
static const float g_nll[M] = {1.0f, 1.0f};

typedef struct rank {
  weft_comm *comm;
  int index;
  int failed;
} rank;

static void *run(void *user) {
  rank *self = (rank *)user;
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = M;
  config.hidden = H;
  config.vocab = V;
  config.vocab_start = self->index == 0 ? 0 : SPLIT;
  config.vocab_local = self->index == 0 ? SPLIT : V - SPLIT;
  config.wants = WEFT_CE_ENTROPY | WEFT_CE_DW | WEFT_CE_STEP;
  weft_ce_plan *plan = NULL;
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = M;
  args.x = x;
  args.w = w + config.vocab_start * H;
  args.target = target;
  args.g_nll = g_nll;
  args.nll = nll[self->index];
  args.entropy = entropy[self->index];
  args.dw = dw + config.vocab_start * H;
  if (weft_ce_plan_create(self->comm, &config, &plan) != WEFT_OK ||
      weft_ce_step(plan, &args, NULL) != WEFT_OK) {
    fprintf(stderr, "rank %d: %s\n", self->index, weft_last_error());
    self->failed = 1;
  }
  weft_ce_plan_destroy(plan);
  return NULL;
}

int main(void) {
  if (weft_version() != WEFT_VERSION_NUMBER) return 1;
  for (int m = 0; m < M; m++)
    x[m * H] = 1.0f;
  for (int v = 0; v < V; v++)
    w[v * H] = -10.0f;

  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = RANKS;
  world.device = WEFT_DEVICE_CPU;
  weft_comm *comms[RANKS];
  if (weft_comm_create_inproc(&world, comms) != WEFT_OK) {
    fprintf(stderr, "%s\n", weft_last_error());
    return 1;
  }
  rank ranks[RANKS];
  pthread_t threads[RANKS];
  for (int r = 0; r < RANKS; r++) {
    ranks[r] = (rank){comms[r], r, 0};
    if (pthread_create(&threads[r], NULL, run, &ranks[r]) != 0) return 1;
  }
  int wrong = 0;
  for (int r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
    wrong += ranks[r].failed;
    weft_comm_destroy(comms[r]);
  }

  const double bound = 2e-5 * (1 + 10);
  for (int r = 0; r < RANKS; r++)
    for (int m = 0; m < M; m++)
      wrong += !(fabs(nll[r][m] - log(V)) <= bound) || !(fabs(entropy[r][m] - log(V)) <= bound);
  /* p is 1/V everywhere: dW is 2/V in column 0, less 1 in the target's row */
  for (int v = 0; v < V; v++) {
    const double right = 2.0 / V - (v == target[0]) - (v == target[1]);
    wrong += !(fabs(dw[v * H] - right) <= 2e-5) || dw[v * H + 1] != 0.0f;
  }
  printf("nll %.4f, expected %.4f; %d wrong\n", nll[0][0], log(V), wrong);
  return wrong != 0;
}
