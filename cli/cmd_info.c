/* `weft info`: what the library found on this machine. */
#include <jansson.h>
#include <stdio.h>
#include <weft/weft.h>

#include "ce_options.h"
#include "commands.h"

static void version_text(char *out, size_t bytes) {
  const int number = weft_version();
  snprintf(out, bytes, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

static const char *or_none(const char *text) {
  return text != NULL ? text : "";
}

static void print_json(const char *version, const weft_system_info *i) {
  json_t *root = json_pack(
      "{s:s, s:s, s:I, s:s, s:s, s:{s:{s:b}, s:{s:b, s:s}}, s:{s:{s:b}, s:{s:b, s:s}, s:{s:b, "
      "s:s}}}",
      "op", "info", "version", version, "cores", (json_int_t)i->cores, "isa", or_none(i->isa),
      "blas", or_none(i->blas), "backends", "cpu", "available", i->cpu_available, "cuda",
      "available", i->cuda_available, "reason", or_none(i->cuda_reason), "transports", "inproc",
      "available", 1, "mpi", "available", i->mpi_available, "reason", or_none(i->mpi_reason),
      "nvshmem", "available", i->nvshmem_available, "reason", or_none(i->nvshmem_reason));
  json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_INDENT(2));
  printf("\n");
  json_decref(root);
}

/* A CSV field in quotes, with quotes doubled. */
static void print_quoted(const char *text) {
  putchar('"');
  for (; *text != '\0'; text++) {
    if (*text == '"') putchar('"');
    putchar(*text);
  }
  putchar('"');
}

static void print_rows(const char *version, const weft_system_info *i, bool csv) {
  char cores[32];
  snprintf(cores, sizeof cores, "%lld", (long long)i->cores);
  const struct {
    const char *name, *value, *detail;
  } rows[] = {
      {"version", version, ""},
      {"cores", cores, ""},
      {"isa", or_none(i->isa), ""},
      {"blas", or_none(i->blas), ""},
      {"cpu", i->cpu_available ? "on" : "off", ""},
      {"cuda", i->cuda_available ? "on" : "off", or_none(i->cuda_reason)},
      {"inproc", "on", ""},
      {"mpi", i->mpi_available ? "on" : "off", or_none(i->mpi_reason)},
      {"nvshmem", i->nvshmem_available ? "on" : "off", or_none(i->nvshmem_reason)},
  };
  if (csv)
    printf("name,value,detail\n");
  else
    printf("# weft info: the library, this machine, backends (cpu, cuda), transports (inproc, mpi,"
           " nvshmem)\n%-8s %s\n",
           "name", "value");
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
    if (csv) {
      printf("%s,", rows[k].name);
      print_quoted(rows[k].value);
      putchar(',');
      print_quoted(rows[k].detail);
      putchar('\n');
    } else {
      printf("%-8s %s%s%s\n", rows[k].name, rows[k].value, *rows[k].detail ? ": " : "",
             rows[k].detail);
    }
  }
}

int cmd_info(int count, char **arguments) {
  int format = FORMAT_TABLE;
  bool help = false;
  option options[] = {{"--format", OPTION_CHOICE, &format, .choices = FORMAT_NAMES,
                       .argument = "table|csv|json", .help = "of the output (table)"},
                      {"--help", OPTION_FLAG, &help, .help = "this text"}};
  error error;
  if (!options_parse(options, 2, count, arguments, &error))
    return complain(EXIT_USAGE, "info: %s", error.text);
  if (help) {
    printf("weft info: what the library found on this machine.\n\nusage: weft info [flags]\n\n");
    options_help(options, 2);
    return end_output("info");
  }
  weft_system_info info = WEFT_SYSTEM_INFO_INIT;
  if (weft_system_info_get(&info) != WEFT_OK)
    return complain(EXIT_FAILED, "info: %s", weft_last_error());
  char version[40];
  version_text(version, sizeof version);
  if (format == FORMAT_JSON)
    print_json(version, &info);
  else
    print_rows(version, &info, format == FORMAT_CSV);
  return end_output("info");
}
