/* Strict parsing of a command's flags from a table, which is also what its help is printed from.
 * An unknown flag, a missing or malformed value, or one outside its range is an error that names
 * the flag, the value and what was expected. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "base.h"

typedef enum option_kind {
  OPTION_FLAG,   /* bool, takes no value */
  OPTION_INT,    /* int64_t in [least, most] */
  OPTION_REAL,   /* double in [least_real, most_real], finite */
  OPTION_CHOICE, /* int: index of the word in choices */
  OPTION_TEXT    /* const char *, not empty */
} option_kind;

typedef struct option {
  const char *name; /* with its dashes */
  option_kind kind;
  void *value; /* of the kind's type; holds the default */
  int64_t least, most;
  double least_real, most_real;
  const char *const *choices; /* ends with NULL */
  const char *argument;       /* the value's name in the help */
  const char *help;
  bool given; /* set by the parser */
} option;

/* Parses arguments [0, count) (the program's and command's names not included). Both "--flag value"
 * and "--flag=value" are taken; of a flag given twice, the last counts. */
bool options_parse(option *options, int options_count, int count, char **arguments, error *error);

/* The same, and up to words_max words that are no flags go to words[0, *words_count). */
bool options_parse_words(option *options, int options_count, int count, char **arguments,
                         const char **words, int words_max, int *words_count, error *error);

/* Prints a line or more for each option on stdout. */
void options_help(const option *options, int options_count);

/* A whole decimal number of int64 range, nothing else. */
bool parse_int(const char *text, int64_t *out);

/* A finite decimal number, nothing else (no hexadecimal, no spaces). */
bool parse_real(const char *text, double *out);

#endif
