/* Trains a small language model whose loss head is weft: the last few tokens' embeddings, one
 * hidden layer, and a head over more than 8,000 tokens that is split over four ranks. The ranks are
 * threads of this process; in a program of several processes or GPUs only the making of the world
 * differs. Read it from run_rank() downwards as a tour of the API. The model itself is plain loops,
 * and is shared by the ranks: each fills and updates its own part of it, between barriers.
 *
 *   train_lm [--out DIR] [--steps N] [--seconds N] [FOLDER …]
 */
#include "model.h"
#include "safetensors_write.h"
#include "text.h"
#include "weft/weft.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  RANKS = 4,
  BATCH = 512,        /* tokens of a training step */
  HELD = 2048,        /* held-out tokens that are scored */
  VOCAB_LEAST = 8192, /* different ids that occur in the text */
  REPORT_EVERY = 50,  /* steps */
};

/* What the ranks share, since they are threads. Each writes its own parts, between barriers. */
static struct {
  struct text text;
  struct model model;
  struct batch train, held;
  weft_comm *comms[RANKS];
  int64_t steps;  /* to do at most */
  double seconds; /* to take at most */
  float rate;     /* of learning, set by rank 0 */
  int stop;       /* set by rank 0 */
  double started;
  double unigram_loss, held_loss, held_entropy;
  FILE *csv;
} run;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "train_lm: %s: %s\n", what, why);
  exit(1);
}

/* Every weft function returns a status; the message names the argument and its value. A program
 * that goes on living would call weft_comm_abort() here, to end the other ranks' waits. */
static void check(weft_status status, const char *call) {
  if (status == WEFT_OK) return;
  fprintf(stderr, "train_lm: %s: %s: %s\n", call, weft_status_string(status), weft_last_error());
  exit(1);
}
#define CHECK(call) check(call, #call)

static double now(void) {
  struct timespec time;
  timespec_get(&time, TIME_UTC);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int64_t part(int64_t count, int64_t rank) {
  return count * rank / RANKS;
}

/* In f64, so that the mean is as good as its terms. */
static double mean(const float *values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++)
    sum += values[i];
  return sum / (double)count;
}

/* Scores the held-out tokens. All ranks get the same nll and entropy, to the bit. */
static void score_held(weft_comm *comm, weft_ce_plan *plan, int64_t rank, weft_ce_args args) {
  static float nll[RANKS][HELD], entropy[RANKS][HELD];
  model_forward(&run.model, &run.held, part(HELD, rank), part(HELD, rank + 1));
  CHECK(weft_comm_barrier(comm)); /* the hidden states of all ranks are there */
  args.tokens = HELD;
  args.x = run.held.x;
  args.target = run.held.target;
  args.nll = nll[rank];
  args.entropy = entropy[rank];
  CHECK(weft_ce_forward(plan, &args, NULL));
  if (rank == 0) {
    run.held_loss = mean(nll[0], HELD);
    run.held_entropy = mean(entropy[0], HELD);
  }
}

/* Prints how far training is. */
static void report(int64_t step, double loss) {
  double seconds = now() - run.started, tokens = (double)(step * BATCH);
  printf("%6lld %9.0f %8.1f %9.0f %8.4f %11.1f %11.1f\n", (long long)step, tokens, seconds,
         tokens / seconds, loss, exp(loss), exp(run.held_loss));
  fprintf(run.csv, "%lld,%.0f,%.2f,%.9g,%.9g,%.9g\n", (long long)step, tokens, seconds, loss,
          run.held_loss, run.unigram_loss);
  fflush(stdout);
}

static void *run_rank(void *argument) {
  int64_t rank = (weft_comm **)argument - run.comms;
  weft_comm *comm = run.comms[rank];
  int64_t first = part(run.text.vocab, rank), rows = part(run.text.vocab, rank + 1) - first;

  /* A plan fixes the shapes and what is wanted, and owns the workspace. The ranks make it together:
   * here they learn whether their shares of the vocabulary fit together. The rows need not divide
   * evenly. */
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = BATCH;
  config.hidden = HIDDEN;
  config.vocab = run.text.vocab;
  config.vocab_start = first;
  config.vocab_local = rows;
  config.wants = WEFT_CE_STEP | WEFT_CE_DX | WEFT_CE_DW;
  weft_ce_plan *training, *scoring;
  CHECK(weft_ce_plan_create(comm, &config, &training));

  /* Scoring wants other outputs of other shapes, so it has a plan of its own. */
  config.max_tokens = HELD;
  config.wants = WEFT_CE_ENTROPY;
  CHECK(weft_ce_plan_create(comm, &config, &scoring));

  /* The loss is the mean of the tokens' nll, so its gradient by each of them is 1 / BATCH. That is
   * known before the loss is, which is what weft_ce_step() is for. */
  float *g_nll = zeroed(BATCH, sizeof(float)), *nll = zeroed(BATCH, sizeof(float));
  float *dx = zeroed(BATCH * HIDDEN, sizeof(float)), *dw = zeroed(rows * HIDDEN, sizeof(float));
  for (int64_t m = 0; m < BATCH; m++)
    g_nll[m] = 1.0f / BATCH;
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = BATCH;
  args.x = run.train.x;                           /* the same on all ranks */
  args.w = run.model.head.value + first * HIDDEN; /* this rank's rows */
  args.target = run.train.target;                 /* ids of the whole vocabulary, the same on all */
  args.g_nll = g_nll;
  args.nll = nll; /* the same on all ranks afterwards */
  args.dx = dx;   /* summed over the ranks: the same on all */
  args.dw = dw;   /* of this rank's rows */

  int64_t begin = part(BATCH, rank), end = part(BATCH, rank + 1); /* tokens below the head */
  int64_t summed = 0;
  double loss = 0.0;
  for (int64_t step = 0; !run.stop; step++) {
    for (int64_t m = begin; m < end; m++) {
      uint64_t draw = random_bits((uint64_t)(step * BATCH + m));
      set_row(&run.train, m, &run.text.train, (int64_t)(draw % (uint64_t)run.text.train.count));
    }
    model_forward(&run.model, &run.train, begin, end);
    CHECK(weft_comm_barrier(comm)); /* X and the targets are complete */

    CHECK(weft_ce_step(training, &args, NULL)); /* loss and both gradients, over all ranks */

    model_backward(&run.model, &run.train, dx, begin, end);
    loss += mean(nll, BATCH);
    summed++;
    if (rank == 0) { /* the others must not decide by clocks of their own */
      double progress = fmax((double)step / (double)run.steps, (now() - run.started) / run.seconds);
      run.rate = (float)(1e-2 * fmin(1.0, (double)(step + 1) / 50.0) * fmax(0.0, 1.0 - progress));
      run.stop = step + 1 >= run.steps || progress >= 1.0;
    }
    CHECK(weft_comm_barrier(comm)); /* nobody reads the weights of this step any more */

    model_update(&run.model, &run.train, dx, run.rate, rank, RANKS);
    adam(&run.model.head, first * HIDDEN, rows * HIDDEN, dw, run.rate);
    CHECK(weft_comm_barrier(comm)); /* the weights of the next step are complete */

    if ((step + 1) % REPORT_EVERY == 0 || run.stop) {
      score_held(comm, scoring, rank, args);
      if (rank == 0) report(step + 1, loss / (double)summed);
      loss = 0.0;
      summed = 0;
    }
  }

  /* A plan may go once its last call has ended on every rank: that is what the barrier waits for.
   * Plans go before their team. */
  CHECK(weft_comm_barrier(comm));
  CHECK(weft_ce_plan_destroy(scoring));
  CHECK(weft_ce_plan_destroy(training));
  CHECK(weft_comm_destroy(comm));
  free(g_nll), free(nll), free(dx), free(dw);
  return NULL;
}

/* ---- The program ---------------------------------------------------------------------------- */

/* The unigram model guesses each token by its frequency alone, with every count raised by one so
 * that none is impossible. Returns what the held-out tokens cost so, and lets the head's bias start
 * there: that much need not be learnt. */
static double start_from_unigram(void) {
  const struct tokens *train = &run.text.train;
  double *count = zeroed(run.text.vocab, sizeof(double)), sum = 0.0;
  for (int64_t i = 0; i < train->count; i++)
    count[train->ids[i]] += 1.0;
  for (int64_t id = 0; id < run.text.vocab; id++) {
    count[id] = log((count[id] + 1.0) / (double)(train->count + run.text.vocab));
    run.model.head.value[(id + 1) * HIDDEN - 1] = (float)count[id];
  }
  for (int64_t m = 0; m < HELD; m++)
    sum -= count[run.held.target[m]];
  free(count);
  return sum / HELD;
}

/* Takes held-out tokens evenly from the whole of the text, cuts excepted. */
static void choose_held(void) {
  const struct tokens *held = &run.text.held;
  for (int64_t m = 0, last = -1; m < HELD; m++) {
    int64_t position = held->count * m / HELD;
    if (position <= last) position = last + 1;
    while (position < held->count && held->ids[position] == 0)
      position++;
    if (position >= held->count) fail("held-out text", "there is too little: name more folders");
    set_row(&run.held, m, held, last = position);
  }
}

int main(int argc, char **argv) {
  static const char *const usual[] = {"/usr/share/common-licenses", ".", "/usr/include/linux"};
  const char *folders[64], *out = "out";
  int folder_count = 0;
  char path[4096];
  run.steps = 1400;
  run.seconds = 75.0;
  for (int i = 1; i < argc; i++) {
    if (i + 1 < argc && !strcmp(argv[i], "--out"))
      out = argv[++i];
    else if (i + 1 < argc && !strcmp(argv[i], "--steps"))
      run.steps = atoll(argv[++i]);
    else if (i + 1 < argc && !strcmp(argv[i], "--seconds"))
      run.seconds = atof(argv[++i]);
    else if (argv[i][0] != '-' && folder_count < 64)
      folders[folder_count++] = argv[i];
    else
      fail(argv[i], "usage: train_lm [--out DIR] [--steps N] [--seconds N] [FOLDER ...]");
  }
  const char *error = text_read(&run.text, folder_count ? folders : usual,
                                folder_count ? folder_count : 3, VOCAB_LEAST);
  if (error) fail("text", error);
  printf("# text: %lld files, %lld bytes; %lld ids, of which %lld occur; "
         "%lld tokens to train on, %lld held out\n",
         (long long)run.text.files, (long long)run.text.bytes, (long long)run.text.vocab,
         (long long)run.text.used, (long long)run.text.train.count, (long long)run.text.held.count);

  run.model = new_model(run.text.vocab);
  run.train = new_batch(BATCH);
  run.held = new_batch(HELD);
  choose_held();
  run.unigram_loss = start_from_unigram();

  snprintf(path, sizeof path, "%s/train_lm.csv", out);
  run.csv = fopen(path, "w");
  if (!run.csv) fail(path, "can't be written");
  fprintf(run.csv, "step,tokens,seconds,train_loss,held_loss,unigram_loss\n");
  printf("#%5s %9s %8s %9s %8s %11s %11s\n", "step", "tokens", "seconds", "tokens/s", "loss",
         "perplexity", "held-out");

  /* The world: four ranks in this process, one thread each. */
  weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  world.ranks = RANKS;
  world.device = WEFT_DEVICE_CPU;
  CHECK(weft_comm_create_inproc(&world, run.comms));
  run.started = now();
  pthread_t threads[RANKS];
  for (int rank = 0; rank < RANKS; rank++) {
    if (pthread_create(&threads[rank], NULL, run_rank, &run.comms[rank])) fail("rank", "no thread");
  }
  for (int rank = 0; rank < RANKS; rank++)
    pthread_join(threads[rank], NULL);

  snprintf(path, sizeof path, "%s/train_lm.safetensors", out);
  const struct tensor tensors[] = {
      {"hidden", "F32", 4, {HELD, HIDDEN}, run.held.x},
      {"head", "F32", 4, {run.text.vocab, HIDDEN}, run.model.head.value},
      {"targets", "I64", 8, {HELD, 0}, run.held.target},
  };
  if (safetensors_write(path, tensors, 3)) fail(path, "can't be written");
  if (fclose(run.csv)) fail("train_lm.csv", "can't be written");
  printf("# held-out: %d tokens, perplexity %.6g, mean entropy %.6f\n", HELD, exp(run.held_loss),
         run.held_entropy);
  printf("# unigram baseline: perplexity %.6g\n", exp(run.unigram_loss));
  if (!(run.held_loss < run.unigram_loss - 0.5))
    fail("result", "the baseline was not clearly beaten");
  text_free(&run.text);
  return 0;
}
