/* The law: a flag is taken exactly when it is known and its value is a number in range or a known
 * word; else the message names flag, value and expectation. */
#include <string.h>

#include "ce_options.h"
#include "cmocka_all.h"

static void whole_numbers(void **state) {
  (void)state;
  int64_t v = 7;
  assert_true(parse_int("0", &v) && v == 0);
  assert_true(parse_int("-100", &v) && v == -100);
  assert_true(parse_int("9223372036854775807", &v) && v == INT64_MAX);
  assert_true(parse_int("-9223372036854775808", &v) && v == INT64_MIN);
  static const char *const bad[] = {"",
                                    " 1",
                                    "1 ",
                                    "+1",
                                    "1.0",
                                    "1e3",
                                    "0x10",
                                    "--1",
                                    "-",
                                    "1-",
                                    "a",
                                    "9223372036854775808",
                                    "-9223372036854775809",
                                    "99999999999999999999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    v = 7;
    assert_false(parse_int(bad[i], &v));
    assert_int_equal(v, 7);
  }
}

static void real_numbers(void **state) {
  (void)state;
  double v = 7;
  assert_true(parse_real("0.25", &v) && v == 0.25);
  assert_true(parse_real("-1e-3", &v) && v == -1e-3);
  assert_true(parse_real("3", &v) && v == 3);
  static const char *const bad[] = {"",   "nan", "inf",   "-inf", "0x1p3", " 1",
                                    "1 ", "1e",  "1e999", ".",    "1.2.3", "e5"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_false(parse_real(bad[i], &v));
}

static bool parse(ce_options *o, error *error, int count, ...) {
  char *arguments[16];
  va_list list;
  va_start(list, count);
  for (int i = 0; i < count; i++)
    arguments[i] = va_arg(list, char *);
  va_end(list);
  return ce_options_parse(o, count, arguments, error);
}

static void defaults(void **state) {
  (void)state;
  ce_options o;
  error e;
  assert_true(parse(&o, &e, 0));
  ce_options_defaults(&o, false);
  assert_int_equal(o.tokens, 1024);
  assert_int_equal(o.hidden, 1024);
  assert_int_equal(o.vocab, 32768);
  assert_int_equal(o.dtype, WEFT_F32);
  assert_int_equal(o.ignore_index, -100);
  assert_int_equal(o.phase, PHASE_ALL);
  assert_int_equal(o.dx, WEFT_DX_ALL_REDUCE);
  assert_true(o.temperature == 1 && o.softcap == 0 && o.ignore == 0);
  assert_true(parse(&o, &e, 0));
  ce_options_defaults(&o, true);
  assert_int_equal(o.tokens, 4096);
  assert_int_equal(o.hidden, 4096);
  assert_int_equal(o.vocab, 131072);
  assert_int_equal(o.dtype, WEFT_BF16);
}

static void values(void **state) {
  (void)state;
  ce_options o;
  error e;
  assert_true(parse(&o, &e, 6, "--tokens", "0", "--vocab=507", "--dtype", "f16", "--entropy"));
  ce_options_defaults(&o, false);
  assert_int_equal(o.tokens, 0);
  assert_int_equal(o.vocab, 507);
  assert_int_equal(o.hidden, 1024);
  assert_int_equal(o.dtype, WEFT_F16);
  assert_true(o.entropy && !o.verify);
  assert_true(parse(&o, &e, 2, "--ignore-index", "-9223372036854775808"));
  assert_int_equal(o.ignore_index, INT64_MIN);
  assert_true(parse(&o, &e, 4, "--ranks", "2", "--ranks", "3"));
  assert_int_equal(o.ranks, 3);
  assert_true(parse(&o, &e, 4, "--dx", "reduce_scatter", "--format", "json"));
  assert_int_equal(o.dx, WEFT_DX_REDUCE_SCATTER);
  assert_int_equal(o.format, FORMAT_JSON);
}

/* Each is refused, and its message holds the words. */
static void refusals(void **state) {
  (void)state;
  static const struct {
    const char *flag, *value, *words[3];
  } cases[] = {
      {"--token", "5", {"--token", "unknown flag", "--help"}},
      {"tokens", "5", {"tokens", "unknown flag", "--help"}},
      {"--tokens", "-1", {"--tokens", "\"-1\"", "from 0"}},
      {"--tokens", "1e3", {"--tokens", "\"1e3\"", "whole number"}},
      {"--tokens", "9223372036854775808", {"--tokens", "9223372036854775808", "whole number"}},
      {"--hidden", "0", {"--hidden", "\"0\"", "from 1"}},
      {"--vocab", "0", {"--vocab", "\"0\"", "from 1"}},
      {"--ranks", "0", {"--ranks", "\"0\"", "from 1 to 65536"}},
      {"--ranks", "65537", {"--ranks", "\"65537\"", "from 1 to 65536"}},
      {"--ranks", "513", {"--ranks", "513", "at most 512"}},
      {"--hosts", "2", {"--hosts", "2", "divisor of --ranks"}},
      {"--dtype", "fp32", {"--dtype", "\"fp32\"", "f32, bf16, f16"}},
      {"--temperature", "0", {"--temperature", "\"0\"", "expected a number from"}},
      {"--temperature", "1e-50", {"--temperature", "\"1e-50\"", "expected a number from"}},
      {"--temperature", "1e39", {"--temperature", "\"1e39\"", "expected a number from"}},
      {"--temperature", "nan", {"--temperature", "\"nan\"", "expected a number from"}},
      {"--softcap", "-1", {"--softcap", "\"-1\"", "expected a number from 0"}},
      {"--softcap", "1e-50", {"--softcap", "1e-50", "expected 0 or"}},
      {"--ignore", "1.01", {"--ignore", "\"1.01\"", "from 0 to 1"}},
      {"--phase", "both", {"--phase", "\"both\"", "forward, backward, step, all"}},
      {"--workspace-mib", "8796093022208", {"--workspace-mib", "8796093022208", "whole number"}},
      {"--iters", "0", {"--iters", "\"0\"", "from 1"}},
      {"--format", "xml", {"--format", "\"xml\"", "table, csv, json"}},
      {"--arch", "sm90", {"--arch", "without", "--plan"}},
      {"--x", "", {"--x", "empty", "expected FILE"}},
      {"--entropy=yes", "--verify", {"--entropy", "yes", "no value"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ce_options o;
    error e = {""};
    assert_false(parse(&o, &e, 2, cases[i].flag, cases[i].value));
    for (int w = 0; w < 3; w++)
      if (strstr(e.text, cases[i].words[w]) == NULL)
        fail_msg("%s %s: \"%s\" is not in \"%s\"", cases[i].flag, cases[i].value, cases[i].words[w],
                 e.text);
  }
  ce_options o;
  error e;
  assert_false(parse(&o, &e, 1, "--tokens"));
  assert_non_null(strstr(e.text, "--tokens has no value"));
  assert_false(parse(&o, &e, 4, "--targets", "t.npy", "--ignore", "0.5"));
  assert_false(parse(&o, &e, 3, "--plan", "--x", "x.npy"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(whole_numbers),
                                     cmocka_unit_test(real_numbers), cmocka_unit_test(defaults),
                                     cmocka_unit_test(values), cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
