#!/bin/sh
# The main job: trains the example language model, has `weft ce --verify` score the files that it
# leaves, compares the two perplexities, and draws the loss curve. Fails where any of this fails.
#   scripts/run_main_job.sh [BUILD_DIR [OUT_DIR]]
set -eu

cd "$(dirname "$0")/.."
build=${1:-build}
out=${2:-out}
file=$out/train_lm.safetensors
curve=$out/train_lm.csv
began=$(date +%s)
mkdir -p "$out"

"$build/examples/train_lm" --out "$out"

echo
echo "The same held-out tokens from the saved files, against an f64 oracle:"
verified=0
"$build/cli/weft" ce --verify --entropy --ranks 4 --phase all --warmup 0 --iters 1 \
  --x "$file:hidden" --w "$file:head" --targets "$file:targets" >"$out/weft_ce.txt" || verified=$?
cat "$out/weft_ce.txt"
if [ "$verified" != 0 ]; then
  echo "run_main_job.sh: weft ce --verify answered $verified" >&2
  exit 1
fi

# Both programs score the same tokens with the same head. They may share the vocabulary out in other
# ranges, so the last bit of a sum may differ, and no more.
held=$(awk -F, 'END { printf "%.9g", exp($5) }' "$curve")
awk -v held="$held" '
  /^phase / { for (i = 1; i <= NF; i++) if ($i == "perplexity") column = i }
  /^(forward|backward|step) / {
    rows++
    apart = $column / held - 1
    if (apart > 1e-5 || apart < -1e-5) wrong++
  }
  END {
    printf "perplexity of train_lm: %.6g; of weft ce: the same in %d of %d phases\n",
           held, rows - wrong, rows
    exit !(rows == 3 && !wrong)
  }' "$out/weft_ce.txt"

gnuplot -e "curve='$curve'; picture='$out/loss.svg'" scripts/loss_curve.gp
echo "loss curve: $out/loss.svg; $(($(date +%s) - began)) seconds in all"
