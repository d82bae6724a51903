/* The program `weft`: finds the command and runs it. Uses the public API alone. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

#include "base.h"
#include "commands.h"
#include "log.h"

static void print_usage(FILE *to) {
  fprintf(to,
          "weft: the loss head and the expert exchange of a large language model\n\n"
          "usage: weft COMMAND [flags]\n"
          "       weft COMMAND --help\n"
          "       weft --version\n\n"
          "commands:\n"
          "  info   what the library found on this machine\n"
          "  ce     linear cross entropy: run, time, verify, read and write files\n"
          "  ep     expert parallelism: run, time and verify dispatch and combine\n"
          "  check  runs device code without a GPU and reports races and missing fences\n\n"
          "data go to stdout, messages to stderr\n"
          "exit: 0 right, 1 wrong result, 2 usage, 3 unsupported here, 4 failure at run time\n");
}

int main(int argc, char **argv) {
  if (argc < 2) {
    print_usage(stderr);
    return EXIT_USAGE;
  }
  const char *name = argv[1];
  log_to_stderr();
  signal(SIGXFSZ, SIG_IGN); /* past a limit on file size, writing fails instead, and that is said */
  if (argc > 2 && (!strcmp(name, "--version") || !strcmp(name, "--help") || !strcmp(name, "-h") ||
                   !strcmp(name, "help")))
    return complain(EXIT_USAGE, "%s takes nothing beside it, \"%.80s\" was given", name, argv[2]);
  if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
    print_usage(stdout);
    return end_output(name);
  }
  if (!strcmp(name, "--version")) {
    const int number = weft_version();
    printf("weft %d.%d.%d\n", number / 10000, number / 100 % 100, number % 100);
    return end_output(name);
  }
  if (!strcmp(name, "info")) return cmd_info(argc - 2, argv + 2);
  if (!strcmp(name, "ce")) return cmd_ce(argc - 2, argv + 2);
  if (!strcmp(name, "check")) return cmd_check(argc - 2, argv + 2);
  if (!strcmp(name, "ep")) return cmd_ep(argc - 2, argv + 2);
  return complain(EXIT_USAGE, "unknown command \"%.80s\"; expected info, ce, ep or check", name);
}
