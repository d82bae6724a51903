#!/bin/sh
# scripts/need.sh on machines made of stubs: what it says to a plain user, what it runs as root and
# through sudo, and that it does nothing where nothing is missing or where it is told not to.
#   need.sh SOURCE_DIR
set -eu
need=$1/scripts/need.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong=0

# machine USER_ID COMMAND...: a PATH with the shell's tools, apt-get which notes how it was called
# and brings the commands that build and test look for, and the commands named.
machine() {
  user_id=$1
  shift
  rm -rf "${work:?}/bin" "$work/brings" "$work/calls"
  mkdir "$work/bin" "$work/brings"
  : >"$work/calls"
  for tool in sh awk grep env cp; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done
  stub "$work/bin/true" "exit 0"
  stub "$work/bin/id" "echo $user_id"
  stub "$work/bin/ldconfig" 'printf "\tlibopenblas.so.0 (libc6) => here\n"'
  stub "$work/bin/apt-get" "echo \"apt-get \$*\" >>$work/calls
[ \"\$1\" = update ] || cp $work/brings/* $work/bin/"
  for tool in gcc ninja pkg-config g++; do stub "$work/brings/$tool" 'exit 0'; done
  stub "$work/brings/cmake" 'echo "cmake version 3.25.1"'
  for tool in "$@"; do cp "$work/brings/$tool" "$work/bin/" 2>/dev/null || stub "$work/bin/$tool" "$sudo"; done
}
stub() {
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
run() { # expected status, then what follows WEFT_NO_INSTALL
  expected=$1 no_install=$2 got=0
  env -i PATH="$work/bin" WEFT_NO_INSTALL="$no_install" "$need" build test >"$work/said" 2>&1 || got=$?
  [ $got = "$expected" ] || { echo "$name: status $got, expected $expected"; cat "$work/said"; wrong=1; }
}
expect() { # file, pattern
  grep -q "$2" "$1" || { echo "$name: nothing like \"$2\" in:"; cat "$1"; wrong=1; }
}
calls() { # number of apt-get calls
  [ "$(wc -l <"$work/calls")" = "$1" ] || { echo "$name: expected $1 calls:"; cat "$work/calls"; wrong=1; }
}
everything='gcc libc6-dev cmake ninja-build pkgconf libjansson-dev g++ libcmocka-dev$'

name='root' sudo=
machine 0
run 0 0
calls 2
expect "$work/calls" '^apt-get update'
expect "$work/calls" "^apt-get install .*$everything"

name='nothing missing'
machine 1000 gcc cmake ninja pkg-config g++
run 0 0
calls 0

name='plain user without sudo'
machine 1000
run 1 0
calls 0
expect "$work/said" "^  su -c 'apt-get update && apt-get install .*libcmocka-dev'\$"

name='plain user whose sudo asks for a password' sudo='exit 1'
machine 1000 sudo
run 1 0
calls 0
expect "$work/said" "^  sudo sh -c 'apt-get update && apt-get install .*libcmocka-dev'\$"

name='plain user whose sudo asks nothing' sudo='shift; exec "$@"'
machine 1000 sudo
run 0 0
calls 2

name='an old cmake'
machine 0 gcc cmake ninja pkg-config g++
stub "$work/bin/cmake" 'echo "cmake version 3.18.4"'
run 0 0
expect "$work/calls" '^apt-get install .* cmake$'

name='installed, yet not found'
machine 0
rm "$work/brings/ninja"
run 1 0
expect "$work/said" 'still not found: ninja-build'

name='WEFT_NO_INSTALL=1'
machine 0
run 0 1
calls 0
expect "$work/said" "missing and not installed"

[ $wrong = 0 ] && echo "8 machines, each right"
exit $wrong
