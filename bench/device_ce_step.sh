#!/bin/sh
# Builds the GPU tests on this machine, runs those of a step, then times it against cuBLAS. Run it from the root of the
# tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs and figures go to $OUT, or to out/. It stops at
# the first failure; QUICK=1 takes fewer cases, BENCH_FLAGS are the benchmark's.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu}
quick=
[ -n "${QUICK:-}" ] && quick=--quick

say() { echo "== $(date +%T) $*"; }

# run SECONDS LOG PROGRAM...: a program under a time limit; its last lines, and the end of the script where it fails.
run() {
  seconds=$1 log=$2
  shift 2
  say "$(basename "$1")"
  status=0
  timeout -k 5 "$seconds" "$@" >"$out/$log" 2>&1 || status=$?
  tail -"${LINES_SHOWN:-40}" "$out/$log"
  if [ $status -ne 0 ]; then
    say "status $status"
    [ -n "${GO_ON:-}" ] || exit $status
  fi
}

say build
{
  cmake -S . -B "$build" -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON &&
    cmake --build "$build" -j "$(nproc)" --target test_ce_backward test_ce_step ce_step_bench ce_backward_bench
} >"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}

# cuBLAS is a yardstick only: any copy on the machine will do.
if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
bin=$build/tests/gpu
run 60 test_ce_backward.txt "$bin/test_ce_backward" $quick
run 30 test_ce_step.txt "$bin/test_ce_step"
# shellcheck disable=SC2086 # flags, to be split
run 60 ce_step_bench.txt "$bin/ce_step_bench" --json "$out/ce_step_bench.json" ${BENCH_FLAGS:-}
if [ -n "${GROUPS_OF_ROWS:-}" ]; then # times by groups of rows, and phases, at one or two shapes
  for shape in $GROUPS_OF_ROWS; do
    run 45 "ce_step_groups_$shape.txt" "$bin/ce_backward_bench" --steps --shape "$shape"
  done
fi
nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true
say "done"
