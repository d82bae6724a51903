#!/bin/sh
# libweft.so shows exactly the functions that weft.h declares, under the version node WEFT_0, has
# its SONAME, and links nothing but the C library.   exports.sh SOURCE_DIR LIBRARY ABI_NUMBER
set -eu
header=$1/include/weft/weft.h library=$2 abi=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^WEFT_API .*[ *]\(weft_[a-z_0-9]*\)(.*/\1/p' "$header" |
  sed "s/\$/@@WEFT_$abi/" | sort >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"
if ! diff "$work/declared" "$work/exported" >"$work/difference"; then
  echo "weft.h declares (<) and libweft.so exports (>):"
  cat "$work/difference"
  exit 1
fi
echo "$(wc -l <"$work/exported") functions"

soname=$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = "libweft.so.$abi" ] || { echo "SONAME is $soname"; exit 1; }
needed=$(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }')
for name in $needed; do
  case $name in
  libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | ld-linux*) ;;
  *) echo "links $name: the library opens BLAS, CUDA and MPI at run time"; exit 1 ;;
  esac
done
