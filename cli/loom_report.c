/* The three formats of `weft check`. Data go to the given stream; nothing else is printed here. */
#include "loom_report.h"

#include <weft/loom.h>

#include "ce_options.h"

static void json_string(FILE *out, const char *s) {
  fputc('"', out);
  for (; *s; s++) {
    const unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\')
      fprintf(out, "\\%c", c);
    else if (c < 0x20)
      fprintf(out, "\\u%04x", c);
    else
      fputc(c, out);
  }
  fputc('"', out);
}

static void csv_string(FILE *out, const char *s) {
  fputc('"', out);
  for (; *s; s++) {
    if (*s == '"') fputc('"', out);
    fputc(*s, out);
  }
  fputc('"', out);
}

void loom_report_begin(struct loom_report *r, int seeds, int lenient) {
  r->rows = 0;
  switch (r->format) {
  case FORMAT_TABLE:
    fprintf(r->out, "# weft check: %d seeds, %s reading of the proxy rules\n", seeds,
            lenient ? "lenient" : "strict");
    fprintf(r->out, "%-34s %-28s %8s %8s %9s  %s\n", "protocol", "dropped", "seeds", "flagged",
            "ms/seed", "verdict");
    break;
  case FORMAT_CSV:
    fprintf(r->out, "protocol,dropped,operation,seeds,flagged,ms_per_seed,verdict,finding\n");
    break;
  case FORMAT_JSON:
    fprintf(r->out, "{\"op\":\"check\",\"config\":{\"seeds\":%d,\"reading\":\"%s\"},\"results\":[",
            seeds, lenient ? "lenient" : "strict");
    break;
  }
}

static void row_json(struct loom_report *r, const struct loom_row *row) {
  fprintf(r->out, "%s{\"protocol\":", r->rows ? "," : "");
  json_string(r->out, row->protocol);
  if (row->dropped) {
    fprintf(r->out, ",\"dropped\":");
    json_string(r->out, row->dropped);
    fprintf(r->out, ",\"operation\":");
    json_string(r->out, row->operation);
  }
  fprintf(r->out, ",\"seeds\":%d,\"flagged\":%d,\"ms_per_seed\":%.3f,\"verdict\":", row->seeds,
          row->flagged, row->ms);
  json_string(r->out, row->verdict);
  fprintf(r->out, ",\"findings\":[");
  for (int i = 0; i < row->findings; i++) {
    fprintf(r->out, "%s{\"seeds\":%llu,\"text\":", i ? "," : "", (unsigned long long)row->seen[i]);
    json_string(r->out, row->text[i]);
    fprintf(r->out, "}");
  }
  fprintf(r->out, "]}");
}

void loom_report_row(struct loom_report *r, const struct loom_row *row) {
  switch (r->format) {
  case FORMAT_TABLE:
    fprintf(r->out, "%-34s %-28s %8d %8d %9.2f  %s\n", row->protocol,
            row->dropped ? row->dropped : "-", row->seeds, row->flagged, row->ms, row->verdict);
    for (int i = 0; i < row->findings; i++)
      fprintf(r->out, "#   in %llu: %s\n", (unsigned long long)row->seen[i], row->text[i]);
    break;
  case FORMAT_CSV:
    csv_string(r->out, row->protocol);
    fputc(',', r->out);
    csv_string(r->out, row->dropped ? row->dropped : "");
    fputc(',', r->out);
    csv_string(r->out, row->dropped ? row->operation : "");
    fprintf(r->out, ",%d,%d,%.3f,", row->seeds, row->flagged, row->ms);
    csv_string(r->out, row->verdict);
    fputc(',', r->out);
    csv_string(r->out, row->findings ? row->text[0] : "");
    fputc('\n', r->out);
    break;
  case FORMAT_JSON:
    row_json(r, row);
    break;
  }
  r->rows++;
  fflush(r->out);
}

void loom_report_end(struct loom_report *r, int ok) {
  if (r->format == FORMAT_TABLE) fprintf(r->out, "# %s\n", ok ? "right" : "wrong");
  if (r->format == FORMAT_JSON) fprintf(r->out, "],\"ok\":%s}\n", ok ? "true" : "false");
}

static const char *expected_name(enum loom_expectation e) {
  return e == LOOM_CLEAN ? "clean" : e == LOOM_FLAGGED ? "flagged" : "flagged once";
}

void loom_report_list(FILE *out, int format, int lenient) {
  if (format == FORMAT_CSV) fprintf(out, "protocol,expected,looks_once,ranks,summary\n");
  if (format == FORMAT_JSON) fprintf(out, "{\"op\":\"check\",\"protocols\":[");
  for (int i = 0; i < loom_protocol_count(); i++) {
    const struct loom_protocol *p = loom_protocol_at(i);
    const char *expected = expected_name(lenient ? p->lenient : p->strict);
    switch (format) {
    case FORMAT_CSV:
      fprintf(out, "%s,%s,%d,%u,", p->name, expected, p->looks_once, p->ranks ? p->ranks : 1);
      csv_string(out, p->summary);
      fputc('\n', out);
      break;
    case FORMAT_JSON:
      fprintf(out, "%s{\"protocol\":", i ? "," : "");
      json_string(out, p->name);
      fprintf(out, ",\"expected\":\"%s\",\"looks_once\":%s,\"ranks\":%u,\"summary\":", expected,
              p->looks_once ? "true" : "false", p->ranks ? p->ranks : 1);
      json_string(out, p->summary);
      fputc('}', out);
      break;
    default:
      fprintf(out, "%-34s %-13s %s\n", p->name, expected, p->summary);
    }
  }
  if (format == FORMAT_JSON) fprintf(out, "]}\n");
}
