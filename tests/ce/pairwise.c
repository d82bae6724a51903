/* A try starts from a pair that is still missing, and fills the other factors in random order, each
 * with the level that covers most new pairs. */
#include "pairwise.h"

#include <stdlib.h>
#include <string.h>

#include "matrix.h"

enum { LEVELS = 8, TRIES = 20 };

typedef struct maker {
  const int *levels;
  int factors;
  pairwise_allowed allowed;
  uint64_t seed, drawn;
  bool covered[PAIRWISE_FACTORS][LEVELS][PAIRWISE_FACTORS][LEVELS]; /* f < g */
} maker;

static int draw(maker *m, int n) {
  return (int)(noise_uniform(m->seed, m->drawn++) * n);
}

static bool allowed(const maker *m, int f, int a, int g, int b) {
  return f < g ? m->allowed(f, a, g, b) : m->allowed(g, b, f, a);
}

static bool *cell(maker *m, int f, int a, int g, int b) {
  return f < g ? &m->covered[f][a][g][b] : &m->covered[g][b][f][a];
}

/* New pairs that level a of factor f would cover beside the factors already set; −1: not allowed.
 */
static int gain(maker *m, const pairwise_row *row, int f, int a) {
  int sum = 0;
  for (int g = 0; g < m->factors; g++) {
    const int b = row->level[g];
    if (g == f || b < 0) continue;
    if (!allowed(m, f, a, g, b)) return -1;
    sum += !*cell(m, f, a, g, b);
  }
  return sum;
}

static bool fill(maker *m, pairwise_row *row, int *total) {
  int order[PAIRWISE_FACTORS];
  for (int f = 0; f < m->factors; f++)
    order[f] = f;
  for (int i = m->factors - 1; i > 0; i--) {
    const int j = draw(m, i + 1), keep = order[i];
    order[i] = order[j];
    order[j] = keep;
  }
  for (int i = 0; i < m->factors; i++) {
    const int f = order[i];
    if (row->level[f] >= 0) continue;
    int best = -1, most = -1;
    const int first = draw(m, m->levels[f]);
    for (int k = 0; k < m->levels[f]; k++) {
      const int a = (first + k) % m->levels[f], new = gain(m, row, f, a);
      if (new > most) {
        most = new;
        best = a;
      }
    }
    if (best < 0) return false;
    row->level[f] = best;
    *total += most;
  }
  return true;
}

static bool find_missing(maker *m, pairwise_row *row) {
  for (int f = 0; f < m->factors; f++)
    for (int a = 0; a < m->levels[f]; a++)
      for (int g = f + 1; g < m->factors; g++)
        for (int b = 0; b < m->levels[g]; b++) {
          if (m->covered[f][a][g][b] || !m->allowed(f, a, g, b)) continue;
          for (int i = 0; i < PAIRWISE_FACTORS; i++)
            row->level[i] = -1;
          row->level[f] = a;
          row->level[g] = b;
          return true;
        }
  return false;
}

int pairwise_make(const int *levels, int factors, pairwise_allowed allow, uint64_t seed,
                  pairwise_row *rows) {
  maker *m = (maker *)calloc(1, sizeof *m);
  int count = 0;
  pairwise_row start;
  m->levels = levels;
  m->factors = factors;
  m->allowed = allow;
  m->seed = seed;
  while (count < PAIRWISE_ROWS && find_missing(m, &start)) {
    int most = -1;
    for (int t = 0; t < TRIES; t++) {
      pairwise_row row = start;
      int total = 0;
      if (fill(m, &row, &total) && total > most) {
        most = total;
        rows[count] = row;
      }
    }
    if (most < 0) break; /* pairwise_missing will tell */
    for (int f = 0; f < factors; f++)
      for (int g = f + 1; g < factors; g++)
        m->covered[f][rows[count].level[f]][g][rows[count].level[g]] = true;
    count++;
  }
  free(m);
  return count;
}

int pairwise_missing(const int *levels, int factors, pairwise_allowed allow,
                     const pairwise_row *rows, int count) {
  int missing = 0;
  for (int f = 0; f < factors; f++)
    for (int g = f + 1; g < factors; g++)
      for (int a = 0; a < levels[f]; a++)
        for (int b = 0; b < levels[g]; b++) {
          bool found = false;
          for (int r = 0; r < count && !found; r++)
            found = rows[r].level[f] == a && rows[r].level[g] == b;
          missing += found != allow(f, a, g, b);
        }
  return missing;
}
