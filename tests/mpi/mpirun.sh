#!/bin/sh
# Starts processes as Open MPI does it in CI: as root, with more of them than cores, without waiting
# busily, and without a network.   mpirun.sh MPIRUN PROCESSES [fails] COMMAND...
# With `fails`, an end with a status that is not 0 is what is right.
set -u
mpirun=$1 processes=$2
shift 2
fails=0
if [ "$1" = fails ]; then fails=1 && shift; fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_plm_rsh_agent=
# A machine on which MPI can start nothing at all says nothing about us.
if ! said=$("$mpirun" -n "$processes" true 2>&1); then
  echo "skipped: $mpirun can't start $processes processes of \"true\" here: $said"
  exit 77
fi
"$mpirun" -n "$processes" "$@"
code=$?
[ $fails = 0 ] && exit $code
[ $code != 0 ] || { echo "ended with 0, expected a failure" && exit 1; }
echo "ended with $code, as it should"
