#!/bin/sh
# A short visit to a machine with an NVIDIA GPU: builds what the named steps need, then runs them in their order, each under
# a time limit of its own, and stops at the first that fails. Run it from the root of the tree.
#   device_visit.sh STEP[=SECONDS] ...
#     test_NAME              a program of tests/gpu, such as test_ce_forward
#     NAME_bench             a benchmark of tests/gpu, such as ce_bench; its JSON is kept
#     info, program_ce, program_ep   the program weft: what it finds; ce and ep on the GPU with --verify at many shapes
#                            (needs jansson)
#     peers                  bench/peers.py with PEERS_FLAGS, beside the library
# Logs go to $OUT/visit.log (out/visit.log), results to $OUT/results.tar; the last lines are a table of steps and seconds.
# FLAGS_<step> holds a step's further flags, as in FLAGS_ce_backward_bench=--quick. JANSSON_ROOT: where jansson is.
set -eu
out=${OUT:-out}
build=${BUILD:-build-gpu}
mkdir -p "$out" "$build/results"
log=$out/visit.log
table=
: >"$log"

say() { echo "== $(date +%T) $*" | tee -a "$log"; }

finish() {
  nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader 2>/dev/null | tee -a "$log" || true
  tar -cf "$out/results.tar" -C "$build" results
  printf 'step                          status seconds\n%b' "$table"
}

# step NAME SECONDS COMMAND...: its output to the log, the last lines of it to stdout.
step() {
  name=$1 seconds=$2
  shift 2
  say "$name"
  began=$(date +%s) status=0
  timeout -k 5 "$seconds" "$@" >"$build/step.log" 2>&1 || status=$?
  cat "$build/step.log" >>"$log"
  tail -n "${LINES_SHOWN:-40}" "$build/step.log"
  table="$table$(printf '%-30s%6d %7d' "$name" $status $(($(date +%s) - began)))\n"
  # 77: not for this machine, which is no failure.
  if [ $status != 0 ] && [ $status != 77 ]; then
    finish
    exit $status
  fi
}

[ $# -gt 0 ] || {
  sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
  exit 2
}
targets='' program=OFF
for entry in "$@"; do
  case ${entry%%=*} in
  info | program_ce | program_ep) program=ON targets="$targets weft_cli" ;;
  peers) targets="$targets weft" ;;
  test_* | *_bench) targets="$targets ${entry%%=*}" ;;
  *)
    echo "device_visit.sh: no step \"${entry%%=*}\"" >&2
    exit 2
    ;;
  esac
done

build_all() {
  cmake -S . -B "$build" -DWEFT_CUDA=ON -DWEFT_BUILD_CLI=$program -DWEFT_BUILD_GPU_TESTS=ON \
    ${JANSSON_ROOT:+-DJANSSON_ROOT="$JANSSON_ROOT"} || return
  # shellcheck disable=SC2086 # names of targets, to be split
  cmake --build "$build" -j "$(nproc)" --target $targets
}
say build
began=$(date +%s) status=0
build_all >"$build/build.log" 2>&1 || status=$?
cat "$build/build.log" >>"$log"
table="$(printf '%-30s%6d %7d' build $status $(($(date +%s) - began)))\n"
if [ $status != 0 ]; then
  tail -40 "$build/build.log"
  finish
  exit 4
fi

if [ -z "${WEFT_CUBLAS:-}" ]; then
  WEFT_CUBLAS=$(find / -name 'libcublas.so.1[0-9]' -not -path '/proc/*' 2>/dev/null | head -1)
  export WEFT_CUBLAS
fi
nvidia-smi --query-gpu=name,driver_version,power.draw,clocks.sm,temperature.gpu --format=csv,noheader 2>/dev/null |
  tee -a "$log" || true

for entry in "$@"; do
  name=${entry%%=*} seconds=60 flags=''
  [ "$name" = "$entry" ] || seconds=${entry#*=}
  eval "flags=\${FLAGS_$name:-}"
  # shellcheck disable=SC2086 # flags, to be split
  case $name in
  info) step info "$seconds" "$build/cli/weft" info ;;
  program_*)
    step "$name" "$seconds" sh bench/device_program.sh "${name#program_}" "$build/cli/weft" "$build/results" $flags
    ;;
  peers)
    step peers "$seconds" python3 bench/peers.py --weft "$build/libweft.so" --json "$build/results/peers.json" \
      ${PEERS_FLAGS:-}
    ;;
  test_*) step "$name" "$seconds" "$build/tests/gpu/$name" $flags ;;
  *) step "$name" "$seconds" "$build/tests/gpu/$name" --json "$build/results/$name.json" $flags ;;
  esac
done
finish
