# Manual pages of section 3 from weft.h, in plain awk. What it relies on in the header:
#   /** ... */ stands before the WEFT_API declaration it describes; a declaration without one
#   shares that of the declaration just above it. "Errors:" in it starts the list of statuses.
#   /* ... */ right before a typedef describes the type; one that stands alone describes its
#   section. /* ---- Title ---- */ starts a section. The first comment is the overview.
# Types that a prototype names, and types that those name, are shown on the function's page.

function troff(s) { # text for running lines
  gsub(/\\/, "\\e", s); gsub(/\^/, "\\(ha", s); gsub(/~/, "\\(ti", s)
  if (s ~ /^[.']/) s = "\\&" s
  return s
}
function code(s) { s = troff(s); gsub(/-/, "\\-", s); gsub(/'/, "\\(aq", s); return s }
function show(file, text,  n, lines, i) { # verbatim
  print ".nf" > file
  n = split(text, lines, "\n")
  for (i = 1; i <= n; i++) print code(lines[i]) > file
  print ".fi" > file
}
function flow(file, text) { print troff(text) > file }
function strip(s) { # a comment's line without its frame
  sub(/^ *\/\*\*? ?/, "", s); sub(/ *\*\/ *$/, "", s); sub(/^ \*( |$)/, "", s); return s
}
function summary(doc,  s) {
  s = doc
  if (match(s, /\. [A-Z`]|: NULL|; |\.$/)) s = substr(s, 1, RSTART - 1)
  return s
}
function header(file, name) {
  print ".\\\" -*- coding: UTF-8 -*-\n.TH " toupper(name) " 3 \"\" \"weft " version "\" \"weft manual\"" > file
  print ".SH NAME" > file
}
# Prints the types that `text` names and that this page has not shown; to depth 2.
function show_types(file, text, depth,  i, name) {
  for (i = 1; i <= types; i++) {
    name = order[i]
    if ((name in shown) || text !~ ("(^|[^a-z_])" name "([^a-z_]|$)")) continue
    shown[name] = 1
    if (!any_type++) print ".SH TYPES" > file
    print ".PP" > file
    show(file, type[name])
    if (depth < 2) show_types(file, type[name], depth + 1)
  }
}
function page(k,  name, file, doc, body, errors, at, i, j) {
  name = fname[k]; file = out "/" name ".3"; doc = fdoc[k]
  header(file, name)
  print name " \\- " troff(summary(doc)) > file
  print ".SH SYNOPSIS\n.nf\n#include <weft/weft.h>\n" > file
  print code(proto[k]) "\n.fi\n.PP\nLink with \\-lweft (pkg\\-config weft, CMake weft::weft)." > file
  at = index(doc, "Errors: ")
  body = at ? substr(doc, 1, at - 1) : doc
  errors = at ? substr(doc, at + 8) : ""
  print ".SH DESCRIPTION" > file
  flow(file, body)
  if (body ~ /^The same/) { # it leans on the function before it
    print ".PP\n" fname[k - 1] "() reads:" > file
    flow(file, fdoc[k - 1])
  }
  if (proto[k] ~ /^weft_status /) {
    print ".SH RETURN VALUE\nWEFT_OK, or a status that says what is wrong; weft_last_error(3) then" > file
    print "names the argument, its value and what was expected." > file
  }
  if (errors != "") {
    print ".SH ERRORS" > file
    flow(file, errors)
    for (i = 2; i <= statuses; i++) # all but WEFT_OK
      if (errors ~ ("(^|[^A-Z])" substr(status[i], 10) "([^A-Z]|$)"))
        print ".TP\n.B " status[i] "\n" troff(meaning[i]) > file
  }
  for (i in shown) delete shown[i]
  shown["weft_status"] = 1 # weft(3) has it
  any_type = 0
  show_types(file, proto[k], 0)
  print ".SH SEE ALSO" > file
  for (j = 1; j <= functions; j++)
    if (fsection[j] == fsection[k] && j != k) print ".BR " fname[j] " (3)," > file
  print ".BR weft (3)" > file
  close(file)
}
function overview(  file, i, k, n, lines) {
  file = out "/weft.3"
  header(file, "weft")
  sub(/^weft: /, "", intro[1])
  sub(/\.$/, "", intro[1])
  print "weft \\- " troff(intro[1]) "\n.SH SYNOPSIS\n.nf\n#include <weft/weft.h>\n.fi" > file
  print ".PP\nLink with \\-lweft (pkg\\-config weft, CMake weft::weft).\n.SH DESCRIPTION" > file
  for (i = 2; i <= intros; i++) {
    if (intro[i] == "") print ".PP" > file
    else if (intro[i] ~ /^ - /) print ".IP \\(bu 2\n" troff(substr(intro[i], 4)) > file
    else { sub(/^ +/, "", intro[i]); print troff(intro[i]) > file }
  }
  for (i = 1; i <= sections; i++) {
    print ".SH " toupper(section[i]) > file
    if (about[i] != "") { show(file, about[i]); print ".PP" > file }
    for (k = 1; k <= functions; k++)
      if (fsection[k] == i) print ".TP\n.BR " fname[k] " (3)\n" troff(summary(fdoc[k])) "." > file
  }
  print ".SH STATUS" > file
  for (i = 1; i <= statuses; i++) print ".TP\n.B " status[i] "\n" troff(meaning[i]) > file
  print ".SH SEE ALSO\n.BR weft (1)" > file
  close(file)
}

{ sub(/[ \t]+$/, "") }
/^\/\* ---- / {
  title = $0; sub(/^\/\* ---- /, "", title); sub(/ -+ \*\/$/, "", title)
  section[++sections] = title
  next
}
# Comments that start a line.
/^\/\*/ && !in_type { comment = ""; in_comment = 1; is_doc = /^\/\*\*/; started_intro = !intros }
in_comment {
  line = strip($0)
  if (started_intro) intro[++intros] = line
  comment = comment (comment == "" ? "" : "\n") line
  if (/\*\/$/) {
    in_comment = 0
    if (is_doc) { doc = comment; gsub(/\n/, " ", doc); sub(/ +$/, "", doc) }
    else loose = comment
  }
  next
}
# A comment that nothing follows belongs to its section.
/^$/ && !in_type && !in_proto {
  if (loose != "" && sections && !started_intro) about[sections] = about[sections] loose "\n"
  loose = ""; doc = ""
  next
}
/^(typedef|enum)/ && !in_type { in_type = 1; body = ""; lead = loose; loose = "" }
in_type {
  body = body (body == "" ? "" : "\n") $0
  if (/^typedef enum weft_status/) in_status = 1
  if (in_status && /^ *WEFT_/) {
    status[++statuses] = $1
    at = index($0, "/* ")
    meaning[statuses] = at ? substr($0, at + 3, length($0) - at - 5) : "success"
  }
  if (/^}.*;$/ || (body !~ /{/ && /;$/)) {
    in_type = 0; in_status = 0
    name = body
    if (name ~ /^typedef [^{]*\(\*/) { sub(/^.*\(\*/, "", name); sub(/\).*/, "", name) }
    else if (name ~ /^enum/) { # bits of a field, which its first comment names; shown with it
      match(name, /weft_[a-z_]+\./); name = substr(name, RSTART, RLENGTH - 1)
      bits[name] = body; next
    } else { sub(/^.*[ }]/, "", name); sub(/;.*/, "", name) }
    if (lead != "") { gsub(/\n/, "\n   ", lead); body = "/* " lead " */\n" body }
    if (name in bits) body = bits[name] "\n\n" body
    type[name] = body; order[++types] = name
  }
  next
}
/^WEFT_API / { in_proto = 1; text = ""; loose = "" }
in_proto {
  line = $0; sub(/^WEFT_API /, "", line)
  text = text (text == "" ? "" : "\n") line
  if (/;$/) {
    in_proto = 0
    name = text; sub(/\(.*/, "", name); sub(/^.*[ *]/, "", name)
    gsub(/\n +/, "\n    ", text)
    proto[++functions] = text; fname[functions] = name
    fdoc[functions] = doc; fsection[functions] = sections
  }
  next
}
END {
  for (k = 1; k <= functions; k++) page(k)
  overview()
}
