#!/bin/sh
# The include rule holds in this tree, and the check that says so sees violations: each line planted
# below into a copy must be reported by file and line.   include_rule.sh SOURCE_DIR
set -eu
source_dir=$1
check=$source_dir/scripts/check_includes.sh
sh "$check" "$source_dir"
echo "the tree is clean"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong=0
plant() { # folder, line: a file with that line in `folder` must be named
  rm -rf "$work/tree"
  mkdir -p "$work/tree/src/core" "$work/tree/src/comm" "$work/tree/src/ce" "$work/tree/src/cpu" \
    "$work/tree/src/loom" "$work/tree/include/weft" "$work/tree/cli" "$work/tree/$1"
  echo '#include <weft/weft.h>' >"$work/tree/src/ce/fine.c"
  printf '/* planted */\n%s\n' "$2" >"$work/tree/$1/planted.c"
  if sh "$check" "$work/tree" >"$work/said" || ! grep -q "^$1/planted.c:2:" "$work/said"; then
    echo "not found: $2 in $1"
    cat "$work/said"
    wrong=1
  fi
}
plant src/core '#include "comm/comm.h"'
plant src/core '#include "ce/backend.h"'
plant src/comm '#include "ce/backend.h"'
plant src/comm '#include "cpu/blas.h"'
plant src/cpu '#include "ce/check.h"'
plant src/cpu '  #  include   "ce/check.h"'
plant src/cpu '#include <ce/check.h>'
plant src/cpu '#include "ce/backend.hh"'
plant src/ce '#include "cpu/blas.h"'
plant src/ce '#include "../cli/npy.h"'
plant src/ce '#include "cli/npy.h"'
plant src/ce/deeper '#include "../../comm/comm.h"'
plant cli '#include "core/error.h"'
plant cli '#include "../src/core/error.h"'
plant cli '#include "src/core/error.h"'
plant include/weft '#include "core/error.h"'
plant src/ce '#include <mpi.h>'
plant src '#include "loom/executor.h"'
[ $wrong = 0 ] && echo "every planted line was found"

# What is allowed must not be reported.
allow() {
  rm -f "$work"/tree/*/planted.c "$work"/tree/*/*/planted.c "$work"/tree/*/*/*/planted.c
  printf '%s\n' "$2" >"$work/tree/$1/planted.c"
  sh "$check" "$work/tree" || { echo "refused: $2 in $1"; wrong=1; }
}
allow src/ce '#include "comm/comm.h"'
allow src/ce '#include "plan.h"'
allow src/cpu '#include "core/memory.h"'
allow src/cpu '#include "ce/backend.h"'
allow cli '#include <string.h>'
allow cli '#include <weft/weft.h>'

# A new layer must be added to the rule before it may exist.
mkdir "$work/tree/src/other"
if sh "$check" "$work/tree" >"$work/said"; then echo "not found: the unknown layer src/other"; wrong=1; fi
exit $wrong
