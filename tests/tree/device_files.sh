#!/bin/sh
# Every device file was compiled by nvcc, with what ptxas said kept beside it and nothing in it that makes a
# kernel slow in silence, and by gcc as C. The build fails where a compiler does; this looks that none was left out.
# A build without nvcc is skipped, once the half of gcc is right.
#   device_files.sh SOURCE_DIR BUILD_DIR [NVCC]
set -eu
source_dir=$1 build=$2 nvcc=${3:-}
wrong=0 count=0
complain() { echo "$1"; wrong=1; }
for file in $(find "$source_dir/src/device" "$source_dir/tests" -name '*.cu' ! -path '*/tests/gpu/nvshmem/*'); do
  name=$(basename "$file" .cu)
  count=$((count + 1))
  log=$(find "$build" -path "*/device/$name.fatbin.log" | head -n 1)
  if [ -z "$nvcc" ]; then
    :
  elif [ -z "$log" ] || [ ! -s "${log%.log}" ]; then
    complain "$file: not compiled by nvcc"
  elif ! grep -q 'ptxas info' "$log"; then
    complain "$file: $log says nothing of ptxas"
  elif grep -E 'C75(04|09|10|15)' "$log" ||
    grep 'bytes spill stores' "$log" | grep -v ' 0 bytes spill stores, 0 bytes spill loads'; then
    complain "$file: see $log"
  fi
  [ -n "$(find "$build" -name "$name.cu.o" | head -n 1)" ] || complain "$file: not compiled as C"
done
echo "$count device files"
[ "$count" -gt 0 ] || wrong=1
[ $wrong = 1 ] || [ -n "$nvcc" ] || { echo "skipped: this build has no nvcc"; exit 77; }
exit $wrong
