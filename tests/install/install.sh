#!/bin/sh
# Installs the tree, moves it (nothing in it may remember where it was), and builds programs against
# it by CMake and by pkg-config, shared and static; then the README's example, then the program.
#   install.sh SOURCE_DIR BUILD_DIR WORK_DIR
set -eu
source_dir=$1 build=$2 work=$3
here=$source_dir/tests/install
rm -rf "$work"
mkdir -p "$work"
DESTDIR='' cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/tree"
tree=$work/tree
lib=$(dirname "$(find "$tree" -name libweft.so)")

linked() { objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }' | grep -c '^libweft' || true; }
expect() { # program, number of libweft libraries it must name
  [ "$(linked "$1")" = "$2" ] || { echo "$1 links libweft.so $(linked "$1") times, expected $2"; exit 1; }
}

mkdir "$work/cmake"
cp "$here/outside.c" "$work/cmake/"
cp "$here/outside.cmake" "$work/cmake/CMakeLists.txt"
cmake -S "$work/cmake" -B "$work/cmake/build" -G Ninja -DCMAKE_PREFIX_PATH="$tree" >"$work/cmake.log"
cmake --build "$work/cmake/build" >>"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
for kind in shared static; do
  echo "CMake, $kind:"
  "$work/cmake/build/outside_$kind"
done
expect "$work/cmake/build/outside_shared" 1
expect "$work/cmake/build/outside_static" 0

export PKG_CONFIG_PATH="$lib/pkgconfig"
compiler=${CC:-cc}
mkdir "$work/pc"
# shellcheck disable=SC2046 # words of flags
"$compiler" -Wall -Wextra -Werror -o "$work/pc/outside_shared" "$here/outside.c" \
  $(pkg-config --cflags --libs weft) -pthread -lm
# shellcheck disable=SC2046
"$compiler" -Wall -Wextra -Werror -o "$work/pc/outside_static" "$here/outside.c" \
  $(pkg-config --static --cflags --libs weft | sed 's/-lweft/-l:libweft.a/')
echo "pkg-config, shared:"
LD_LIBRARY_PATH="$lib" "$work/pc/outside_shared"
echo "pkg-config, static:"
"$work/pc/outside_static"
expect "$work/pc/outside_shared" 1
expect "$work/pc/outside_static" 0

# The first C block of the README.
awk '/^```c$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$source_dir/README.md" \
  >"$work/pc/example.c"
lines=$(wc -l <"$work/pc/example.c")
[ "$lines" -gt 10 ] || { echo "README.md has no C example"; exit 1; }
# shellcheck disable=SC2046
"$compiler" -std=c99 -Wall -Wextra -Werror -o "$work/pc/example" "$work/pc/example.c" \
  $(pkg-config --cflags --libs weft)
echo "README example, $lines lines:"
LD_LIBRARY_PATH="$lib" "$work/pc/example" | tee "$work/pc/example.out"
# It says what it prints; hold it to that.
awk '/^```text$/ { n++; inside = n == 1; next } /^```$/ { inside = 0 } inside' \
  "$source_dir/README.md" >"$work/pc/example.expected"
diff "$work/pc/example.expected" "$work/pc/example.out"

# loom: its library and header alone.
# shellcheck disable=SC2046
"$compiler" -std=c99 -Wall -Wextra -Werror -o "$work/pc/outside_loom" "$here/outside_loom.c" \
  $(pkg-config --cflags weft) -L"$lib" -lweft_loom -lm
echo "loom:"
"$work/pc/outside_loom"
"$tree/bin/weft" check ep-combine --seeds 2

"$tree/bin/weft" info >"$work/info.out"
cat "$work/info.out"
for file in share/man/man1/weft.1 share/man/man3/weft_ce_step.3 share/doc/weft/LICENSE; do
  [ -s "$tree/$file" ] || { echo "not installed: $file"; exit 1; }
done
# Nothing of the building machine's folders may be in the tree.
if grep -rIl -e "$source_dir" -e "$work/first" "$tree"; then
  echo "these installed files name the folders they were built in"
  exit 1
fi
