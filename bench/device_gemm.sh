#!/bin/sh
# Builds the GPU tests on this machine, runs them, then times the GEMM kernels against cuBLAS. Run it from the root of
# the tree, on a machine with an NVIDIA GPU, nvcc, a C compiler and CMake. Logs and figures go to $OUT, or to out/.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu}

say() { echo "== $(date +%T) $*"; }

say build
cmake -S tests/gpu -B "$build" -DWEFT_CUDA=ON >"$out/build.log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" >>"$out/build.log" 2>&1 || {
  tail -40 "$out/build.log"
  exit 4
}
cat "$build"/device/*.log >>"$out/build.log"

# cuBLAS is a yardstick only: any copy on the machine will do.
if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
echo "cuBLAS: ${WEFT_CUBLAS:-none}"
nvidia-smi --query-gpu=name,driver_version,power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true

status=0
say test_gemm
timeout 120 "$build/test_gemm" >"$out/test_gemm.txt" 2>&1 || status=$?
tail -30 "$out/test_gemm.txt"
say wrappers
# What this GPU answers, against what is kept in the tree, and against loom on this machine.
timeout 120 "$build/wrappers_gpu" --expect tests/gpu/wrappers/h200.txt \
  --lines "$out/wrappers.txt" --raw "$out/wrappers.raw" >"$out/wrappers_gpu.txt" 2>&1 || status=$?
echo "# loom, compared with these answers" >>"$out/wrappers_gpu.txt"
timeout 120 "$build/loom_wrappers" "$out/wrappers.txt" --raw "$out/wrappers.raw" \
  >>"$out/wrappers_gpu.txt" 2>&1 || status=$?
say "the GEMM in loom"
timeout 120 "$build/loom_gemm" --seeds 3 --variant sm90_gemm >>"$out/test_gemm.txt" 2>&1 || status=$?
tail -3 "$out/test_gemm.txt"
tail -30 "$out/wrappers_gpu.txt"
if [ -n "${NO_BENCH:-}" ]; then
  exit $status
fi
say bench
timeout "${BENCH_SECONDS:-240}" "$build/gemm_bench" --json "$out/gemm_bench.json" ${BENCH_FLAGS:-} >"$out/gemm_bench.txt" 2>&1 || status=$?
cat "$out/gemm_bench.txt"
say probes
timeout 100 "$build/gpu_probes" >"$out/probes.txt" 2>&1 || status=$?
# A process a rank needs MPS, started for this alone, with folders of its own; it changes no setting of the card.
if command -v nvidia-cuda-mps-control >/dev/null; then
  mps=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY="$mps/pipe" CUDA_MPS_LOG_DIRECTORY="$mps/log"
  mkdir "$mps/pipe" "$mps/log"
  nvidia-cuda-mps-control -d || true
  timeout 60 "$build/gpu_processes" >>"$out/probes.txt" 2>&1 || status=$?
  if home=$(tests/gpu/nvshmem/build.sh "$build" 2>>"$out/build.log"); then
    LD_LIBRARY_PATH="$home/lib:${LD_LIBRARY_PATH:-}" timeout 90 "$build/gpu_nvshmem" "$build/courier.cubin" \
      >>"$out/probes.txt" 2>&1 || status=$?
  else
    echo "NVSHMEM: not tried" >>"$out/probes.txt"
  fi
  echo quit | nvidia-cuda-mps-control || true
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
else
  echo "no nvidia-cuda-mps-control: processes not tried" >>"$out/probes.txt"
fi
cat "$out/probes.txt"
nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader || true
say "done, status $status"
exit $status
