#!/bin/sh
# Builds the library with ep's GPU tests on this machine, runs them and times dispatch and combine. Run it from the root
# of the tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs go to $OUT, or to out/. QUICK=1: fewer
# cases.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu-ep}

say() { echo "== $(date +%T) $*"; }

# run LIMIT NAME COMMAND...: stops the script where the command fails
run() {
  limit=$1 name=$2
  shift 2
  say "$name"
  status=0
  timeout "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
  tail -30 "$out/$name.txt"
  [ $status = 0 ] || {
    say "$name failed, status $status"
    [ -n "${GO_ON:-}" ] || exit $status
  }
}

say build
cmake -S . -B "$build" -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON >"$out/build.log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" --target test_ep ep_bench >>"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}
run "${TEST_SECONDS:-60}" test_ep "$build/tests/gpu/test_ep" ${QUICK:+--quick}
run "${BENCH_SECONDS:-60}" ep_bench "$build/tests/gpu/ep_bench" ${QUICK:+--quick} --json "$out/ep_bench.json"
say done
