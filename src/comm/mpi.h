/* The MPI plugin from the library's side: opened once, at run time. Knows core. */
#ifndef WEFT_COMM_MPI_H
#define WEFT_COMM_MPI_H

#include <weft/weft.h>

#include "comm/mpi_engine.h"

/* The plugin's functions. UNSUPPORTED says what was tried. Thread-safe. */
weft_status weft__mpi_open(const weft__mpi_engine **out);

/* What MPI it is, or why there is none. Static storage. */
const char *weft__mpi_description(void);

#endif
