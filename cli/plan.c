/* See plan.h. */
#include "plan.h"

#include <stdio.h>

#include "report.h"

int plan_print(ce_options *o, error *error) {
  ce_options_defaults(o, o->arch != ARCH_CPU);
  const weft_ce_config config = run_config(o, WEFT_DTYPE_DEFAULT, WEFT_I64, 0);
  weft_ce_machine machine = WEFT_CE_MACHINE_INIT;
  machine.arch = ARCH_NAMES[o->arch];
  machine.units = o->sms;
  machine.ranks = o->ranks;
  machine.hosts = o->hosts;
  report report = {.options = o};
  weft_ce_plan_info info = WEFT_CE_PLAN_INFO_INIT;
  const weft_status status = weft_ce_plan_query(&config, &machine, &info);
  if (status != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    return run_exit_code(status);
  }
  report.plan = info;
  report.workspace_bytes = info.local_bytes + info.symmetric_bytes;
  snprintf(report.device, sizeof report.device, "%s, %lld unit%s, planned without a device",
           machine.arch, (long long)info.units, info.units == 1 ? "" : "s");
  if (report_print(&report)) return EXIT_RIGHT;
  error_set(error, "cannot write to stdout");
  return EXIT_FAILED;
}
