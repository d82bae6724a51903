#!/bin/sh
# Builds the GPU benchmarks and runs them in one go, each against its yardstick in the same run:
#   bench_gpu.sh BUILD_DIR [gemm] [forward] [backward] [step] [ep] [peers]
# All of them where none is named; one that this tree or machine does not have is left out with a word. JSON results go to
# $RESULTS (bench/results) as NAME_DEVICE.json, with device, driver, commit and date; tables go to stdout.
# BENCH_SECONDS: the longest that one may take (300). Exit 77 where there is no NVIDIA GPU or no nvcc.
set -eu
build=$1
shift
results=${RESULTS:-bench/results}
seconds=${BENCH_SECONDS:-300}

skip() {
  echo "bench_gpu.sh: skipped: $*"
  exit 77
}

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1) || gpu=
[ -n "$gpu" ] || skip "no GPU (nvidia-smi shows none)"
command -v nvcc >/dev/null || [ -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ] || skip "no nvcc"
name=${gpu%%,*} driver=${gpu##*, }
device=$(echo "${name#NVIDIA }" | tr 'A-Z ' 'a-z_' | tr -cd 'a-z0-9_.-')
commit=${WEFT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
date=$(date +%F)

# program NAME: what times NAME, as a target of the GPU tests.
program() {
  case $1 in
  gemm) echo gemm_bench ;;
  forward) echo ce_bench ;;
  backward) echo ce_backward_bench ;;
  step) echo ce_step_bench ;;
  ep) echo ep_bench ;;
  peers) echo weft ;;
  *)
    echo "bench_gpu.sh: no benchmark \"$1\": expected gemm, forward, backward, step, ep or peers" >&2
    exit 2
    ;;
  esac
}

[ $# -gt 0 ] || set -- gemm forward backward step ep peers
targets=
for bench in "$@"; do
  target=$(program "$bench")
  if [ "$target" = weft ] || [ -e "tests/gpu/$target.c" ]; then targets="$targets $target"; fi
done
mkdir -p "$results" "$build"
configure="-DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON"
# shellcheck disable=SC2086 # flags and names of targets, to be split
{ cmake -S . -B "$build" $configure && cmake --build "$build" -j "$(nproc)" --target $targets; } >"$build/bench.log" 2>&1 || {
  tail -40 "$build/bench.log"
  exit 4
}

# cuBLAS is a yardstick only, opened by the benchmarks and not by the library: any copy on the machine will do.
if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
echo "# $name, driver $driver, commit $commit, $date, cuBLAS ${WEFT_CUBLAS:-not found}"

# keep FROM TO: a benchmark's JSON object, with what it does not know itself.
keep() {
  sed "1s/^{/{\"commit\":\"$commit\",\"date\":\"$date\",\"nvidia_driver\":\"$driver\",/" "$1" >"$2"
}

status=0
for bench in "$@"; do
  target=$(program "$bench")
  json=$build/$bench.json code=0
  rm -f "$json"
  echo "== $bench"
  if [ "$bench" = peers ]; then
    timeout -k 5 "$seconds" env WEFT_COMMIT="$commit" python3 bench/peers.py --weft "$build/libweft.so" \
      --json "$results/peers_$device.json" || code=$?
  elif [ -e "tests/gpu/$target.c" ]; then
    timeout -k 5 "$seconds" "$build/tests/gpu/$target" --json "$json" || code=$?
    if [ -s "$json" ] && [ $code = 0 ]; then keep "$json" "$results/${bench}_$device.json"; fi
  else
    echo "not in this tree"
  fi
  case $code in
  0) ;;
  77) echo "skipped" ;;
  *)
    echo "$bench: status $code"
    [ $status != 0 ] || status=$code
    ;;
  esac
done
exit $status
