/* A program against an installed loom: finds the missing fence of a litmus program, and nothing in
 * the mended form. */
#include <stdio.h>
#include <string.h>
#include <weft/loom.h>

static int findings(const char *name) {
  const struct loom_options options = {0, 0};
  const struct loom_config config = LOOM_CONFIG_INIT;
  for (int i = 0; i < loom_protocol_count(); i++)
    if (strcmp(loom_protocol_at(i)->name, name) == 0)
      return loom_protocol_run(loom_protocol_at(i), &options, &config);
  return -1;
}

int main(void) {
  loom_litmus_register();
  const int broken = findings("litmus-hazard-b-broken");
  if (broken > 0) printf("%s\n", loom_finding_at(0)->text);
  const int mended = findings("litmus-hazard-b");
  loom_end();
  return broken > 0 && mended == 0 ? 0 : 1;
}
