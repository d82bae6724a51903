#!/bin/sh
# Plants faults in copies of the GEMM kernel and of the combine, one at a time, and expects loom to find each in
# every seed; the copies without a fault must be clean.   mutants.sh SOURCE_DIR LIBWEFT_LOOM WORK_DIR [SEEDS]
set -eu
source_dir=$1 library=$2 work=$3 seeds=${4:-4}
compiler=${CC:-cc}
gemm=device/gemm/sm90_gemm.h
combine=device/ep_study/combine_kernel.h
rm -rf "$work"
mkdir -p "$work"
failed=0 passed=0

# name, protocol, header that gets the fault, instance, register function, sed script ("" for none)
plant() {
  name=$1 protocol=$2 header=$3 instance=$4 register=$5 script=$6
  tree=$work/$name
  mkdir -p "$tree/$(dirname "$header")"
  sed -e "$script" "$source_dir/src/$header" >"$tree/$header"
  if [ -n "$script" ] && cmp -s "$source_dir/src/$header" "$tree/$header"; then
    echo "FAILED $name: the fault's place was not found in $header"
    failed=$((failed + 1))
    return
  fi
  "$compiler" -std=gnu11 -O1 -Wno-psabi -I"$tree" -I"$source_dir/src" -I"$source_dir/include" \
    -DMUTANT_REGISTER="$register" -o "$tree/run" -x c "$source_dir/tests/loom/mutant_runner.c" \
    "$source_dir/src/$instance" -x none "$library" -lm
  status=0
  "$tree/run" "$protocol" "$seeds" >"$tree/out" || status=$?
  expected=3
  [ -n "$script" ] || expected=0
  if [ "$status" = "$expected" ]; then
    passed=$((passed + 1))
    printf 'ok     %s: ' "$name"
  else
    failed=$((failed + 1))
    printf 'FAILED %s (status %s): ' "$name" "$status"
  fi
  cut -c1-300 "$tree/out"
}
in_gemm() { plant "gemm-$1" "${3:-gemm}" $gemm device/gemm/sm90_gemm_toy.cu loom_gemm_register "$2"; }
in_combine() { plant "combine-$1" ep-combine $combine device/ep_study/sm90_combine_narrow.cu loom_combine_register "$2"; }

in_gemm none ""
# The stage that is being read is handed back, instead of the one before it.
in_gemm early-release 's/^      release_stage(shared, previous, thread);/      release_stage(shared, ring.stage, thread);/'
# "empty" counts one warpgroup of each CTA.
in_gemm short-count 's/, 2 \* GEMM_CLUSTER)/, GEMM_CLUSTER)/'
# The ring's parity stays as it is when the ring wraps.
in_gemm parity '/r.parity ^= 1;/d'
# The proxy fence names the wrong state space.
in_gemm wrong-space 's/fence_proxy_async_shared_cta(gemm_staging)/fence_proxy_async_global(gemm_staging)/'
# The layout of the staging block is not the one that the tensor store undoes.
in_gemm swizzle 's/(line & 7)/(line \& 3)/'
# A thread waits for bulk groups that are another one's.
in_gemm wrong-lane 's/if (w->issuer) bulk_wait_group_read(1)/if (w->thread == 64) bulk_wait_group_read(1)/'
# The shared operand reaches one CTA of the two.
in_gemm lost-multicast 's/ALL_CTAS = (1 << GEMM_CLUSTER) - 1/ALL_CTAS = 1/'
# A phase that expects fewer bytes than come.
in_gemm short-bytes 's/(full, A_BYTES + B_BYTES)/(full, A_BYTES + B_BYTES - 128)/'
# One group of wgmma too many may be in flight.
in_gemm late-wait 's/wgmma_wait(1)/wgmma_wait(2)/'
# The last lines' tail is written below the matrix.
in_gemm tail-bound 's/ || y + thread >= result->lines//' gemm-tails

in_combine none ""
# The announcement holds for the sender's GPU only.
in_combine narrow-scope 's/st_u32(release, sys/st_u32(release, gpu/'
# One sender's flag is taken for all.
in_combine one-flag 's/args->flags\[args->rank\], 4 \* from/args->flags[args->rank], 0/'
# The proxy fence stands before the acquire.
in_combine early-fence '/combine_acquired); \/\*/d; s/^\( *\)wait_u32_ge(sys/\1fence_proxy_async_global(combine_acquired);\n&/'
# The readers hand the stage back, then read it.
in_combine early-arrive '/^ *mbarrier_arrive(combine_empty(stage));/d; s/^\( *\)const struct f32x4 v = /\1mbarrier_arrive(combine_empty(stage));\n&/'
# "empty" counts half of the readers.
in_combine short-count 's/, COMBINE_READERS);/, COMBINE_READERS \/ 2);/'
# Rows are looked for in the order of the other loop.
in_combine wrong-row 's/(uint64_t)from \* args->tokens + token/(uint64_t)token * args->ranks + from/'
# Two readers write the same bytes.
in_combine overlap 's/COMBINE_ROW_BYTES + 16 \* reader), sum/COMBINE_ROW_BYTES + 16 * (reader \/ 2)), sum/'
# A row more than there is.
in_combine past-the-end 's/token < args->tokens; token++) {$/token <= args->tokens; token++) {/'

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
