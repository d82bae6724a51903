#!/usr/bin/env bash
# Small limits on address space: whatever they are, the program is right or says in words why not,
# in bounded time. (OpenBLAS asks again for ever where mmap refuses it a buffer.)
#   limits.sh PROGRAM
set -u
program=$1
wrong=0 right=0 refused=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

attempt() { # limit in KiB, words of the program
  local limit=$1 code
  shift
  (
    ulimit -v "$limit"
    exec timeout --kill-after=5 60 "$program" "$@"
  ) >"$output" 2>&1
  code=$?
  case $code in
  0) right=$((right + 1)) ;;
  4)
    if grep -q '^weft: ' "$output"; then
      grep -q 'ulimit -v is' "$output" && refused=$((refused + 1))
      return
    fi
    echo "ulimit -v $limit: weft $*: exit 4 without a word" && wrong=1
    ;;
  *)
    echo "ulimit -v $limit: weft $*: exit $code, expected 0 or 4" && tail -3 "$output"
    wrong=1
    ;;
  esac
}

small="--tokens 96 --hidden 64 --vocab 507 --iters 1 --verify"
# shellcheck disable=SC2086 # the flags are words
for limit in 60000 100000 150000 200000 250000 300000 400000 500000 700000 1000000 2000000; do
  attempt $limit ce $small
  attempt $limit ce $small --ranks 3
  WEFT_NUM_THREADS=3 attempt $limit ce $small --ranks 2
  WEFT_NUM_THREADS=1000 OPENBLAS_NUM_THREADS=4 attempt $limit ce $small --phase forward
  attempt $limit info
  attempt $limit ep --tokens 16 --hidden 64 --experts 8 --topk 2 --iters 1 --verify
done
before=$right
attempt 4000000 ce $small --ranks 3 # room for all: this one is right
[ $right -gt $before ] || { echo "ulimit -v 4000000 is not enough for 3 ranks" && wrong=1; }
echo "$right right, $refused refused with the limit's name"
[ $wrong = 0 ] && [ $refused -gt 0 ]
