#!/bin/sh
# What the tools of bench/ do where there is no GPU, and with programs of the test's own in place of the benchmarks:
#   tools.sh SOURCE_DIR
# A failing benchmark ends in its status, results carry device, driver, commit and date, a visit stops at the first failure.
set -eu
source=$1
cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases=0

fail() {
  echo "FAILED: $*"
  exit 1
}
# expect STATUS WORDS COMMAND...: its status, and words that its output holds.
expect() {
  wanted=$1 words=$2 status=0
  shift 2
  cases=$((cases + 1))
  "$@" >"$work/output" 2>&1 || status=$?
  [ $status = "$wanted" ] || { cat "$work/output"; fail "status $status, expected $wanted: $*"; }
  [ -z "$words" ] || grep -q -e "$words" "$work/output" || { cat "$work/output"; fail "no \"$words\": $*"; }
}

# A machine with a GPU, by its tools: nvidia-smi names one, cmake builds nothing.
mkdir -p "$work/bin" "$work/none"
cat >"$work/bin/nvidia-smi" <<'E'
#!/bin/sh
echo "NVIDIA H900 SXM, 580.1.2"
E
printf '#!/bin/sh\nexit 0\n' >"$work/bin/cmake"
printf '#!/bin/sh\nexit 0\n' >"$work/bin/nvcc"
printf '#!/bin/sh\nexit 9\n' >"$work/none/nvidia-smi"
chmod +x "$work"/bin/* "$work"/none/*
build=$work/build
mkdir -p "$build/tests/gpu"
# program NAME STATUS: stands for a benchmark that writes a result.
program() {
  cat >"$build/tests/gpu/$1" <<E
#!/bin/sh
echo "ran $1 \$*"
[ "\$1" != --json ] || printf '{"op":"$1","device":"x","results":[\n{"ms":1}]}\n' >"\$2"
exit $2
E
  chmod +x "$build/tests/gpu/$1"
}
program gemm_bench 0
program ce_bench 0
program ce_backward_bench 3
program ce_step_bench 77
cd "$source"
export WEFT_CUBLAS=/nowhere WEFT_COMMIT=abc1234 RESULTS="$work/results" OUT="$work/out" BUILD="$build"

PATH="$work/none:$PATH" expect 77 "skipped: no GPU" sh scripts/bench_gpu.sh "$build"
PATH="$work/none:$PATH" expect 0 "skipped: no GPU" make bench-gpu BUILD="$build"
PATH="$work/none:$PATH" expect 77 "skipped: no GPU" sh scripts/test_gpu.sh "$build"
PATH="$work/none:$PATH" expect 0 "skipped: no GPU" make test-gpu BUILD="$build"
PATH="$work/bin:$PATH"
expect 2 'no benchmark "gem"' sh scripts/bench_gpu.sh "$build" gem
expect 0 "NVIDIA H900 SXM, driver 580.1.2, commit abc1234" sh scripts/bench_gpu.sh "$build" gemm forward
expect 3 "backward: status 3" sh scripts/bench_gpu.sh "$build" backward forward
expect 0 "^skipped" sh scripts/bench_gpu.sh "$build" step
[ ! -e "$work/results/backward_h900_sxm.json" ] || fail "the result of a benchmark that failed was kept"
[ ! -e "$work/results/step_h900_sxm.json" ] || fail "the result of a benchmark that was skipped was kept"
for name in gemm forward; do
  expect 0 '"commit":"abc1234","date":"20[0-9-]*","nvidia_driver":"580.1.2","op":' \
    cat "$work/results/${name}_h900_sxm.json"
done

printf '#!/bin/sh\necho "ctest $*"\nexit 8\n' >"$work/bin/ctest"
chmod +x "$work/bin/ctest"
expect 8 "ctest --test-dir $build -R .gpu.* -V" sh scripts/test_gpu.sh "$build" -V
printf '#!/bin/sh\nexit 1\n' >"$work/bin/cmake"
expect 4 "" sh scripts/test_gpu.sh "$build"
expect 4 "" sh scripts/bench_gpu.sh "$build" gemm
printf '#!/bin/sh\nexit 0\n' >"$work/bin/cmake"

expect 2 'no step "gemm"' sh bench/device_visit.sh gemm
expect 2 "device_visit.sh STEP" sh bench/device_visit.sh
expect 0 "^gemm_bench  *0 " sh bench/device_visit.sh gemm_bench=5 ce_step_bench
grep -q "^ce_step_bench  *77 " "$work/output" || fail "a step that was skipped ended the visit"
tar -tf "$work/out/results.tar" | grep -q "results/gemm_bench.json" || fail "no result in results.tar"
expect 3 "^ce_backward_bench  *3 " sh bench/device_visit.sh ce_backward_bench ce_bench
if grep -q "ran ce_bench" "$work/output"; then fail "a visit went on after a failure"; fi
FLAGS_ce_bench="--block-ms 7" expect 0 "ran ce_bench .*--block-ms 7" sh bench/device_visit.sh ce_bench
printf '#!/bin/sh\nsleep 20\n' >"$build/tests/gpu/ce_bench"
expect 124 "^ce_bench  *124 " sh bench/device_visit.sh ce_bench=1

if ! command -v python3 >/dev/null; then
  echo "$cases cases passed; no python3, so peers.py was not tried"
  exit 0
fi
mkdir "$work/lib"
printf 'raise ImportError("none here")\n' >"$work/lib/torch.py"
export PYTHONPATH="$work/lib" PYTHONDONTWRITEBYTECODE=1
expect 77 "skipped: none here" python3 bench/peers.py
expect 2 "is not tokens x hidden x vocabulary" python3 bench/peers.py 4096x4096
expect 2 "'quak' is none of" python3 bench/peers.py --peers quak
expect 2 "at least 1" python3 bench/peers.py --rounds 0
expect 2 "more than 0" python3 bench/peers.py --block-ms 0
published='import sys; sys.path.insert(0, "bench"); import peers; print(peers.published(tuple(map(int, sys.argv[1:]))))'
expect 0 "'forward': {'ms': 2.852}, 'both': {'ms': 10.95}" python3 -c "$published" 4096 4096 131072
expect 0 "'forward': {'ms': 10.923}, 'both': {'ms': 43.588}" python3 -c "$published" 8192 7168 129280
expect 0 "^None" python3 -c "$published" 4096 4096 4096
cat >"$work/peers.json" <<'E'
{"device": "H900", "driver": "1", "cuda": "13", "commit": "abc", "date": "2026-01-02", "shapes": {"4x8x16": [
 {"name": "one", "version": "one 1.2", "gradient": "mean", "both": {"ms": 2.5, "ratio": 1.25, "to_weft": 1.5, "mib": 7.0}},
 {"name": "two", "failed": "ImportError: no"}]}}
E
expect 0 "^| one (mean) |  |  |  |  | 2.500 | 1.250 | 1.500 | 7 |  |$" python3 bench/peers.py --table "$work/peers.json"
grep -q "^| two | did not run: ImportError: no |" "$work/output" || fail "a head that failed is not in the table"
grep -q "one: one 1.2" "$work/output" || fail "no version in the table"
python3 tests/bench/layout.py bench >"$work/layout.c"
"$cc" -std=c11 -Iinclude -o "$work/layout" "$work/layout.c"
"$work/layout" >"$work/layout.txt"
expect 0 "lines agree" python3 tests/bench/layout.py bench "$work/layout.txt"
sed 's/^weft_ce_args.dx 1/weft_ce_args.dx 2/' "$work/layout.txt" >"$work/other.txt"
expect 1 "weft_ce_args.dx" python3 tests/bench/layout.py bench "$work/other.txt"
python3 -c 'import json, sys; [json.load(open(name)) for name in sys.argv[1:]]' bench/results/*.json bench/baseline/*.json
echo "$cases cases passed"
