/* `weft check`: runs protocols over seeds, whole or with call sites left out, and says what loom
 * found. Uses loom's public header alone. */
#include "report.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/loom.h>

enum { EXIT_RIGHT = 0, EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_UNSUPPORTED = 3, EXIT_FAILURE_RUN = 4 };

#define SEEDS_DEFAULT 16
#define TEXTS_MAX     16
#define NAMES_MAX     64

struct command {
  const char *program;
  const char *name[NAMES_MAX];
  int names;
  struct loom_options options;
  int list, seeds, lenient, drop_each;
  const char *drop, *trace;
  enum report_format format;
};

static int usage(const struct command *c, const char *what, const char *value) {
  fprintf(
      stderr,
      "%s check: %s%s%s\n"
      "usage: %s check [--list] [PROTOCOL ...] [--ranks N] [--hosts N] [--seeds N] [--lenient]\n"
      "                [--drop SITE | --drop-each] [--trace FILE] [--format table|csv|json]\n",
      c->program, what, value ? " " : "", value ? value : "", c->program);
  return EXIT_USAGE;
}

static int number(const char *s, int min, int max, int *out) {
  char *end;
  const long v = strtol(s, &end, 10);
  if (!*s || *end || v < min || v > max) return -1;
  *out = (int)v;
  return 0;
}

static int parse(struct command *c, int argc, char **argv) {
  c->seeds = SEEDS_DEFAULT;
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i];
    int n;
    if (a[0] != '-') {
      if (c->names == NAMES_MAX) return usage(c, "too many protocols", NULL);
      c->name[c->names++] = a;
      continue;
    }
    int *const flag = !strcmp(a, "--list")        ? &c->list
                      : !strcmp(a, "--lenient")   ? &c->lenient
                      : !strcmp(a, "--drop-each") ? &c->drop_each
                                                  : NULL;
    if (flag) {
      *flag = 1;
      continue;
    }
    const int known = !strcmp(a, "--ranks") || !strcmp(a, "--hosts") || !strcmp(a, "--seeds") ||
                      !strcmp(a, "--drop") || !strcmp(a, "--trace") || !strcmp(a, "--format");
    if (!known) return usage(c, "unknown option", a);
    if (++i == argc) return usage(c, "a value is missing after", a);
    const char *v = argv[i];
    if (!strcmp(a, "--drop")) {
      c->drop = v;
    } else if (!strcmp(a, "--trace")) {
      c->trace = v;
    } else if (!strcmp(a, "--format")) {
      if (!strcmp(v, "table"))
        c->format = REPORT_TABLE;
      else if (!strcmp(v, "csv"))
        c->format = REPORT_CSV;
      else if (!strcmp(v, "json"))
        c->format = REPORT_JSON;
      else
        return usage(c, "--format is table, csv or json, not", v);
    } else if (number(v, 1, !strcmp(a, "--seeds") ? 100000000 : 4096, &n)) {
      return usage(c, "not a number in range:", v);
    } else if (!strcmp(a, "--ranks")) {
      c->options.ranks = (uint32_t)n;
    } else if (!strcmp(a, "--hosts")) {
      c->options.hosts = (uint32_t)n;
    } else {
      c->seeds = n;
    }
  }
  if (c->drop && c->drop_each) return usage(c, "--drop and --drop-each exclude each other", NULL);
  return 0;
}

/* ---- running ---- */

/* What the seeds of one row showed. The same kind between the same sites is one line. */
struct tally {
  struct report_row row;
  char text[TEXTS_MAX][512];
  uint64_t seen[TEXTS_MAX];
  struct {
    enum loom_finding_kind kind;
    const struct loom_site *now, *before;
  } key[TEXTS_MAX];
};

static void tally_findings(struct tally *t) {
  for (int i = 0; i < loom_finding_count(); i++) {
    const struct loom_finding *f = loom_finding_at(i);
    int k = 0;
    while (k < t->row.findings && (t->key[k].kind != f->kind || t->key[k].now != f->now.site ||
                                   t->key[k].before != f->before.site))
      k++;
    if (k == TEXTS_MAX) continue;
    if (k == t->row.findings) {
      t->row.findings++;
      t->key[k].kind = f->kind;
      t->key[k].now = f->now.site;
      t->key[k].before = f->before.site;
      memcpy(t->text[k], f->text, sizeof t->text[k]);
    }
    t->seen[k]++;
  }
}

/* All seeds of one protocol; -1 when it cannot run. executed: where to mark sites that ran, or
 * NULL. */
static int run_seeds(const struct command *c, const struct loom_protocol *p, struct tally *t,
                     uint8_t *executed) {
  int sites;
  struct loom_site *const *site = loom_sites(&sites);
  memset(t, 0, sizeof *t);
  t->row.protocol = p->name;
  t->row.text = t->text;
  t->row.seen = t->seen;
  const clock_t start = clock();
  for (int seed = 0; seed < c->seeds; seed++) {
    struct loom_config config = LOOM_CONFIG_INIT;
    config.seed = (uint64_t)seed;
    config.policy = (enum loom_policy)(seed % LOOM_POLICIES);
    config.lenient = c->lenient;
    config.trace_path = seed == 0 ? c->trace : NULL;
    const int n = loom_protocol_run(p, &c->options, &config);
    if (n < 0) return -1;
    t->row.seeds++;
    t->row.flagged += n > 0;
    tally_findings(t);
    for (int i = 0; executed && i < sites; i++)
      executed[i] |= site[i]->hits > 0;
  }
  t->row.ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC / c->seeds;
  return 0;
}

static int cannot_run(const struct command *c, const struct loom_protocol *p) {
  fprintf(stderr, "%s check: %s cannot run with these options (trace file, ranks)\n", c->program,
          p->name);
  return EXIT_FAILURE_RUN;
}

static int check_whole(const struct command *c, const struct loom_protocol *p,
                       struct report *report, int *wrong) {
  static struct tally t;
  if (run_seeds(c, p, &t, NULL) != 0) return cannot_run(c, p);
  t.row.verdict = t.row.flagged ? "findings" : "clean";
  if (c->drop) {
    t.row.dropped = c->drop;
    t.row.operation = "";
  }
  *wrong |= t.row.flagged > 0;
  report_row(report, &t.row);
  return 0;
}

/* Sites with the label of site[i], all of them or as they are. */
static void drop_label(struct loom_site *const *site, int n, const char *label, int drop) {
  char own[256];
  for (int i = 0; i < n; i++) {
    loom_site_label(site[i], own, sizeof own);
    if (site[i]->kind != LOOM_KIND_plain && !strcmp(own, label)) site[i]->drop = drop;
  }
}

/* A lost fence must be found in every seed; other sites, and fences behind a branch that depends on
 * chance, in some. */
static int found(const struct tally *t, const struct loom_protocol *p,
                 const struct loom_site *site) {
  if (site->kind == LOOM_KIND_fence && !p->looks_once) return t->row.flagged == t->row.seeds;
  return t->row.flagged > 0;
}

static int check_drops(const struct command *c, const struct loom_protocol *p,
                       struct report *report, int *wrong) {
  static struct tally t;
  int n, status = 0;
  struct loom_site *const *site = loom_sites(&n);
  uint8_t *executed = calloc((size_t)n + 1, 1);
  if (!executed) return EXIT_FAILURE_RUN;
  if (run_seeds(c, p, &t, executed) != 0) {
    free(executed);
    return cannot_run(c, p);
  }
  t.row.verdict = t.row.flagged ? "findings without a drop" : "clean";
  *wrong |= t.row.flagged > 0;
  report_row(report, &t.row);

  for (int i = 0; i < n && !status; i++) {
    if (site[i]->kind == LOOM_KIND_plain) continue;
    char label[256], other[256];
    loom_site_label(site[i], label, sizeof label);
    if (!executed[i]) {
      /* worth a word when its function did run */
      int same_function = 0;
      for (int j = 0; j < n; j++)
        same_function |= executed[j] && !strcmp(site[i]->function, site[j]->function) &&
                         !strcmp(site[i]->file, site[j]->file);
      if (!same_function) continue;
      const struct report_row row = {.protocol = p->name,
                                     .dropped = label,
                                     .operation = site[i]->op,
                                     .verdict = "never executed"};
      report_row(report, &row);
      continue;
    }
    int first = 1; /* a label is dropped once, however many sites it has */
    for (int j = 0; j < i && first; j++) {
      loom_site_label(site[j], other, sizeof other);
      first = !(executed[j] && site[j]->kind != LOOM_KIND_plain && !strcmp(label, other));
    }
    if (!first) continue;
    drop_label(site, n, label, 1);
    if (run_seeds(c, p, &t, NULL) != 0) status = cannot_run(c, p);
    drop_label(site, n, label, 0);
    t.row.dropped = label;
    t.row.operation = site[i]->op;
    t.row.verdict = t.row.flagged == t.row.seeds ? "found in every seed"
                    : t.row.flagged              ? "found in some seeds"
                                                 : "not found";
    *wrong |= !found(&t, p, site[i]);
    if (t.row.findings > 1) t.row.findings = 1; /* the first tells enough */
    report_row(report, &t.row);
  }
  free(executed);
  return status;
}

static int list(const struct command *c) {
  for (int i = 0; i < loom_protocol_count(); i++) {
    const struct loom_protocol *p = loom_protocol_at(i);
    const enum loom_expectation e = c->lenient ? p->lenient : p->strict;
    printf("%-34s %-13s %s\n", p->name,
           e == LOOM_CLEAN     ? "clean"
           : e == LOOM_FLAGGED ? "flagged"
                               : "flagged once",
           p->summary);
  }
  return EXIT_RIGHT;
}

static const struct loom_protocol *find(const char *name) {
  for (int i = 0; i < loom_protocol_count(); i++)
    if (!strcmp(loom_protocol_at(i)->name, name)) return loom_protocol_at(i);
  return NULL;
}

int loom_check_main(int argc, char **argv) {
  struct command c;
  memset(&c, 0, sizeof c);
  c.program = argc > 0 ? argv[0] : "weft";
  loom_litmus_register();
  int status = parse(&c, argc, argv), wrong = 0;
  if (status) return status;
  if (c.list) return list(&c);
  for (int i = 0; i < c.names; i++)
    if (!find(c.name[i])) return usage(&c, "no such protocol (see --list):", c.name[i]);
  if (c.drop && loom_drop(c.drop) == 0) return usage(&c, "no such site:", c.drop);

  struct report report = {stdout, c.format, 0};
  report_begin(&report, c.seeds, c.lenient);
  for (int i = 0; i < (c.names ? c.names : loom_protocol_count()) && !status; i++) {
    const struct loom_protocol *p = c.names ? find(c.name[i]) : loom_protocol_at(i);
    /* without names: those that should be clean */
    if (!c.names && (p->strict != LOOM_CLEAN || p->lenient != LOOM_CLEAN)) continue;
    status = (c.drop_each ? check_drops : check_whole)(&c, p, &report, &wrong);
  }
  report_end(&report, !wrong && !status);
  loom_drop(NULL);
  loom_end();
  return status ? status : wrong ? EXIT_WRONG : EXIT_RIGHT;
}
