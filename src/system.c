/* What this library finds on this machine. Stands above the backends and transports, and asks each.
 */
#include "comm/mpi.h"
#include "core/env.h"
#include "core/error.h"
#include "core/structs.h"
#include "cpu/blas.h"
#include "cpu/rows.h"
#include "cuda/cuda.h"

weft_status weft_system_info_get(weft_system_info *info) {
  weft_system_info found = WEFT_SYSTEM_INFO_INIT;
  found.cores = weft__cores();
  found.isa = weft__rows_best()->isa;
  found.cpu_available = weft__blas_open() == WEFT_OK;
  found.blas = weft__blas_description();
  found.cuda_available = weft__cuda_runs();
  found.cuda_reason = weft__cuda_description();
  const weft__mpi_engine *mpi = NULL;
  found.mpi_available = weft__mpi_open(&mpi) == WEFT_OK;
  found.mpi_reason = weft__mpi_description();
  found.nvshmem_reason = "this version has no NVSHMEM transport";
  return weft__struct_write(info, &found, sizeof found, sizeof found, "info");
}
