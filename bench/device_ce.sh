#!/bin/sh
# Builds the library with ce's GPU tests and benchmark on this machine, runs them, and times forward against cuBLAS. Run
# it from the root of the tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs and figures go to
# $OUT, or to out/. BENCH_FLAGS are the benchmark's.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu-ce}

say() { echo "== $(date +%T) $*"; }

say build
cmake -S . -B "$build" -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON >"$out/build.log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" --target test_ce_forward ce_bench >>"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}
if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
nvidia-smi --query-gpu=name,driver_version,power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true

status=0
say test_ce_forward
timeout "${TEST_SECONDS:-25}" "$build/tests/gpu/test_ce_forward" >"$out/test_ce_forward.txt" 2>&1 || status=$?
tail -30 "$out/test_ce_forward.txt"
# A kernel that is wrong or hangs is not worth timing.
[ $status = 0 ] || exit $status
say ce_bench
# shellcheck disable=SC2086 # flags, to be split
timeout "${BENCH_SECONDS:-60}" "$build/tests/gpu/ce_bench" --json "$out/ce_bench.json" ${BENCH_FLAGS---variants} \
  >"$out/ce_bench.txt" 2>&1 || status=$?
cat "$out/ce_bench.txt"
# The program itself, with PROGRAM=1 and where its JSON library is.
if [ $status = 0 ] && [ -n "${PROGRAM:-}" ] && pkg-config --exists jansson 2>/dev/null; then
  say weft ce
  cmake -S . -B "$build" -DWEFT_BUILD_CLI=ON >>"$out/build.log" 2>&1 &&
    cmake --build "$build" -j "$(nproc)" --target weft_cli >>"$out/build.log" 2>&1 &&
    timeout 20 "$build/cli/weft" ce --backend cuda --phase "${PHASE:-forward}" --entropy --ignore 0.1 --tokens 3000 \
      --hidden 1000 --vocab 20000 --verify >"$out/weft_ce.txt" 2>&1 &&
    timeout 60 "$build/cli/weft" ce --backend cuda --phase "${PHASE:-forward}" --verify >>"$out/weft_ce.txt" 2>&1 ||
    status=$?
  cat "$out/weft_ce.txt"
fi
nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true
say "done, status $status"
exit $status
