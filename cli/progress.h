/* A line on a terminal that tells how far long work is. Nothing is printed where stderr is no
 * terminal. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

/* Begins a line for `total` units of `what`. One line at a time. */
void progress_begin(const char *what, int64_t total);

/* Adds done units. Any thread may call it. */
void progress_add(int64_t units);

/* Clears the line. */
void progress_end(void);

#endif
