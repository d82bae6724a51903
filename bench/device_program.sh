#!/bin/sh
# Runs `weft ce --backend cuda --verify` over shapes and options that differ in kind, and one that must be refused:
#   device_program.sh WEFT [RESULTS_DIR] [--quick]
# A line a case: its exit status, expected and found, and the worst error of each output. --quick leaves out the default
# shape, whose f64 oracle takes most of the time. Exit 1 where a status is not the expected one.
set -eu
weft=$1
results=${2:-out}
quick=${3:-}
mkdir -p "$results"
wrong=0 count=0

# run EXPECTED FLAGS...
run() {
  expected=$1
  shift
  count=$((count + 1)) status=0
  began=$(date +%s)
  "$weft" ce --backend cuda --format json "$@" >"$results/weft_ce_$count.json" 2>"$results/weft_ce.err" || status=$?
  verdict=ok
  [ $status = "$expected" ] || verdict="WRONG, expected status $expected" wrong=1
  echo "status $status, $(($(date +%s) - began)) s, $verdict: weft ce $*"
  [ ! -s "$results/weft_ce.err" ] || sed 's/^/    /' "$results/weft_ce.err"
  # one line a phase, out of pretty-printed JSON
  awk -F'[:,]' '/"phase"/ && inside { phase = $2 } /"results"/ { inside = 1 }
    inside && /"(ms_p50|tflops|nll|lse|entropy|dx|dw|wrong)"/ { gsub(/[" ]/, "", $1); line = line " " $1 $2 }
    inside && /"ok"/ { print "   " phase line; line = "" }' "$results/weft_ce_$count.json"
  rm -f "$results/weft_ce.err"
}

small="--warmup 1 --iters 3 --verify"
# shellcheck disable=SC2086 # flags, to be split
{
  run 0 --tokens 256 --hidden 512 --vocab 1024 $small
  run 0 --tokens 300 --hidden 520 --vocab 5003 --entropy --ignore 0.1 $small
  run 0 --tokens 257 --hidden 1001 --vocab 4099 --entropy $small
  run 0 --tokens 1 --hidden 8 --vocab 1 $small
  run 0 --tokens 513 --hidden 1024 --vocab 8192 --dtype f16 --entropy --ignore 0.5 $small
  run 0 --tokens 384 --hidden 768 --vocab 50257 --softcap 2 --temperature 0.7 --entropy $small
  run 0 --tokens 512 --hidden 256 --vocab 32000 --temperature 100 --dtype f16 $small
  run 0 --tokens 64 --hidden 128 --vocab 2000 --ignore 1 --entropy $small
  run 0 --tokens 1024 --hidden 1024 --vocab 32768 --phase step --workspace-mib 600 --entropy $small
  run 0 --tokens 512 --hidden 256 --vocab 32000 --workspace-mib 1 --entropy $small # many waves
  run 0 --tokens 0 --hidden 64 --vocab 100 --warmup 1 --iters 1
  run 3 --tokens 64 --hidden 64 --vocab 100 --dtype f32
  run 2 --tokens 2048 --hidden 256 --vocab 32000 --workspace-mib 1
  if [ "$quick" != --quick ]; then
    run 0 --verify
    run 0 --phase step --workspace-mib 1280
  fi
}
exit $wrong
