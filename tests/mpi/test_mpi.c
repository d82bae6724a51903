/* One process of an MPI world, started by mpirun: messages, sub-teams, refusals, and both
 * operations, whose bits are those of a team of threads. Uses the public API and the test's own
 * laws. mpirun -n RANKS test_mpi           all of it mpirun -n RANKS test_mpi late      a rank that
 * does not come is named, and a reset mends it mpirun -n RANKS test_mpi killed|stopped   the last
 * rank goes: the others must end, not right */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ce_case.h"
#include "ep_case.h"
#include "support/ranks.h"

enum { SHORT_MS = 2000 };

static int64_t rank, ranks;

#define LAW(holds)                                                                                 \
  do {                                                                                             \
    if (!(holds)) {                                                                                \
      fprintf(stderr, "%s:%d: rank %lld of %lld: not so: %s; last message: %s\n", __FILE__,        \
              __LINE__, (long long)rank, (long long)ranks, #holds, weft_last_error());             \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

static weft_comm *world_of(int64_t timeout_ms) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_comm *comm = NULL;
  config.ranks = 0;
  config.timeout_ms = timeout_ms;
  LAW(weft_comm_create_mpi(&config, NULL, &comm) == WEFT_OK);
  LAW(weft_comm_info_get(comm, &info) == WEFT_OK);
  rank = info.rank;
  ranks = info.ranks;
  LAW(strcmp(info.transport, "mpi") == 0 && info.world_ranks == ranks && info.hosts == 1);
  return comm;
}

/* ---- Configs that differ are an error on every rank ---- */

static void refusals(void) {
  weft_world_config config = WEFT_WORLD_CONFIG_INIT;
  weft_comm *comm = NULL;
  config.ranks = ranks + 1;
  LAW(weft_comm_create_mpi(&config, NULL, &comm) == WEFT_ERR_ARGUMENT && comm == NULL);
  LAW(strstr(weft_last_error(), "config.ranks is") != NULL);
  config.ranks = rank == ranks - 1 ? -1 : 0;
  const weft_status expected = rank == ranks - 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER;
  LAW(weft_comm_create_mpi(&config, NULL, &comm) == expected && comm == NULL);
  if (ranks == 1) return;
  config.ranks = 0;
  config.arena_bytes = 1000 + rank;
  LAW(weft_comm_create_mpi(&config, NULL, &comm) == WEFT_ERR_MISMATCH && comm == NULL);
  LAW(strstr(weft_last_error(), "arena_bytes is 1000 on rank 0") != NULL);
}

/* ---- Blocks of many sizes, large ones in place as well ---- */

static void gathers(weft_comm *world) {
  static const size_t sizes[] = {0, 1, 8, 1023, 1024, 1025, 5000, 300001, 3000000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    const size_t n = sizes[s];
    unsigned char *own = malloc(n + 1), *all = malloc(n * (size_t)ranks + 1);
    for (int in_place = 0; in_place < 2; in_place++) {
      unsigned char *send = in_place ? all + n * (size_t)rank : own;
      memset(all, 0xee, n * (size_t)ranks);
      for (size_t i = 0; i < n; i++)
        send[i] = (unsigned char)(i * 7 + (size_t)rank * 31 + s);
      LAW(weft_comm_allgather(world, send, all, n) == WEFT_OK);
      for (int64_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < n; i++)
          LAW(all[(size_t)r * n + i] == (unsigned char)(i * 7 + (size_t)r * 31 + s));
    }
    free(own);
    free(all);
  }
  LAW(weft_comm_allgather(world, NULL, NULL, 8) == WEFT_ERR_ARGUMENT);
  if (ranks == 1) return;
  unsigned char few[64], many[64 * 64];
  LAW(ranks > 64 || weft_comm_allgather(world, few, many, rank == 0 ? 8 : 16) == WEFT_ERR_MISMATCH);
  LAW(strstr(weft_last_error(), "rank 0 sends 8 bytes, rank 1 sends 16") != NULL);
}

/* ---- ce: the bits of a team of threads, which are compared with the oracle ---- */

static void ce_on(weft_comm *comm, int64_t team_rank, int64_t team_ranks, int variant) {
  static const int dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
  char message[500] = "";
  ce_case c = ce_default;
  ce_problem p;
  ce_errors errors;
  ce_output mine;
  c.ranks = team_ranks;
  c.tokens = variant % 3 == 0 ? 1 : 67 + variant; /* all ranks' rows of dX pass INLINE_BYTES */
  c.hidden = 65;
  c.vocab = 507;
  c.dtype = dtypes[variant % 3];
  c.dx_mode = variant / 2 % 3;
  c.step = variant % 2;
  c.split = variant % 4 == 3 ? SPLIT_ONE_EMPTY : SPLIT_UNEVEN;
  c.ignore = IGNORE_SOME;
  c.upstream = UP_NLL | UP_ENTROPY | UP_LSE;
  c.threads = 1;
  c.seed = (uint64_t)variant + 1;
  if (team_ranks == 1) c.split = SPLIT_EVEN;
  ce_problem_make(&c, &p);
  ce_problem_solve(&c, &p);
  ce_output *threads = calloc((size_t)team_ranks, sizeof *threads);
  if (!ce_run(&c, &p, threads, message, sizeof message) ||
      !ce_compare(&c, &p, threads, &errors, message, sizeof message) ||
      !ce_run_rank(&c, &p, team_rank, comm, &mine, message, sizeof message)) {
    fprintf(stderr, "rank %lld: variant %d: %s\n", (long long)rank, variant, message);
    _exit(1);
  }
  const char *differs = ce_output_differs(&mine, &threads[team_rank]);
  if (differs != NULL) fprintf(stderr, "variant %d: %s has other bits\n", variant, differs);
  LAW(differs == NULL);
  ce_output_free(&mine);
  ce_outputs_free(&c, threads);
  free(threads);
  ce_problem_free(&p);
}

/* ---- ep, by brute force ---- */

static void ep_on(weft_comm *comm, int64_t team_rank, int64_t team_ranks) {
  char why[256] = "";
  for (int variant = 0; variant < 4; variant++) {
    ep_case c = ep_case_of(team_ranks, 9, 136, team_ranks * 3, 3);
    c.layout = variant & 1;
    c.alignment = c.layout ? 8 : 1;
    c.dtype = variant & 2 ? WEFT_E4M3 : WEFT_BF16;
    c.zero_copy = variant == 3;
    for (int64_t r = 0; r < team_ranks; r++)
      c.tokens[r] = (r * 5 + 9) % 10;
    if (ep_everything(&c, team_rank, comm, why) != WEFT_OK)
      fprintf(stderr, "ep variant %d: %s\n", variant, why);
    LAW(why[0] == '\0');
  }
}

/* ---- Sub-teams: pairs, strides, a list in another order; at different times ---- */

static void on_team(weft_comm *team, int64_t team_rank, int64_t team_ranks, int variant) {
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  LAW(weft_comm_info_get(team, &info) == WEFT_OK);
  LAW(info.rank == team_rank && info.ranks == team_ranks && info.world_rank == rank);
  ce_on(team, team_rank, team_ranks, variant);
  LAW(weft_comm_barrier(team) == WEFT_OK);
}

static void teams(weft_comm *world) {
  weft_comm *team = NULL, *again = NULL, *nested = NULL;
  int64_t members[64];
  if (ranks < 2 || ranks > 64) return;
  const int64_t half = ranks / 2, inside = rank < half * 2;
  if (inside) { /* even and odd ranks, the odd ones later */
    if (rank % 2) usleep(200000);
    LAW(weft_comm_split_stride(world, rank % 2, 2, half, &team) == WEFT_OK);
    on_team(team, rank / 2, half, 5 + (int)(rank % 2));
    ep_on(team, rank / 2, half);
  }
  for (int64_t i = 0; i < ranks; i++) /* all, backwards; twice, and both are used in turn */
    members[i] = ranks - 1 - i;
  LAW(weft_comm_split_list(world, members, ranks, &again) == WEFT_OK);
  on_team(again, ranks - 1 - rank, ranks, 4);
  if (inside && half > 1) { /* a team of a team */
    members[0] = half - 1;
    members[1] = 0;
    const int64_t own = rank / 2;
    if (own == 0 || own == half - 1) {
      LAW(weft_comm_split_list(team, members, 2, &nested) == WEFT_OK);
      on_team(nested, own == 0 ? 1 : 0, 2, 1);
      LAW(weft_comm_destroy(nested) == WEFT_OK);
    }
  }
  LAW(weft_comm_barrier(world) == WEFT_OK);
  LAW(weft_comm_destroy(again) == WEFT_OK);
  if (inside) LAW(weft_comm_destroy(team) == WEFT_OK);
}

/* ---- Ranks that do not come ---- */

static void late(weft_comm *world) {
  char expected[100];
  snprintf(expected, sizeof expected, "comm_barrier: rank %lld of %lld did not come within %d ms",
           (long long)ranks - 1, (long long)ranks, SHORT_MS);
  for (int round = 0; round < 2; round++) {
    if (rank == ranks - 1) usleep(SHORT_MS * 1500);
    LAW(weft_comm_barrier(world) == WEFT_ERR_TIMEOUT);
    LAW(strstr(weft_last_error(), expected) != NULL);
    weft_async_error error = WEFT_ASYNC_ERROR_INIT;
    LAW(weft_comm_async_error(world, &error) == WEFT_OK);
    LAW(error.status == WEFT_ERR_TIMEOUT && error.peer == ranks - 1);
    LAW(weft_comm_barrier(world) == WEFT_ERR_TIMEOUT); /* until a reset */
    LAW(weft_comm_reset(world) == WEFT_OK);
    LAW(weft_comm_async_error(world, &error) == WEFT_OK && error.status == WEFT_OK);
    ce_on(world, rank, ranks, round);
  }
  if (rank == 0) { /* when the others are out of their last call */
    usleep(500000);
    LAW(weft_comm_abort(world) == WEFT_OK);
  }
  LAW(weft_comm_barrier(world) == WEFT_ERR_ABORTED);
  LAW(strstr(weft_last_error(), "rank 0 has aborted the team") != NULL);
  LAW(weft_comm_reset(world) == WEFT_OK);
  LAW(weft_comm_barrier(world) == WEFT_OK);
}

/* The last rank dies or stands still in the middle: the others end within the time limit. */
static int gone(weft_comm *world, int signal_number) {
  LAW(weft_comm_barrier(world) == WEFT_OK);
  if (rank == ranks - 1) raise(signal_number);
  for (int i = 0; i < 1000; i++)
    if (weft_comm_barrier(world) != WEFT_OK) {
      fprintf(stderr, "rank %lld: %s\n", (long long)rank, weft_last_error());
      return 3;
    }
  return 0;
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "all";
  alarm(280);
  weft_comm *world = world_of(!strcmp(mode, "all") ? 60000 : SHORT_MS);
  int code = 0;
  if (!strcmp(mode, "killed")) return gone(world, SIGKILL);
  if (!strcmp(mode, "stopped")) return gone(world, SIGSTOP);
  if (!strcmp(mode, "late")) {
    late(world);
  } else {
    refusals();
    gathers(world);
    for (int variant = 0; variant < 12; variant++)
      ce_on(world, rank, ranks, variant);
    ep_on(world, rank, ranks);
    teams(world);
  }
  LAW(weft_comm_barrier(world) == WEFT_OK);
  LAW(weft_comm_destroy(world) == WEFT_OK);
  if (rank == 0) printf("%s: %lld processes, as it should be\n", mode, (long long)ranks);
  return code;
}
