#!/bin/sh
# Builds the GPU tests on this machine, runs those of the backward kernel, then times it against cuBLAS. Run it from the
# root of the tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs and figures go to $OUT, or to out/.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu}

say() { echo "== $(date +%T) $*"; }

say build
cmake -S tests/gpu -B "$build" -DWEFT_CUDA=ON >"$out/build.log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" --target test_ce_backward ce_backward_bench >>"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}
cat "$build"/device/*ce*.log >>"$out/build.log"

# cuBLAS is a yardstick only: any copy on the machine will do.
if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
echo "cuBLAS: ${WEFT_CUBLAS:-none}"
nvidia-smi --query-gpu=name,driver_version,power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true

status=0
say test_ce_backward
timeout 90 "$build/test_ce_backward" >"$out/test_ce_backward.txt" 2>&1 || status=$?
tail -40 "$out/test_ce_backward.txt"
say bench
timeout "${BENCH_SECONDS:-150}" "$build/ce_backward_bench" --json "$out/ce_backward_bench.json" ${BENCH_FLAGS:-} \
  >"$out/ce_backward_bench.txt" 2>&1 || status=$?
cat "$out/ce_backward_bench.txt"
nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true
say "done, status $status"
exit $status
