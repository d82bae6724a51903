#!/bin/sh
# Every struct and enum constant of weft.h stands in offsets.c.   listed.sh SOURCE_DIR
set -eu
header=$1/include/weft/weft.h list=$1/tests/abi/offsets.c
wrong=0
structs=$(sed -n 's/^typedef struct \(weft_[a-z_]*\) {.*/\1/p' "$header")
constants=$(awk '/^(typedef )?enum/ { inside = 1 } inside { print } /^}/ { inside = 0 }' "$header" |
  sed -n 's/^ *\(WEFT_[A-Z0-9_]*\) = .*/\1/p')
if [ -z "$structs" ] || [ -z "$constants" ]; then
  echo "weft.h holds no struct or no enum that this script can read"
  exit 1
fi
for name in $structs; do
  grep -q "END($name," "$list" || { echo "struct $name is not in offsets.c"; wrong=1; }
done
for name in $constants; do
  grep -q "CONSTANT($name," "$list" || { echo "constant $name is not in offsets.c"; wrong=1; }
done
echo "$structs" | wc -l | sed 's/$/ structs/'
echo "$constants" | wc -l | sed 's/$/ constants/'
exit $wrong
