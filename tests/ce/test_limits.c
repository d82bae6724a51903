/* A limit on address space, set and raised while the program runs: plans that do not fit are
 * refused in words, nothing waits for memory that never comes, and what fits again works again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <weft/weft.h>

static void law(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s; the last message: %s\n", what, weft_last_error());
  exit(1);
}

/* What this process has mapped, and `mib` more. */
static void limit_to(long mib) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  law(file != NULL && fscanf(file, "%ld", &pages) == 1, "/proc/self/statm is there");
  fclose(file);
  struct rlimit limit;
  law(getrlimit(RLIMIT_AS, &limit) == 0, "the limit can be read");
  limit.rlim_cur =
      mib < 0 ? limit.rlim_max : (rlim_t)pages * (rlim_t)getpagesize() + ((rlim_t)mib << 20);
  law(setrlimit(RLIMIT_AS, &limit) == 0, "the limit can be set");
}

static weft_status make(weft_ce_plan **plan) {
  weft_ce_config config = WEFT_CE_CONFIG_INIT;
  config.max_tokens = 2;
  config.hidden = 4;
  config.vocab = config.vocab_local = 8;
  config.threads = 1;
  return weft_ce_plan_create(NULL, &config, plan);
}

/* All logits are 0, so that nll = ln 8. */
static void run(weft_ce_plan *plan) {
  const float x[8] = {0}, w[32] = {0};
  const int64_t target[2] = {3, 5};
  float nll[2] = {0};
  weft_ce_args args = WEFT_CE_ARGS_INIT;
  args.tokens = 2;
  args.x = x;
  args.w = w;
  args.target = target;
  args.nll = nll;
  law(weft_ce_forward(plan, &args, NULL) == WEFT_OK, "forward runs");
  law(nll[0] > 2.0794f && nll[0] < 2.0795f && nll[1] == nll[0], "nll is ln 8");
}

static void refused(const char *when) {
  weft_ce_plan *plan = NULL;
  law(make(&plan) == WEFT_ERR_MEMORY && plan == NULL, when);
  law(strstr(weft_last_error(), "ulimit -v is") != NULL, "the message names the limit");
}

int main(void) {
  weft_ce_plan *first = NULL, *second = NULL;
  alarm(60);
  limit_to(100);
  refused("no room for the BLAS");
  limit_to(400);
  law(make(&first) == WEFT_OK, "room for the BLAS and one thread");
  run(first);
  limit_to(64);
  refused("no room for a second thread's buffer");
  law(weft_ce_plan_destroy(first) == WEFT_OK, "the first plan ends");
  law(make(&first) == WEFT_OK, "the buffer that is there serves the next plan");
  run(first);
  limit_to(-1);
  law(make(&second) == WEFT_OK, "without a limit both have room");
  run(second);
  weft_ce_plan_destroy(second);
  weft_ce_plan_destroy(first);
  printf("plans under limits of address space: refused and made as there was room\n");
  return 0;
}
