#!/bin/sh
# check_sass.sh CUBIN_OR_FATBIN...: looks at the machine code of GEMM kernels. It must hold HGMMA and UTMALDG, touch no
# local memory, and the loop that multiplies must hold no MEMBAR. Needs cuobjdump and nvdisasm (pip packages
# nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, or CUDA's own); exits with 77 without them.
command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null || {
  echo "skipped: no cuobjdump and nvdisasm"
  exit 77
}
status=0
for file in "$@"; do
  work=$(mktemp -d)
  case $file in
  *.fatbin) (path=$(realpath "$file") && cd "$work" && cuobjdump -xelf all "$path" >/dev/null) ;;
  *) cp "$file" "$work/" ;;
  esac
  for cubin in "$work"/*.cubin; do
    nvdisasm -c "$cubin" >"$work/sass"
    # A loop lies between a label and a branch back to it. The shortest one around an HGMMA is the loop that
    # multiplies; waits that were moved out of line branch back from further away.
    awk -v name="$(basename "$file")" '
      { line[NR] = $0 }
      /^\.L_x_[0-9]+:/ { label = $1; sub(/:.*/, "", label); at[label] = NR }
      /HGMMA/ { hgmma++; last = NR }
      /UTMALDG/ { utmaldg++ }
      / LDL| STL/ { local_memory++ }
      /BRA/ {
        if (match($0, /\.L_x_[0-9]+/)) {
          to = substr($0, RSTART, RLENGTH)
          if ((to in at) && last && at[to] <= last && (!from || NR - at[to] < end - from)) { from = at[to]; end = NR }
        }
      }
      END {
        for (i = from; i <= end; i++) if (line[i] ~ /MEMBAR/) membar++
        printf "%s: %d HGMMA, %d UTMALDG, %d local accesses, loop of %d lines with %d MEMBAR\n",
               name, hgmma, utmaldg, local_memory, end - from, membar
        exit !(hgmma && utmaldg && !local_memory && from && !membar)
      }' "$work/sass" || { echo "FAILED $file"; status=1; }
  done
  rm -r "$work"
done
exit $status
