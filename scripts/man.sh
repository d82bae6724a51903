#!/bin/sh
# Writes the manual pages: section 3 from the comments of weft.h, one page a function and weft.3
# over all of them (scripts/man.awk); and, where the program is given, weft.1 from docs/weft.1.in
# and the options that the program itself lists.
#   man.sh SOURCE_DIR OUT_DIR VERSION [PROGRAM]
set -eu
source_dir=$1 out=$2 version=$3 program=${4:-}
rm -rf "$out/man1" "$out/man3"
mkdir -p "$out/man1" "$out/man3"
LC_ALL=C awk -v out="$out/man3" -v version="$version" -f "$source_dir/scripts/man.awk" \
  "$source_dir/include/weft/weft.h"
[ -n "$program" ] || exit 0

# "  --flag ARGUMENT   text", as troff; an argument of choices may be followed by one space only
options() {
  "$program" "$1" --help >"$out/help"
  LC_ALL=C awk '
    function quote(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); gsub(/\^/, "\\(ha", s); return s }
    /^  --/ {
      flag = $1
      argument = ""
      text = substr($0, 3 + length(flag))
      if (text ~ /^ [^ ]/) {
        argument = $2
        text = substr(text, 2 + length(argument))
      }
      sub(/^ +/, "", text)
      print ".TP\n.BR " quote(flag) (argument == "" ? "" : " \" " quote(argument) "\"") "\n" quote(text)
      n++
      next
    }
    n && /^[^ ]/ && !/^exit:/ { rest = rest (rest == "" ? ".PP\n" : "") quote($0) "\n" }
    END { printf "%s", rest; exit n == 0 }' "$out/help"
  rm "$out/help"
}
options ce >"$out/ce"
options check >"$out/check"
options ep >"$out/ep"
options info >"$out/info"
sed -e "s/@VERSION@/$version/" -e "/@CE_OPTIONS@/{r $out/ce
d}" -e "/@CHECK_OPTIONS@/{r $out/check
d}" -e "/@EP_OPTIONS@/{r $out/ep
d}" -e "/@INFO_OPTIONS@/{r $out/info
d}" "$source_dir/docs/weft.1.in" >"$out/man1/weft.1"
rm "$out/ce" "$out/ep" "$out/check" "$out/info"
