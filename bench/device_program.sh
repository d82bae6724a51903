#!/bin/sh
# Runs the program on a GPU with --verify, over shapes and options that differ in kind, and some that must be refused:
#   device_program.sh ce|ep WEFT [RESULTS_DIR] [--quick]
# A line a case: its exit status, expected and found; a line a phase: its time and the worst error of each output. --quick
# leaves out the largest, whose checks on the host take most of the time. Exit 1 where a status is not the expected one.
set -eu
command=$1 weft=$2
results=${3:-out}
quick=${4:-}
mkdir -p "$results"
wrong=0 count=0

# run EXPECTED FLAGS...
run() {
  expected=$1
  shift
  count=$((count + 1)) status=0
  json=$results/weft_${command}_$count.json
  began=$(date +%s)
  "$weft" "$command" --backend cuda --format json "$@" >"$json" 2>"$json.err" || status=$?
  verdict=ok
  [ $status = "$expected" ] || verdict="WRONG, expected status $expected" wrong=1
  echo "status $status, $(($(date +%s) - began)) s, $verdict: weft $command $*"
  sed 's/^/    /' "$json.err"
  rm -f "$json.err"
  # one line a phase, out of pretty-printed JSON
  awk -F'[:,]' '/"results"/ { inside = 1 }
    inside && /"phase"/ { phase = $2 }
    inside && /"(ms_p50|us_p50|tflops|gbps|nll|lse|entropy|dx|dw|wrong)"/ {
      gsub(/[" ]/, "", $1)
      line = line " " $1 $2
    }
    inside && /"ok"/ { print "   " phase line; line = "" }' "$json"
}

# shellcheck disable=SC2086 # flags, to be split
ce() {
  few="--warmup 1 --iters 3 --verify"
  run 0 --tokens 256 --hidden 512 --vocab 1024 $few
  run 0 --tokens 300 --hidden 520 --vocab 5003 --entropy --ignore 0.1 $few
  run 0 --tokens 257 --hidden 1001 --vocab 4099 --entropy $few
  run 0 --tokens 1 --hidden 8 --vocab 1 $few
  run 0 --tokens 513 --hidden 1024 --vocab 8192 --dtype f16 --entropy --ignore 0.5 $few
  run 0 --tokens 384 --hidden 768 --vocab 50257 --softcap 2 --temperature 0.7 --entropy $few
  run 0 --tokens 512 --hidden 256 --vocab 32000 --temperature 100 --dtype f16 $few
  run 0 --tokens 64 --hidden 128 --vocab 2000 --ignore 1 --entropy $few
  run 0 --tokens 1024 --hidden 1024 --vocab 32768 --phase step --workspace-mib 600 --entropy $few
  run 0 --tokens 1000 --hidden 1032 --vocab 32767 --phase step --workspace-mib 600 $few # keeps exponentials
  run 0 --tokens 512 --hidden 256 --vocab 32000 --workspace-mib 1 --entropy $few        # many waves
  run 0 --tokens 0 --hidden 64 --vocab 100 --warmup 1 --iters 1
  run 3 --tokens 64 --hidden 64 --vocab 100 --dtype f32
  run 2 --tokens 2048 --hidden 256 --vocab 32000 --workspace-mib 1
  [ "$quick" != --quick ] || return 0
  run 0 --verify
  run 0 --phase step --workspace-mib 1280
}

# shellcheck disable=SC2086 # flags, to be split
ep() {
  few="--warmup 1 --iters 3 --verify"
  small="--tokens 100 --hidden 512 --experts 32 --topk 4"
  for strategy in random random-same local-rand local-same remote-rand; do
    run 0 $small --strategy $strategy $few
    run 0 $small --strategy $strategy --dtype fp8 --layout packed --ranks 2 $few
  done
  run 0 $small --ranks 1 $few
  run 0 --tokens 33 --hidden 4104 --experts 32 --topk 2 --ranks 8 --dtype fp8 $few
  run 0 --tokens 1 --hidden 8 --experts 4 --topk 1 --ranks 4 $few
  run 0 --tokens 0 $few
  run 0 $small --fence wide $few
  run 2 $small --fence off
  [ "$quick" != --quick ] || return 0
  run 0 --repeat 3 --iters 100 --verify
  run 0 --repeat 3 --iters 100 --dtype fp8 --verify
  run 0 --tokens 128 --ranks 8 --repeat 3 --iters 100 --verify
}

case $command in
ce) ce ;;
ep) ep ;;
*)
  echo "device_program.sh: no command \"$command\": expected ce or ep" >&2
  exit 2
  ;;
esac
exit $wrong
