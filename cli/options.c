/* See options.h. Knows nothing of any command. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_int(const char *text, int64_t *out) {
  const char *digits = *text == '-' ? text + 1 : text;
  if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) return false;
  errno = 0;
  const long long value = strtoll(text, NULL, 10);
  if (errno != 0) return false;
  *out = value;
  return true;
}

bool parse_real(const char *text, double *out) {
  if (*text == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) return false;
  char *end = NULL;
  const double value = strtod(text, &end);
  if (*end != '\0' || !isfinite(value)) return false;
  *out = value;
  return true;
}

static bool parse_choice(const option *option, const char *text, error *error) {
  char list[200] = "";
  for (int i = 0; option->choices[i] != NULL; i++) {
    if (!strcmp(option->choices[i], text)) {
      *(int *)option->value = i;
      return true;
    }
    const size_t length = strlen(list);
    snprintf(list + length, sizeof list - length, "%s%s", i > 0 ? ", " : "", option->choices[i]);
  }
  return error_set(error, "%s is \"%.80s\"; expected one of %s", option->name, text, list);
}

static bool parse_value(const option *option, const char *text, error *error) {
  int64_t whole;
  double real;
  switch (option->kind) {
  case OPTION_INT:
    if (!parse_int(text, &whole) || whole < option->least || whole > option->most)
      return error_set(error, "%s is \"%.80s\"; expected a whole number from %lld to %lld",
                       option->name, text, (long long)option->least, (long long)option->most);
    *(int64_t *)option->value = whole;
    return true;
  case OPTION_REAL:
    if (!parse_real(text, &real) || real < option->least_real || real > option->most_real)
      return error_set(error, "%s is \"%.80s\"; expected a number from %g to %g", option->name,
                       text, option->least_real, option->most_real);
    *(double *)option->value = real;
    return true;
  case OPTION_CHOICE:
    return parse_choice(option, text, error);
  case OPTION_TEXT:
    if (*text == '\0')
      return error_set(error, "%s is empty; expected %s", option->name, option->argument);
    *(const char **)option->value = text;
    return true;
  case OPTION_FLAG:
    break;
  }
  return false;
}

bool options_parse(option *options, int options_count, int count, char **arguments, error *error) {
  return options_parse_words(options, options_count, count, arguments, NULL, 0, NULL, error);
}

bool options_parse_words(option *options, int options_count, int count, char **arguments,
                         const char **words, int words_max, int *words_count, error *error) {
  for (int at = 0; at < count; at++) {
    const char *word = arguments[at], *equals = strchr(word, '=');
    if (words != NULL && word[0] != '-') {
      if (*words_count == words_max)
        return error_set(error, "\"%.80s\" is one word too many; expected at most %d", word,
                         words_max);
      words[(*words_count)++] = word;
      continue;
    }
    const size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    option *found = NULL;
    for (int i = 0; i < options_count; i++)
      if (strlen(options[i].name) == length && !memcmp(options[i].name, word, length))
        found = &options[i];
    if (found == NULL)
      return error_set(error, "unknown flag \"%.80s\"; --help lists the flags", word);
    if (found->kind == OPTION_FLAG) {
      if (equals != NULL)
        return error_set(error, "%s takes no value, \"%.80s\" was given", found->name, equals + 1);
      *(bool *)found->value = true;
    } else {
      const char *text = equals != NULL ? equals + 1 : NULL;
      if (text == NULL) {
        if (at + 1 >= count)
          return error_set(error, "%s has no value; expected %s", found->name, found->argument);
        text = arguments[++at];
      }
      if (!parse_value(found, text, error)) return false;
    }
    found->given = true;
  }
  return true;
}

void options_help(const option *options, int options_count) {
  for (int i = 0; i < options_count; i++) {
    char left[80];
    snprintf(left, sizeof left, "%s%s%s", options[i].name,
             options[i].kind == OPTION_FLAG ? "" : " ",
             options[i].kind == OPTION_FLAG ? "" : options[i].argument);
    printf("  %-30s %s\n", left, options[i].help);
  }
}
