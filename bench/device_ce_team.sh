#!/bin/sh
# Builds the library with ce's GPU tests on this machine and runs those of teams: several ranks on one GPU, in one
# process. Run it from the root of the tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs go to
# $OUT, or to out/. QUICK=1: fewer cases. BENCH=1: times what the exchange costs, inside backward and behind it.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu-team}

say() { echo "== $(date +%T) $*"; }

# run LIMIT NAME COMMAND...
failed=0
run() {
  limit=$1 name=$2
  shift 2
  say "$name"
  status=0
  timeout "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
  tail -25 "$out/$name.txt"
  [ $status = 0 ] || {
    say "$name failed, status $status"
    failed=$status
  }
}

say build
cmake -S . -B "$build" -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON >"$out/build.log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" --target test_ce_forward test_ce_team test_ce_team_step ce_team_bench >>"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}
[ -n "${QUICK:-}" ] || run 40 test_ce_forward "$build/tests/gpu/test_ce_forward"
run "${TEAM_SECONDS:-90}" test_ce_team "$build/tests/gpu/test_ce_team" ${QUICK:+--quick}
run "${STEP_SECONDS:-90}" test_ce_team_step "$build/tests/gpu/test_ce_team_step" ${QUICK:+--quick}
# What is wrong or hangs is not worth timing.
[ $failed = 0 ] || exit $failed
[ -z "${BENCH:-}" ] || run 40 ce_team_bench "$build/tests/gpu/ce_team_bench" --json "$out/ce_team_bench.json"
[ -z "${BENCH:-}" ] || run 40 ce_team_bench_apart env WEFT_DX_APART=1 "$build/tests/gpu/ce_team_bench"
say "done, status $failed"
exit $failed
