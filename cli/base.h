/* What every file of the program shares: exit codes, an error's words, and how they are printed.
 * Readers and parsers fill an `error` and print nothing, so that tests and fuzzers can call them.
 */
#ifndef CLI_BASE_H
#define CLI_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  EXIT_RIGHT = 0,       /* done, and the results are right as far as they were checked */
  EXIT_WRONG = 1,       /* a result is wrong */
  EXIT_USAGE = 2,       /* the command line asks for something that makes no sense */
  EXIT_UNSUPPORTED = 3, /* sensible, but not offered on this machine or in this version */
  EXIT_FAILED = 4       /* a failure at run time: files, memory, the library */
};

typedef struct error {
  char text[600];
} error;

/* Sets the words (printf format) and returns false. */
bool error_set(error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The exit code of a command that has printed all it has to say: EXIT_FAILED, with a message, where
 * stdout did not take it (a full disk). */
int end_output(const char *command);

/* Prints "weft: …" on stderr and returns `code`. */
int complain(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* a·b in *out; false when it does not fit int64 or an operand is negative. */
bool multiply(int64_t a, int64_t b, int64_t *out);

/* Cores this process may run on, at least 1. */
int core_count(void);

#endif
