#!/bin/sh
# Sees to it that what a target needs is on the machine: need.sh GROUP... with the groups build,
# run, test, mpi. Each thing is looked for itself (a command, a header, a library), so that a compiler
# or library which did not come from Debian counts too. What is missing is installed by apt-get
# where this user may do that; else the one line to run is printed and the answer is failure.
# WEFT_NO_INSTALL=1: installs nothing, says what it misses, and lets the target try.
set -eu

compiler=${CC:-gcc}
missing=
wants() { case " $missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac }

has_command() { command -v "$1" >/dev/null 2>&1; }
has_header() { printf '#include <%s>\n' "$1" | "$compiler" -E -o /dev/null - 2>/dev/null; }
has_library() { { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q "[[:space:]]$1 "; }
has_cmake() { # 3.25 or newer
  has_command cmake || return 1
  cmake --version | awk '
    NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) }'
}

for group in "$@"; do
  case $group in
  build)
    has_command "$compiler" || wants gcc
    has_header stdlib.h || wants libc6-dev
    has_cmake || wants cmake
    has_command ninja || wants ninja-build
    has_command pkg-config || wants pkgconf
    has_header jansson.h || wants libjansson-dev
    has_library libopenblas.so.0 || wants libopenblas0-pthread
    ;;
  run)
    has_command gnuplot || wants gnuplot-nox
    ;;
  test)
    has_command g++ || wants g++
    has_header cmocka.h || wants libcmocka-dev
    ;;
  mpi)
    has_command mpirun || wants openmpi-bin
    has_command mpicc || wants libopenmpi-dev
    ;;
  *)
    echo "need.sh: no group \"$group\": expected build, run, test or mpi" >&2
    exit 2
    ;;
  esac
done
[ -n "$missing" ] || exit 0

if [ "${WEFT__NEED_AGAIN:-0}" = 1 ]; then
  echo "need.sh: installed, and still not found:$missing (compiler: $compiler)" >&2
  exit 1
fi
if [ "${WEFT_NO_INSTALL:-0}" = 1 ]; then
  echo "need.sh: missing and not installed (WEFT_NO_INSTALL=1):$missing" >&2
  exit 0
fi

install="apt-get update && apt-get install -y --no-install-recommends$missing"
as_root=
if [ "$(id -u)" != 0 ]; then as_root="sudo"; fi
if ! has_command apt-get; then
  echo "need.sh: this machine has no apt-get. Install what these Debian packages hold:$missing" >&2
  exit 1
fi
if [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; then
  echo "Packages are missing. Run this line, then the same command again:" >&2
  if has_command sudo; then echo "  sudo sh -c '$install'"; else echo "  su -c '$install'"; fi >&2
  exit 1
fi

echo "need.sh: installing$missing"
${as_root:+sudo -n} apt-get update -q
# shellcheck disable=SC2086 # one word a package
${as_root:+sudo -n} env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends $missing
WEFT__NEED_AGAIN=1 exec "$0" "$@"
