#!/bin/sh
# Builds the tests that need a GPU and runs them, one at a time, with those of loom that hold a GPU's kept answers:
#   test_gpu.sh BUILD_DIR [CTEST_FLAGS...]
# WEFT_TEST_SANITIZER=memcheck (or racecheck, ...): also runs the program at small shapes under that tool of
# compute-sanitizer, where it and jansson are. Exit 77 where there is no NVIDIA GPU or no nvcc.
set -eu
build=$1
shift

skip() {
  echo "test_gpu.sh: skipped: $*"
  exit 77
}

nvidia-smi -L >/dev/null 2>&1 || skip "no GPU (nvidia-smi shows none)"
command -v nvcc >/dev/null || [ -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ] || skip "no nvcc"
mkdir -p "$build"
configure="-DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_GPU_TESTS=ON"
[ -z "${WEFT_TEST_SANITIZER:-}" ] || configure="-DWEFT_CUDA=ON -DWEFT_BUILD_CLI=ON -DWEFT_BUILD_GPU_TESTS=ON"
# shellcheck disable=SC2086 # flags, to be split
{ cmake -S . -B "$build" $configure && cmake --build "$build" -j "$(nproc)"; } >"$build/test.log" 2>&1 || {
  tail -40 "$build/test.log"
  exit 4
}
status=0
ctest --test-dir "$build" -R '^gpu\.|^loom\.(gemm|wrappers)$' -LE full --output-on-failure "$@" || status=$?
if [ -n "${WEFT_TEST_SANITIZER:-}" ]; then
  for shape in "--tokens 64 --hidden 64 --vocab 500" "--tokens 130 --hidden 72 --vocab 777 --entropy --ignore 0.2"; do
    # shellcheck disable=SC2086 # flags, to be split
    compute-sanitizer --tool "$WEFT_TEST_SANITIZER" --error-exitcode 9 "$build/cli/weft" ce --backend cuda --warmup 0 \
      --iters 1 --verify $shape || status=$?
  done
fi
exit $status
