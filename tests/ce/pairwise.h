/* Covering arrays: a small list of rows in which every allowed pair of levels of two factors stands
 * at least once. Knows nothing of what the factors mean. */
#ifndef WEFT_TESTS_CE_PAIRWISE_H
#define WEFT_TESTS_CE_PAIRWISE_H

#include <stdbool.h>
#include <stdint.h>

enum { PAIRWISE_FACTORS = 40, PAIRWISE_ROWS = 2000 };

typedef struct pairwise_row {
  int level[PAIRWISE_FACTORS];
} pairwise_row;

/* False where level a of factor f cannot stand beside level b of factor g (f < g). */
typedef bool (*pairwise_allowed)(int f, int a, int g, int b);

/* Greedy: each new row is the best of some seeded tries. Returns the number of rows. */
int pairwise_make(const int *levels, int factors, pairwise_allowed allowed, uint64_t seed,
                  pairwise_row *rows);

/* Allowed pairs that no row has, counted without regard to how the rows came about; rows with a
 * pair that is not allowed count as well. */
int pairwise_missing(const int *levels, int factors, pairwise_allowed allowed,
                     const pairwise_row *rows, int count);

#endif
