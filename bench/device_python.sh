#!/bin/sh
# The Python package on a machine with an NVIDIA GPU and torch: builds library and module, runs the torch tests on the
# GPU (autograd, operators, compiling, graphs, streams, memory, misuse), and times autograd against the C calls. Run it
# from the root of the tree; needs nvcc, a C compiler, CMake, Ninja, torch. Where Python has no tvm_ffi or pytest, their wheels
# are taken from WHEELS (.whl). Logs and figures go to $OUT, or to out/.
set -eu
out=${OUT:-out}
mkdir -p "$out"
build=${BUILD:-build-gpu-python}
wheels=${WHEELS:-.whl}
say() { echo "== $(date +%T) $*"; }

say build
cmake -S . -B "$build" -G Ninja -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=OFF -DWEFT_BUILD_EXAMPLES=OFF >"$out/python_build.log" 2>&1 &&
  timeout 400 cmake --build "$build" --target weft weft_ffi -j "$(nproc)" >>"$out/python_build.log" 2>&1 || {
  tail -40 "$out/python_build.log"
  exit 4
}
if ! python3 -c 'import tvm_ffi, pytest' 2>/dev/null; then
  site=$(mktemp -d)
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
  PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
PYTHONPATH=$(pwd)/python${PYTHONPATH:+:$PYTHONPATH}
WEFT_FFI_LIBRARY=$(pwd)/$build/python/weft_ffi.so
export PYTHONPATH WEFT_FFI_LIBRARY PYTHONDONTWRITEBYTECODE=1

status=0
say tests
timeout "${TEST_SECONDS:-120}" python3 -m pytest -q -p no:cacheprovider --show-capture=no --durations=5 \
  tests/python/test_torch.py >"$out/python_tests.txt" 2>&1 || status=$?
grep -E '^(FAILED|ERROR|E  )|passed|failed|skipped' "$out/python_tests.txt" | cut -c1-200 | head -40
[ $status = 0 ] || [ -n "${GO_ON:-}" ] || exit $status
say bench
timeout "${BENCH_SECONDS:-60}" python3 bench/python_ce.py --json "$out/python_ce.json" ${SHAPES:-} >"$out/python_ce.txt" 2>&1 ||
  status=$?
tail -30 "$out/python_ce.txt"
say "done, status $status"
exit $status
