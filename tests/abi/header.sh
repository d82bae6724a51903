#!/bin/sh
# weft.h compiles without a warning in every dialect of C and C++ that it promises, by each
# compiler that is here, and needs nothing but stddef.h and stdint.h.   header.sh SOURCE_DIR WORK_DIR
set -eu
source_dir=$1 work=$2
header=$source_dir/include/weft/weft.h
mkdir -p "$work"
sed -n 's/^WEFT_API .*[ *]\(weft_[a-z_0-9]*\)(.*/ADDRESS(\1)/p' "$header" >"$work/functions.h"
echo "$(wc -l <"$work/functions.h") functions"
[ "$(wc -l <"$work/functions.h")" = "$(grep -c '^WEFT_API ' "$header")" ]

includes=$(sed -n 's/^ *# *include *//p' "$header" | sort | tr '\n' ' ')
[ "$includes" = "<stddef.h> <stdint.h> " ] || { echo "weft.h includes $includes"; exit 1; }

try() { # compiler, language, dialect, warnings...
  compiler=$1 language=$2 dialect=$3
  shift 3
  cp "$source_dir/tests/abi/use.h" "$work/use.$language"
  "$compiler" -std="$dialect" -pedantic-errors -Wall -Wextra -Wundef -Wshadow -Werror "$@" \
    -I"$source_dir/include" -I"$work" -fsyntax-only "$work/use.$language"
  echo "$compiler -std=$dialect: clean"
}
for compiler in gcc clang; do
  command -v $compiler >/dev/null || { echo "$compiler is not here: not tried"; continue; }
  for dialect in c99 c11 c17 c2x; do
    try "$compiler" c "$dialect" -Wstrict-prototypes -Wmissing-prototypes -Wc++-compat
  done
done
tried=0
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || { echo "$compiler is not here: not tried"; continue; }
  for dialect in c++98 c++11 c++14 c++17 c++20; do try "$compiler" cc "$dialect"; done
  tried=1
done
[ $tried = 1 ] || { echo "skipped: no C++ compiler is here"; exit 77; }
