/* The synthetic problem of `weft ep`, and a plain computation of what dispatch and combine must
 * give, row by row, from the tokens of all ranks. Every value depends on seed and global index
 * alone. */
#ifndef CLI_EP_DATA_H
#define CLI_EP_DATA_H

#include "ep_options.h"

/* One rank's tokens. */
typedef struct ep_tokens {
  uint16_t *x;    /* [n, H] bf16 */
  int64_t *topk;  /* [n, K] */
  float *weights; /* [n, K] */
} ep_tokens;

typedef struct ep_data {
  const ep_options *options;
  ep_tokens *ranks; /* [R] */
} ep_data;

bool ep_data_make(ep_data *data, const ep_options *options, error *error);
void ep_data_free(ep_data *data);

/* What a rank received; NULL where there is none. `counts` and `offsets` are of its experts. */
typedef struct ep_rows {
  const void *x;
  const float *scales; /* row-major */
  const int64_t *counts, *offsets;
} ep_rows;

/* Fills a rank's combine input: what its experts make of each row, by hash. */
void ep_data_fill_rows(const ep_data *data, int64_t rank, const int64_t *offsets, uint16_t *y);

/* Rows that are wrong: received ones (and counts), and those of out [n, H]. */
int64_t ep_wrong_rows(const ep_data *data, int64_t rank, const ep_rows *rows);
int64_t ep_wrong_out(const ep_data *data, int64_t rank, const uint16_t *out);

#endif
