/* The law: `weft check` answers 0 for clean protocols, 1 for findings, 2 for wrong usage, 4 where
 * it cannot run; --drop finds what it dropped, --drop-each answers 0 when every drop was found;
 * JSON and CSV carry the same verdicts. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weft/loom.h>

#include "commands.h"
#include "device/litmus/litmus.h"

static int failed;
static char out[65536];

/* Runs the command with stdout in `out`; stderr goes nowhere. */
static int run(const char *line) {
  char copy[256], *argv[16];
  int argc = 0;
  snprintf(copy, sizeof copy, "%s", line);
  for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
    argv[argc++] = word;
  char path[] = "/tmp/loom_check_XXXXXX";
  const int file = mkstemp(path), saved_out = dup(1), saved_err = dup(2);
  fflush(stdout);
  dup2(file, 1);
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, 2);
  close(nowhere);
  const int status = cmd_check(argc, argv);
  fflush(stdout);
  dup2(saved_out, 1);
  dup2(saved_err, 2);
  const ssize_t n = pread(file, out, sizeof out - 1, 0);
  out[n > 0 ? n : 0] = 0;
  close(file);
  close(saved_out);
  close(saved_err);
  remove(path);
  return status;
}

static void expect(const char *line, int status, const char *has, const char *has_not) {
  const int got = run(line);
  if (got == status && (!has || strstr(out, has)) && (!has_not || !strstr(out, has_not))) return;
  failed++;
  printf("FAIL weft check %s: status %d, expected %d\n%s\n", line, got, status, out);
}

extern const struct loom_kernel test_spare;

static void run_spare(const struct loom_protocol *protocol, const struct loom_options *options) {
  (void)options;
  struct litmus_args args = {0};
  args.out.a = loom_alloc(0, 64);
  const struct loom_launch launch = {protocol->context, &args, 0, 1, 1024, 0};
  if (loom_launch(&launch) != 0) loom_report_wrong("the launch was refused");
  loom_run();
}
static const struct loom_protocol spare = {
    .name = "test-spare", .summary = "", .run = run_spare, .context = &test_spare};

static void run_broken(const struct loom_protocol *protocol, const struct loom_options *options) {
  (void)protocol;
  (void)options;
  _exit(9);
}
static const struct loom_protocol broken = {
    .name = "test-broken", .summary = "", .run = run_broken};

int main(void) {
  expect("--list", 0, "litmus-hazard-a-broken", NULL);
  expect("--list --format csv", 0, "litmus-hazard-a-broken,flagged,0,2,", NULL);
  expect("--list --lenient --format json", 0,
         "{\"protocol\":\"litmus-fence-wrong-cta-broken\",\"expected\":\"clean\"", NULL);
  expect("--help", 0, "--drop-each", NULL);
  expect("litmus-hazard-a --seeds 4", 0, "clean", "findings");
  expect("litmus-hazard-a-broken --seeds 4", 1, "missing proxy fence", NULL);
  expect("litmus-fence-wrong-cta-broken --seeds 4", 1, "fence.proxy.async.global", NULL);
  expect("litmus-fence-wrong-cta-broken --seeds 4 --lenient", 0, "clean", NULL);
  expect("litmus-hazard-a --seeds 4 --drop hazard_a_acquired", 1, "missing proxy fence", NULL);
  expect("litmus-hazard-a --seeds 4", 0, "clean", NULL); /* the drop is undone */
  expect("litmus-hazard-b --seeds 4 --drop-each", 0, "hazard_b_read", "not found");
  /* one of its fences orders nothing */
  loom_protocol_register(&spare);
  expect("test-spare --seeds 4", 0, "clean", NULL);
  expect("test-spare --seeds 4 --drop-each", 1, "spare_fence                         4        0",
         NULL);
  expect("test-spare --seeds 4 --drop spare_fence", 0, "clean", NULL);
  /* a drop counts when one of the protocols shows it */
  expect("gemm gemm-tails --seeds 1 --drop-each", 0, "gemm_staging", "findings without");
  /* the shipped kernels */
  expect("--list", 0, "ce-forward-unaligned", NULL);
  expect("ce-forward ce-backward --seeds 1", 0, "clean", "findings");
  expect("ce-backward --seeds 2 --drop backward_stores", 1, "missing proxy fence", NULL);
  expect("ep-combine-bare --seeds 2", 1, "combine_kernel.h", NULL);
  expect("ep-combine --ranks 3 --seeds 2", 0, "clean", NULL);
  expect("ep-combine --ranks 4 --hosts 2 --seeds 2", 1, "is on another host", NULL);
  expect("ep-combine --ranks 17 --seeds 2", 1, "at most 16 ranks", NULL);
  expect("litmus-hazard-b-broken --seeds 3 --format json", 1, "\"flagged\":3", NULL);
  expect("litmus-hazard-b --seeds 3 --format json", 0, "\"ok\":true", NULL);
  expect("litmus-hazard-b-broken --seeds 3 --format csv", 1, "\"findings\",\"missing proxy fence",
         NULL);
  expect("--seeds 1", 0, "litmus-no-signal", "-broken");
  expect("litmus-hazard-b --seeds 1 --trace /tmp/loom_check_trace", 0, "clean", NULL);
  remove("/tmp/loom_check_trace");
  expect("litmus-hazard-b --seeds 1 --trace /nowhere/at/all", 4, NULL, "clean");
  expect("no-such-protocol", 2, NULL, "clean");
  expect("--seeds", 2, NULL, "clean");
  expect("--seeds 0", 2, NULL, "clean");
  expect("--seeds 3x", 2, NULL, "clean");
  expect("--format xml", 2, NULL, "clean");
  expect("--nonsense", 2, NULL, "clean");
  expect("--drop nothing_called_so", 2, NULL, "clean");
  expect("litmus-hazard-b --drop hazard_b_read --drop-each", 2, NULL, "clean");
  /* a process that dies is a failure, not a verdict */
  loom_protocol_register(&broken);
  expect("test-broken --seeds 2", 4, NULL, "clean");
  printf("%s: %d failed\n", failed ? "FAIL" : "ok", failed);
  return failed != 0;
}
