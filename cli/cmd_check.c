/* `weft check`: runs device code in loom over seeds, whole or with call sites left out, and says
 * what was found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

#include "ce_options.h"
#include "commands.h"
#include "loom_report.h"
#include "loom_seeds.h"
#include "options.h"

#define SEEDS_DEFAULT 16
#define NAMES_MAX     256
#define LABEL_BYTES   256

struct check {
  const char *name[NAMES_MAX];
  int names;
  int64_t ranks, hosts, seeds;
  bool list, lenient, drop_each, help;
  const char *drop, *trace;
  int format;
  struct loom_report report;
};

/* What --drop-each has seen of each label; kept at the first site that has the label. */
struct drops {
  struct loom_site *const *site;
  int count;
  int *first;              /* of each site's label */
  unsigned char *ran;      /* this very site, in some protocol */
  unsigned char *executed; /* some site of the label was left out in some protocol */
  unsigned char *found;    /* as it must be, in some protocol */
};

static bool run(const struct check *c, const struct loom_protocol *p, struct loom_tally *t,
                unsigned char *executed, error *error) {
  const struct loom_request request = {.protocol = p,
                                       .options = {(uint32_t)c->ranks, (uint32_t)c->hosts},
                                       .seeds = (int)c->seeds,
                                       .lenient = c->lenient,
                                       .trace = c->trace};
  return loom_seeds_run(&request, t, executed, error);
}

static void report(struct check *c, const struct loom_protocol *p, struct loom_tally *t,
                   const char *dropped, const char *operation, const char *verdict) {
  const struct loom_row row = {.protocol = p->name,
                               .dropped = dropped,
                               .operation = operation,
                               .seeds = t->seeds,
                               .flagged = t->flagged,
                               .verdict = verdict,
                               .ms = t->seeds ? t->cpu_ms / t->seeds : 0,
                               .findings = t->findings,
                               .text = t->text,
                               .seen = t->seen};
  loom_report_row(&c->report, &row);
}

static bool check_whole(struct check *c, const struct loom_protocol *p, bool *wrong, error *error) {
  static struct loom_tally t;
  if (!run(c, p, &t, NULL, error)) return false;
  *wrong |= t.flagged > 0;
  report(c, p, &t, c->drop, "", t.flagged ? "findings" : "clean");
  return true;
}

static bool drops_begin(struct drops *d) {
  d->site = loom_sites(&d->count);
  const size_t n = (size_t)d->count + 1;
  d->first = calloc(n, sizeof *d->first);
  d->ran = calloc(n, 1);
  d->executed = calloc(n, 1);
  d->found = calloc(n, 1);
  if (d->first == NULL || d->ran == NULL || d->executed == NULL || d->found == NULL) return false;
  for (int i = 0; i < d->count; i++) {
    char own[LABEL_BYTES], other[LABEL_BYTES];
    loom_site_label(d->site[i], own, sizeof own);
    for (d->first[i] = 0; d->first[i] < i; d->first[i]++) {
      const struct loom_site *s = d->site[d->first[i]];
      loom_site_label(s, other, sizeof other);
      if (s->kind != LOOM_KIND_plain && !strcmp(own, other)) break;
    }
  }
  return true;
}

static void drops_end(struct drops *d) {
  free(d->first);
  free(d->ran);
  free(d->executed);
  free(d->found);
}

/* A lost fence must be found in every seed; other sites, and fences behind a branch that depends on
 * chance, in some. */
static bool found_as_it_must(const struct loom_tally *t, const struct loom_protocol *p,
                             const struct loom_site *site) {
  if (site->kind == LOOM_KIND_fence && !p->looks_once) return t->flagged == t->seeds;
  return t->flagged > 0;
}

static bool check_drops(struct check *c, struct drops *d, const struct loom_protocol *p,
                        bool *wrong, error *error) {
  static struct loom_tally t;
  unsigned char *ran = calloc((size_t)d->count + 1, 1);
  if (ran == NULL) return error_set(error, "no memory");
  bool good = run(c, p, &t, ran, error);
  if (good) {
    *wrong |= t.flagged > 0;
    report(c, p, &t, NULL, NULL, t.flagged ? "findings without a drop" : "clean");
    for (int i = 0; i < d->count; i++) {
      d->ran[i] |= ran[i];
      ran[d->first[i]] |= ran[i]; /* any site of the label */
    }
  }
  for (int i = 0; good && i < d->count; i++) {
    const struct loom_site *site = d->site[i];
    if (site->kind == LOOM_KIND_plain || d->first[i] != i || !ran[i]) continue;
    char label[LABEL_BYTES];
    loom_site_label(site, label, sizeof label);
    loom_drop(label);
    good = run(c, p, &t, NULL, error);
    loom_drop(NULL);
    if (!good) break;
    d->executed[i] = 1;
    d->found[i] |= found_as_it_must(&t, p, site);
    if (t.findings > 1) t.findings = 1; /* the first tells enough */
    report(c, p, &t, label, site->op,
           t.flagged == t.seeds ? "found in every seed"
           : t.flagged          ? "found in some seeds"
                                : "not found");
  }
  free(ran);
  return good;
}

/* After all protocols: a drop is wrong if none of them showed it. Sites that never ran in a
 * function that did are worth a word. */
static void judge_drops(struct check *c, const struct drops *d, bool *wrong) {
  for (int i = 0; i < d->count; i++) {
    const struct loom_site *site = d->site[i];
    if (site->kind == LOOM_KIND_plain || d->first[i] != i) continue;
    if (d->executed[i]) {
      *wrong |= !d->found[i];
      continue;
    }
    bool near = false;
    for (int j = 0; j < d->count && !near; j++)
      near = d->ran[j] && !strcmp(site->function, d->site[j]->function) &&
             !strcmp(site->file, d->site[j]->file);
    if (!near) continue;
    char label[LABEL_BYTES];
    loom_site_label(site, label, sizeof label);
    const struct loom_row row = {.protocol = c->names == 1 ? c->name[0] : "(all)",
                                 .dropped = label,
                                 .operation = site->op,
                                 .verdict = "never executed"};
    loom_report_row(&c->report, &row);
  }
}

static const struct loom_protocol *find(const char *name) {
  for (int i = 0; i < loom_protocol_count(); i++)
    if (!strcmp(loom_protocol_at(i)->name, name)) return loom_protocol_at(i);
  return NULL;
}

static int check_all(struct check *c) {
  struct drops drops = {0};
  error error;
  bool wrong = false, good = true;
  if (c->drop_each && !drops_begin(&drops)) {
    drops_end(&drops);
    return complain(EXIT_FAILED, "check: no memory");
  }
  loom_report_begin(&c->report, (int)c->seeds, c->lenient);
  const int count = c->names > 0 ? c->names : loom_protocol_count();
  for (int i = 0; i < count && good; i++) {
    const struct loom_protocol *p = c->names > 0 ? find(c->name[i]) : loom_protocol_at(i);
    /* without names: those that should be clean */
    if (c->names == 0 && (p->strict != LOOM_CLEAN || p->lenient != LOOM_CLEAN)) continue;
    good = c->drop_each ? check_drops(c, &drops, p, &wrong, &error)
                        : check_whole(c, p, &wrong, &error);
  }
  if (good && c->drop_each) judge_drops(c, &drops, &wrong);
  loom_report_end(&c->report, good && !wrong);
  drops_end(&drops);
  if (!good) return complain(EXIT_FAILED, "check: %s", error.text);
  if (fflush(stdout) != 0) return complain(EXIT_FAILED, "check: cannot write to stdout");
  return wrong ? EXIT_WRONG : EXIT_RIGHT;
}

static void print_help(const option *options, int count) {
  printf("weft check: runs device code without a GPU, in loom, and reports races, missing fences,\n"
         "deadlocks and wrong results. Without names: every protocol that should be clean.\n\n"
         "usage: weft check [PROTOCOL ...] [flags]\n\n");
  options_help(options, count);
  printf(
      "\nexit: 0 clean, 1 a finding (with --drop-each: a drop that no protocol showed), 2 usage,\n"
      "4 failure at run time\n");
}

int cmd_check(int count, char **arguments) {
  struct check c = {.seeds = SEEDS_DEFAULT, .format = FORMAT_TABLE};
  option options[] = {
      {"--list", OPTION_FLAG, &c.list, .help = "names the protocols and what is expected of them"},
      {"--ranks", OPTION_INT, &c.ranks, 1, 4096, .argument = "N",
       .help = "ranks, each a GPU (the protocol's own)"},
      {"--hosts", OPTION_INT, &c.hosts, 1, 4096, .argument = "N",
       .help = "hosts that the ranks are spread over (1)"},
      {"--seeds", OPTION_INT, &c.seeds, 1, 100000000, .argument = "N",
       .help = "interleavings to try (16)"},
      {"--lenient", OPTION_FLAG, &c.lenient,
       .help = "a proxy fence anywhere on the causality path counts"},
      {"--drop", OPTION_TEXT, &c.drop, .argument = "SITE",
       .help = "leaves a call site out: a fence's name, or file:line"},
      {"--drop-each", OPTION_FLAG, &c.drop_each,
       .help = "leaves each call site out in turn; each must be found"},
      {"--trace", OPTION_TEXT, &c.trace, .argument = "FILE",
       .help = "one line an operation of seed 0"},
      {"--format", OPTION_CHOICE, &c.format, .choices = FORMAT_NAMES, .argument = "table|csv|json",
       .help = "of the output (table)"},
      {"--help", OPTION_FLAG, &c.help, .help = "this text"}};
  const int options_count = (int)(sizeof options / sizeof options[0]);
  error error;
  if (!options_parse_words(options, options_count, count, arguments, c.name, NAMES_MAX, &c.names,
                           &error))
    return complain(EXIT_USAGE, "check: %s", error.text);
  if (c.help) {
    print_help(options, options_count);
    return EXIT_RIGHT;
  }
  if (c.drop != NULL && c.drop_each)
    return complain(EXIT_USAGE, "check: --drop and --drop-each exclude each other");
  loom_litmus_register();
  loom_combine_register();
  loom_meeting_register();
  loom_ep_register();
  loom_gemm_register();
  loom_ce_register();
  if (c.list) {
    loom_report_list(stdout, c.format, c.lenient);
    return EXIT_RIGHT;
  }
  for (int i = 0; i < c.names; i++)
    if (find(c.name[i]) == NULL)
      return complain(EXIT_USAGE, "check: no protocol is called \"%.80s\"; --list names them",
                      c.name[i]);
  if (c.drop != NULL && loom_drop(c.drop) == 0)
    return complain(EXIT_USAGE, "check: no site that can be left out is called \"%.80s\"", c.drop);
  c.report.out = stdout;
  c.report.format = c.format;
  const int status = check_all(&c);
  loom_drop(NULL);
  return status;
}
