#!/bin/sh
# The include rule: includes point downwards only.   check_includes.sh [ROOT]
# Prints each line that breaks it as file:line: reason, and fails if there is one. The table below
# is the rule; docs/design.md draws it.
set -eu
cd "${1:-$(dirname "$0")/..}"

# folder: what it may include besides itself, whole folders or single files. "api" is
# <weft/weft.h> and <weft/loom.h>. Folders under src/ see each other as "folder/file.h"; what stands outside src/ sees
# the public API alone. An operation states in one header what a backend must offer; that header is
# all that a backend sees of it, and the operation sees no backend. Files of src/ itself stand above
# all layers. (Compiled by gcc, src/device/ptx runs on loom, whose declarations it then includes.)
rule() {
  cat <<'TABLE'
src:             api core comm ce ep cpu cuda
src/core:        api
src/comm:        api core device/comm/peers.h
src/ce:          api core comm
src/ep:          api core comm
src/cpu:         api core comm ce/backend.h ep/backend.h
src/cuda:        api core comm ce/backend.h ep/backend.h device
src/device:      loom
src/loom:        api core device cuda/backward.h
plugins/nvshmem: api core comm
plugins/mpi:     api core comm
include/weft:
cli:             api
examples:        api
bench:           api
python:          api
TABLE
}

if [ ! -d src/core ]; then
  echo "check_includes.sh: no src/core below $(pwd)"
  exit 2
fi
# A folder that the table lacks would go unchecked.
wrong=0
for folder in src/*/ plugins/*/; do
  folder=${folder%/}
  [ -d "$folder" ] || continue
  rule | grep -q "^$folder:" || { echo "$folder: not in the table of check_includes.sh"; wrong=1; }
done

for folder in $(rule | cut -d: -f1); do
  [ -d "$folder" ] || continue
  allowed=" $(rule | sed -n "s|^$folder: *||p") "
  deep=$([ "$folder" = src ] || echo 99)
  files=$(find "$folder" -maxdepth "${deep:-1}" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \
    -o -name '*.cpp' -o -name '*.hpp' \) | sort)
  [ -n "$files" ] || continue
  # shellcheck disable=SC2086 # names of this tree hold no blanks
  awk -v folder="$folder" -v allowed="$allowed" -v layers="$(for d in src/*/; do basename "$d"; done |
    tr '\n' ' ')" '
    function broken(why) { print FILENAME ":" FNR ": " why; wrong = 1 }
    BEGIN {
      n = split(layers, list, " ")
      for (i = 1; i <= n; i++) layer[list[i]] = 1
      own = folder; sub(/^src\//, "", own)
    }
    /^[ \t]*#[ \t]*include/ {
      name = $0; sub(/^[ \t]*#[ \t]*include[ \t]*/, "", name)
      if (name !~ /^["<]/) next # a macro: names a file of its own folder (device instances)
      name = substr(name, 2); sub(/[">].*/, "", name)
      top = name; sub(/\/.*/, "", top)
      if (name ~ /^(cuda|mpi|nvshmem)[a-z_]*\.h$/ && folder !~ /^(src\/cuda|src\/device|plugins\/)/)
        broken("headers of CUDA, MPI and NVSHMEM belong to src/cuda, src/device and plugins/")
      else if (name ~ /(^|\/)\.\.?\//) broken("relative path \"" name "\"")
      else if (top == "weft") {
        if (allowed !~ / api /) broken(folder " may not include the public header")
      } else if (top in layer || top == "src" || top == "cli") {
        # "device/..." inside src/device and so on; a system header has no such first folder
        if (index(name, "/") && top != own && !index(allowed, " " top " ") &&
            !index(allowed, " " name " "))
          broken(folder " may not include \"" name "\"")
      }
    }
    END { exit wrong }' $files || wrong=1
done
exit $wrong
