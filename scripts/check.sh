#!/usr/bin/env bash
# Runs every protocol of `weft check` and holds it to what is expected of it (weft check --list).
#   check.sh quick BUILD_DIR   3 seeds of everything, in both readings, and every call site left out
#   check.sh full BUILD_DIR    200 seeds of what branches on flags, 16 of kernels, every call site left out under
#                              every policy. Finished items are kept in BUILD_DIR/check-full.state and skipped the
#                              next time, until the program changes.
set -euo pipefail
mode=${1:?quick or full} build=${2:?the build folder}
weft=$build/cli/weft
[ -x "$weft" ] || { echo "check.sh: no program $weft" >&2; exit 2; }
case $mode in quick | full) ;; *) echo "check.sh: \"$mode\": expected quick or full" >&2; exit 2 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 passed=0 skipped=0

# What a protocol must show: clean: no seed flagged; flagged: every seed; flagged once: one at least.
verdicts() { # seeds, --lenient or nothing, protocols...
  local seeds=$1 reading=$2 status=0
  shift 2
  # shellcheck disable=SC2086 # the reading is a word or none
  "$weft" check --list --format csv $reading >"$work/list"
  # shellcheck disable=SC2086
  "$weft" check "$@" --seeds "$seeds" $reading --format csv >"$work/rows" || status=$?
  [ "$status" -le 1 ] || { echo "check.sh: weft check answered $status" >&2; return 1; }
  awk -F, -v count=$# -v seeds="$seeds" -v reading="${reading:-strict}" '
    NR == FNR { expected[$1] = $2; next }
    FNR > 1 {
      name = $1
      gsub(/"/, "", name)
      rows++
      flagged = $5
      good = 0
      if (expected[name] == "clean") good = flagged == 0
      if (expected[name] == "flagged") good = flagged == seeds
      if (expected[name] == "flagged once") good = flagged > 0
      if (!good || $4 != seeds) {
        wrong++
        printf "FAILED %s (%s): %d of %d seeds flagged, expected %s: %s\n", name, reading, flagged, $4, expected[name], $0
      }
    }
    END {
      if (rows != count) { printf "FAILED: %d rows for %d protocols\n", rows, count; exit 1 }
      exit wrong > 0
    }' "$work/list" "$work/rows"
}

# Every call site of the protocols left out in turn.
drops() { # seeds, protocols...
  local seeds=$1
  shift
  "$weft" check "$@" --drop-each --seeds "$seeds" >"$work/drops" && return 0
  grep -v ' found in ' "$work/drops" || true
  return 1
}

item() { # a name, then what runs it
  local name=$1 start=$SECONDS
  shift
  if [ "$mode" = full ] && grep -qxF "$name" "$state"; then
    skipped=$((skipped + 1))
    return
  fi
  if "$@"; then
    passed=$((passed + 1))
    echo "ok     $name ($((SECONDS - start)) s)"
    if [ "$mode" = full ]; then echo "$name" >>"$state"; fi
  else
    failed=$((failed + 1))
    echo "FAILED $name"
  fi
}

"$weft" check --list --format csv | tail -n +2 >"$work/all"
mapfile -t all < <(cut -d, -f1 "$work/all")
mapfile -t clean < <(awk -F, '$2 == "clean" { print $1 }' "$work/all")
[ "${#all[@]}" -gt 0 ] || { echo "check.sh: no protocols" >&2; exit 1; }

if [ "$mode" = quick ]; then
  # A form that is flagged once may need more than 3 seeds; it gets 40.
  # The loss head's kernels take seconds a seed: here one of each. Their call sites, and those of dispatch and
  # combine, are left out in the full form.
  mapfile -t always < <(awk -F, '$2 != "flagged once" && $1 !~ /^ce-/ { print $1 }' "$work/all")
  mapfile -t heads < <(awk -F, '$1 ~ /^ce-/ { print $1 }' "$work/all")
  mapfile -t clean < <(printf '%s\n' "${clean[@]}" | grep -v '^ce-\|^ep-[^c]')
  mapfile -t once < <(awk -F, '$2 == "flagged once" { print $1 }' "$work/all")
  item "${#always[@]} protocols, 3 seeds, strict" verdicts 3 "" "${always[@]}"
  item "${#always[@]} protocols, 3 seeds, lenient" verdicts 3 --lenient "${always[@]}"
  item "${#once[@]} protocols that look once, 40 seeds" verdicts 40 "" "${once[@]}"
  item "${#heads[@]} forms of the loss head's kernels, 1 seed, strict" verdicts 1 "" "${heads[@]}"
  item "every call site of ${#clean[@]} protocols left out, 3 seeds" drops 3 "${clean[@]}"
else
  state=$build/check-full.state
  program=$(cksum <"$weft")
  [ "$(head -n 1 "$state" 2>/dev/null)" = "$program" ] || echo "$program" >"$state"
  for name in "${all[@]}"; do
    # Kernels whose synchronisation is unconditional need each policy a few times; the others, luck.
    case $name in gemm* | ce-*) seeds=16 ;; *) seeds=200 ;; esac
    item "$name, $seeds seeds, strict" verdicts $seeds "" "$name"
    item "$name, $seeds seeds, lenient" verdicts $seeds --lenient "$name"
  done
  mapfile -t kernels < <(printf '%s\n' "${clean[@]}" | grep '^gemm')
  mapfile -t combines < <(printf '%s\n' "${clean[@]}" | grep '^ep-combine')
  for name in "${clean[@]}"; do
    case $name in gemm* | ep-combine* | ce-*) ;; *) item "$name, each call site left out" drops 4 "$name" ;; esac
  done
  item "the combine forms, each call site left out" drops 4 "${combines[@]}"
  item "the GEMM, each call site left out" drops 4 "${kernels[@]}"
  for head in forward backward; do
    mapfile -t heads < <(printf '%s\n' "${clean[@]}" | grep "^ce-$head")
    item "$head of the loss head, each call site left out" drops 4 "${heads[@]}"
  done
fi
[ "$skipped" = 0 ] || echo "$skipped finished before"
echo "in $SECONDS s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
