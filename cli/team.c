/* See team.h. */
#include "team.h"

#include <stdlib.h>

#include "run.h"

bool transport_is_here(int transport, const weft_system_info *info, error *error) {
  const char *reason = transport == TRANSPORT_MPI ? info->mpi_reason : info->nvshmem_reason;
  if (transport == TRANSPORT_INPROC || (transport == TRANSPORT_MPI && info->mpi_available))
    return true;
  return error_set(error, "--transport %s: %s", TRANSPORT_NAMES[transport],
                   reason != NULL ? reason : "not in this version");
}

int team_join(team *team, int64_t ranks, int64_t hosts, error *error) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  config.ranks = ranks;
  config.hosts = hosts;
  config.device = WEFT_DEVICE_CPU;
  weft_status status = weft_comm_create_mpi(&config, NULL, &team->world);
  if (status == WEFT_OK) status = weft_comm_info_get(team->world, &info);
  if (status != WEFT_OK) error_set(error, "--transport mpi: %s", weft_last_error());
  team->rank = info.rank;
  team->ranks = info.ranks;
  return run_exit_code(status);
}

void team_leave(team *team) {
  weft_comm_destroy(team->world);
  team->world = NULL;
}

bool team_gather(const team *team, const void *own, void *all, size_t bytes, error *error) {
  if (weft_comm_allgather(team->world, own, all, bytes) == WEFT_OK) return true;
  return error_set(error, "%s", weft_last_error());
}

int team_verdict(const team *team, int code) {
  error unused;
  if (team->world == NULL) return code;
  int *codes = calloc((size_t)team->ranks, sizeof *codes);
  if (codes == NULL || !team_gather(team, &code, codes, sizeof code, &unused)) {
    free(codes);
    return code != EXIT_RIGHT ? code : EXIT_FAILED;
  }
  for (int64_t i = team->ranks - 1; i >= 0; i--)
    if (codes[i] != EXIT_RIGHT) code = codes[i];
  free(codes);
  return code;
}

int64_t team_first(const team *team) {
  return team->world != NULL ? team->rank : 0;
}

int64_t team_end(const team *team, int64_t ranks) {
  return team->world != NULL ? team->rank + 1 : ranks;
}
