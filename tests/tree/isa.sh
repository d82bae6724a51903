#!/bin/sh
# The binary holds the code that is chosen at run time, and nothing else of the library needs more
# than baseline x86-64, or it would die on an older machine: objects named *_avx512 use zmm
# registers, *_avx2 ymm and no zmm, all others neither.   isa.sh OBJECT...
set -eu
[ "$(uname -m)" = x86_64 ] || { echo "skipped: not x86-64"; exit 77; }
code=$(mktemp)
trap 'rm -f "$code"' EXIT
wrong=0 wide=0
for object in "$@"; do
  objdump -d --no-show-raw-insn "$object" >"$code"
  zmm=$(grep -c '%zmm' "$code" || true)
  ymm=$(grep -c '%ymm' "$code" || true)
  case $(basename "$object") in
  *_avx512*) right=$((zmm > 0)) wide=$((wide + 1)) ;;
  *_avx2*) right=$((ymm > 0 && zmm == 0)) wide=$((wide + 1)) ;;
  *) right=$((zmm == 0 && ymm == 0)) ;;
  esac
  [ $right = 1 ] || { echo "$object: $zmm lines with zmm, $ymm with ymm"; wrong=1; }
done
echo "$# objects, $wide for AVX2 or AVX-512"
[ $wide -gt 0 ] && exit $wrong
