/* The part of the example's language model below its head: embeddings of the last few tokens, one
 * hidden layer, and Adam. Work comes in ranges, so that several threads can share it; they hold
 * different ranges between the barriers that the caller sets. Knows nothing of weft. */
#ifndef MODEL_H
#define MODEL_H

#include "text.h"

#include <stddef.h>
#include <stdint.h>

enum {
  CONTEXT = 6, /* tokens that the model looks back */
  EMBED = 48,
  INPUT = CONTEXT * EMBED + 1, /* and a constant 1, whose weights are the hidden layer's bias */
  HIDDEN = 192,                /* the last is a constant 1, whose weights are the head's bias */
};

/* A parameter and Adam's two moments of it. */
struct param {
  float *value, *mean, *square;
};

struct model {
  int64_t vocab;
  struct param embed;  /* [vocab, EMBED] */
  struct param hidden; /* [INPUT, HIDDEN] */
  struct param head;   /* [vocab, HIDDEN]: W */
};

struct batch {
  int64_t tokens;
  int64_t *context;      /* [tokens, CONTEXT] ids, the latest first */
  int64_t *target;       /* [tokens] */
  float *input;          /* [tokens, INPUT] */
  float *x;              /* [tokens, HIDDEN], what the head reads */
  float *input_gradient; /* [tokens, INPUT] */
};

/* Memory that is zero; ends the program where there is none. */
void *zeroed(int64_t count, size_t element);

/* The k-th number of a fixed random sequence: the same run each time. */
uint64_t random_bits(uint64_t k);

struct model new_model(int64_t vocab);
struct batch new_batch(int64_t tokens);

/* Row `row` of the batch is to predict the token at `position`. */
void set_row(struct batch *batch, int64_t row, const struct tokens *from, int64_t position);

/* Fills rows begin to end − 1 of input and x. */
void model_forward(const struct model *model, struct batch *batch, int64_t begin, int64_t end);

/* Turns the gradient of x into the one before the tanh, in place and for all rows (every thread has
 * its own copy), and fills rows begin to end − 1 of input_gradient. */
void model_backward(const struct model *model, struct batch *batch, float *dx, int64_t begin,
                    int64_t end);

/* Updates the embeddings and the hidden layer, the share of thread `part` of `parts`. */
void model_update(struct model *model, const struct batch *batch, const float *dx, float rate,
                  int64_t part, int64_t parts);

/* Adam on `count` values of a parameter from the one at `from` on. */
void adam(struct param *param, int64_t from, int64_t count, const float *gradient, float rate);

#endif
