#!/bin/sh
# Writes the manual pages: section 3 from the comments of weft.h, one page a function and weft.3
# over all of them (scripts/man.awk), and weft.1 from docs/weft.1.in.
#   man.sh SOURCE_DIR OUT_DIR VERSION
set -eu
source_dir=$1 out=$2 version=$3
rm -rf "$out/man1" "$out/man3"
mkdir -p "$out/man1" "$out/man3"
LC_ALL=C awk -v out="$out/man3" -v version="$version" -f "$source_dir/scripts/man.awk" \
  "$source_dir/include/weft/weft.h"
sed "s/@VERSION@/$version/" "$source_dir/docs/weft.1.in" >"$out/man1/weft.1"
