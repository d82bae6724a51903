/* Runs the ranks of an in-process world as threads, for tests of anything collective. Uses the
 * public API alone. */
#ifndef WEFT_TESTS_SUPPORT_RANKS_H
#define WEFT_TESTS_SUPPORT_RANKS_H

#include <weft/weft.h>

/* One rank's work. Must not use cmocka's asserts, which jump out of their own thread only: it
 * returns a status, and keeps what it found in `user`. The comm is destroyed by the runner. */
typedef weft_status (*ranks_fn)(int64_t rank, weft_comm *comm, void *user);

typedef struct ranks_result {
  weft_status status; /* what the rank's function returned */
  char error[512];    /* weft_last_error() of its thread then, empty when there was none */
} ranks_result;

/* Makes a world from `config`, runs `fn` on config->ranks threads at once, waits for all and
 * destroys the world. `results` holds config->ranks. The return value is about the world and the
 * threads, not about what the ranks returned; where it is bad, no rank ran. */
weft_status ranks_run(const weft_world_config *config, ranks_fn fn, void *user,
                      ranks_result *results);

/* The same with a default world of `ranks` on `hosts` and a timeout of `timeout_ms` (0: default).
 */
weft_status ranks_run_simple(int64_t ranks, int64_t hosts, int64_t timeout_ms, ranks_fn fn,
                             void *user, ranks_result *results);

/* Runs `fn` on `ranks` threads without a world (comm is NULL), for ranks that make their own. */
weft_status ranks_run_bare(int64_t ranks, ranks_fn fn, void *user, ranks_result *results);

/* The first rank whose status is not `expected`, or -1. Prints it with its error to stderr. */
int64_t ranks_first_not(const ranks_result *results, int64_t ranks, weft_status expected);

/* Sleeps without regard to signals. */
void ranks_sleep_ms(int64_t ms);

#endif
