/* `weft ep`: parses, makes data, runs, checks, reports. Each of these is a file of its own. */
#include <stdio.h>
#include <weft/weft.h>

#include "commands.h"
#include "ep_report.h"

static int check_support(const ep_options *o, const weft_system_info *info, error *error) {
  if (!transport_is_here(o->transport, info, error)) return EXIT_UNSUPPORTED;
  if (o->backend == BACKEND_CUDA && o->transport != TRANSPORT_INPROC) {
    error_set(error, "--transport %s: this version runs it on CPUs", TRANSPORT_NAMES[o->transport]);
    return EXIT_UNSUPPORTED;
  }
  if (o->backend == BACKEND_CUDA && !info->cuda_available) {
    error_set(error, "--backend cuda: %s",
              info->cuda_reason != NULL ? info->cuda_reason : "no GPU");
    return EXIT_UNSUPPORTED;
  }
  return EXIT_RIGHT;
}

static int run_ep(ep_options *o, team *team, error *error) {
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  ep_data data;
  ep_run run;
  char device[200];
  if (weft_system_info_get(&info) != WEFT_OK) {
    error_set(error, "%s", weft_last_error());
    return EXIT_FAILED;
  }
  if (o->backend == BACKEND_AUTO)
    o->backend =
        info.cuda_available && o->transport == TRANSPORT_INPROC ? BACKEND_CUDA : BACKEND_CPU;
  if (o->iters == 0) o->iters = o->backend == BACKEND_CUDA ? 1000 : 3;
  int code = check_support(o, &info, error);
  if (code != EXIT_RIGHT) return code;
  if (o->transport == TRANSPORT_MPI) {
    code = team_join(team, o->ranks, o->hosts, error);
    if (code != EXIT_RIGHT) return code;
    o->ranks = team->ranks;
    if (!ep_options_check_ranks(o, error)) return EXIT_USAGE;
  }
  if (!ep_data_make(&data, o, error)) return EXIT_FAILED;
  snprintf(device, sizeof device, "cpu, %lld cores, %s", (long long)info.cores,
           info.isa != NULL ? info.isa : "?");
  if (o->backend == BACKEND_CUDA)
    snprintf(device, sizeof device, "%s", info.cuda_reason != NULL ? info.cuda_reason : "cuda");
  code = ep_run_all(&run, &data, team, error);
  if (code == EXIT_RIGHT && team_first(team) == 0 && !ep_report_print(&run, device)) {
    error_set(error, "cannot write to stdout");
    code = EXIT_FAILED;
  }
  for (int i = 0; i < EP_PHASES && code == EXIT_RIGHT; i++) {
    const ep_result *result = &run.results[i];
    if (ep_result_ok(result)) continue;
    error_set(error, "%s: %lld rows are wrong, %lld rounds differ from the first",
              i == EP_DISPATCH ? "dispatch" : "combine",
              (long long)(result->wrong > 0 ? result->wrong : 0), (long long)result->rounds_differ);
    code = EXIT_WRONG;
  }
  ep_run_free(&run);
  ep_data_free(&data);
  return code;
}

int cmd_ep(int count, char **arguments) {
  ep_options options;
  error error;
  if (!ep_options_parse(&options, count, arguments, &error))
    return complain(EXIT_USAGE, "ep: %s", error.text);
  if (options.help) {
    ep_options_help();
    return end_output("ep");
  }
  team team = {0};
  const int own = run_ep(&options, &team, &error);
  if (own != EXIT_RIGHT) complain(own, "ep: %s", error.text);
  const int code = team_verdict(&team, own);
  team_leave(&team);
  return code;
}
