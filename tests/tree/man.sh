#!/bin/sh
# Every public function has a manual page with a name, a prototype and a text, every page has its
# function, and troff takes each without a warning where it is here.   man.sh SOURCE_DIR MAN_DIR
set -eu
header=$1/include/weft/weft.h man=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  echo weft
  sed -n 's/^WEFT_API .*[ *]\(weft_[a-z_0-9]*\)(.*/\1/p' "$header"
} | sort >"$work/functions"
(cd "$man/man3" && ls) | sed 's/\.3$//' | sort >"$work/pages"
if ! diff "$work/functions" "$work/pages" >"$work/difference"; then
  echo "functions (<) and pages (>) differ:"
  cat "$work/difference"
  exit 1
fi
wrong=0
while read -r name; do
  page=$man/man3/$name.3
  [ "$name" = weft ] || grep -q "$name(" "$page" || { echo "$name.3 has no prototype"; wrong=1; }
  grep -q "^$name .- [^ ]" "$page" || { echo "$name.3 has no summary"; wrong=1; }
  awk '/^\.SH/ { inside = /DESCRIPTION/ } inside { n += length($0) } END { exit n < 60 }' "$page" ||
    { echo "$name.3 has no text"; wrong=1; }
done <"$work/functions"
if command -v groff >/dev/null; then
  for page in "$man"/man?/*; do
    groff -Kutf8 -man -Tutf8 -ww "$page" 2>"$work/warnings" >/dev/null || true
    [ ! -s "$work/warnings" ] || { cat "$work/warnings"; wrong=1; }
  done
else
  echo "groff is not here: form not checked"
fi
echo "$(wc -l <"$work/pages") pages"
exit $wrong
