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
timeout 200 "$build/tests/gpu/test_ce_forward" >"$out/test_ce_forward.txt" 2>&1 || status=$?
tail -30 "$out/test_ce_forward.txt"
say ce_bench
# shellcheck disable=SC2086 # flags, to be split
timeout "${BENCH_SECONDS:-200}" "$build/tests/gpu/ce_bench" --json "$out/ce_bench.json" ${BENCH_FLAGS---variants} \
  >"$out/ce_bench.txt" 2>&1 || status=$?
cat "$out/ce_bench.txt"
# Counters of a few launches, where the machine has the tool and lets it read them.
if [ -n "${COUNTERS:-}" ] && command -v ncu >/dev/null; then
  say counters
  timeout 100 ncu --clock-control none --csv --launch-skip 6 --launch-count 8 --kernel-name-base function \
    --metrics gpu__time_duration.sum,sm__cycles_elapsed.max,dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_read.sum,lts__t_sectors_op_write.sum,lts__t_sector_op_read_hit_rate.pct,sm__inst_executed.sum,sm__inst_executed_pipe_tensor.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed \
    "$build/tests/gpu/ce_bench" --tokens 4096 --hidden 4096 --vocab 131072 --block-ms 1 >"$out/counters.csv" 2>&1 || true
  grep -v "^#\|^==" "$out/counters.csv" | tail -90 | cut -d, -f1,5,13- | head -100
fi
nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true
say "done, status $status"
exit $status
