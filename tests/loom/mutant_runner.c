/* Runs one protocol of the library for some seeds, linked with device code that may have a fault
 * planted in it: mutant_runner PROTOCOL SEEDS. Prints how many seeds were flagged and the first
 * finding; 0 where none was, 1 where some were, 3 where all were. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

int main(int argc, char **argv) {
  const struct loom_options options = {0, 0};
  const struct loom_protocol *protocol = NULL;
  const int seeds = argc == 3 ? atoi(argv[2]) : 0;
  MUTANT_REGISTER();
  for (int i = 0; i < loom_protocol_count(); i++)
    if (!strcmp(loom_protocol_at(i)->name, argv[1])) protocol = loom_protocol_at(i);
  if (!protocol || seeds < 1) return 2;
  int flagged = 0;
  char text[512] = "";
  for (int seed = 0; seed < seeds; seed++) {
    struct loom_config config = LOOM_CONFIG_INIT;
    config.seed = (uint64_t)seed;
    config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
    const int n = loom_protocol_run(protocol, &options, &config);
    if (n < 0) return 2;
    if (n > 0 && !flagged) memcpy(text, loom_finding_at(0)->text, sizeof text);
    flagged += n > 0;
  }
  printf("%d of %d seeds: %s\n", flagged, seeds, text);
  return flagged == 0 ? 0 : flagged == seeds ? 3 : 1;
}
