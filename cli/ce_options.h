/* The flags of `weft ce`: their table, defaults, and what they must be together. */
#ifndef CLI_CE_OPTIONS_H
#define CLI_CE_OPTIONS_H

#include <weft/weft.h>

#include "options.h"

typedef enum ce_phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_STEP, PHASE_ALL } ce_phase;
typedef enum ce_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA } ce_backend;
typedef enum ce_transport { TRANSPORT_INPROC, TRANSPORT_MPI, TRANSPORT_NVSHMEM } ce_transport;
typedef enum ce_format { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSON } ce_format;
typedef enum ce_arch { ARCH_CPU, ARCH_SM90, ARCH_SM100 } ce_arch;

typedef struct ce_options {
  int64_t tokens, hidden, vocab; /* −1: not given */
  int64_t ranks, hosts;          /* ranks 0: as many as the launcher started */
  weft_dtype dtype;              /* DEFAULT: not given */
  double temperature, softcap, ignore;
  int64_t ignore_index, workspace_mib, seed;
  int64_t warmup, iters; /* −1: not given */
  int phase, backend, transport, dx, format, arch;
  int64_t sms;
  bool entropy, verify, plan, help;
  const char *x, *w, *targets, *out; /* NULL: not given */
} ce_options;

extern const char *const FORMAT_NAMES[];    /* of ce_format */
extern const char *const PHASE_NAMES[];     /* of ce_phase */
extern const char *const TRANSPORT_NAMES[]; /* of ce_transport */
extern const char *const BACKEND_NAMES[];   /* of ce_backend */
extern const char *const DX_NAMES[];        /* of weft_dx_mode */
extern const char *const ARCH_NAMES[];      /* of ce_arch */

/* Parses arguments into `options`; sizes, dtype and counts that were not given stay so. */
bool ce_options_parse(ce_options *options, int count, char **arguments, error *error);

/* Fills in what was not given, where it does not come from a file. `gpu`: for a GPU. */
void ce_options_defaults(ce_options *options, bool gpu);

void ce_options_help(void);

#endif
