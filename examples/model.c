/* The model below its head; see model.h. Plain loops over contiguous rows, which the compiler
 * vectorises: all of this is a few percent of the head's work. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *zeroed(int64_t count, size_t element) {
  void *memory = calloc((size_t)count, element);
  if (!memory) {
    fprintf(stderr, "train_lm: no memory for %lld values\n", (long long)count);
    exit(1);
  }
  return memory;
}

/* splitmix64 */
uint64_t random_bits(uint64_t k) {
  k = (k + 1) * 0x9e3779b97f4a7c15u;
  k = (k ^ k >> 30) * 0xbf58476d1ce4e5b9u;
  k = (k ^ k >> 27) * 0x94d049bb133111ebu;
  return k ^ k >> 31;
}

static struct param new_param(int64_t count, double scale, uint64_t seed) {
  struct param param = {zeroed(count, sizeof(float)), zeroed(count, sizeof(float)),
                        zeroed(count, sizeof(float))};
  for (int64_t i = 0; i < count; i++) {
    double uniform = (double)(random_bits(seed << 40 | (uint64_t)i) >> 11) * 0x1p-53;
    param.value[i] = (float)(scale * (2.0 * uniform - 1.0));
  }
  return param;
}

struct model new_model(int64_t vocab) {
  struct model model = {vocab, new_param(vocab * EMBED, 0.5, 1),
                        new_param(INPUT * HIDDEN, sqrt(3.0 / INPUT), 2),
                        new_param(vocab * HIDDEN, 0.02, 3)};
  return model;
}

struct batch new_batch(int64_t tokens) {
  struct batch batch = {tokens,
                        zeroed(tokens * CONTEXT, sizeof(int64_t)),
                        zeroed(tokens, sizeof(int64_t)),
                        zeroed(tokens * INPUT, sizeof(float)),
                        zeroed(tokens * HIDDEN, sizeof(float)),
                        zeroed(tokens * INPUT, sizeof(float))};
  return batch;
}

/* The context ends at a cut (id 0): what lies before it is no part of the same text. */
void set_row(struct batch *batch, int64_t row, const struct tokens *from, int64_t position) {
  int64_t id = 1;
  for (int64_t c = 0; c < CONTEXT; c++) {
    if (id != 0) id = position > c ? from->ids[position - 1 - c] : 0;
    batch->context[row * CONTEXT + c] = id;
  }
  batch->target[row] = from->ids[position];
}

void model_forward(const struct model *model, struct batch *batch, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; m++) {
    float *input = batch->input + m * INPUT, *x = batch->x + m * HIDDEN, sum[HIDDEN] = {0};
    for (int64_t c = 0; c < CONTEXT; c++) {
      const float *row = model->embed.value + batch->context[m * CONTEXT + c] * EMBED;
      memcpy(input + c * EMBED, row, EMBED * sizeof(float));
    }
    input[INPUT - 1] = 1.0f;
    for (int64_t i = 0; i < INPUT; i++) {
      const float *weights = model->hidden.value + i * HIDDEN;
      for (int64_t h = 0; h < HIDDEN; h++)
        sum[h] += input[i] * weights[h];
    }
    for (int64_t h = 0; h < HIDDEN - 1; h++)
      x[h] = tanhf(sum[h]);
    x[HIDDEN - 1] = 1.0f;
  }
}

void model_backward(const struct model *model, struct batch *batch, float *dx, int64_t begin,
                    int64_t end) {
  for (int64_t i = 0; i < batch->tokens * HIDDEN; i++)
    dx[i] *= 1.0f - batch->x[i] * batch->x[i];
  for (int64_t m = begin; m < end; m++) {
    const float *d = dx + m * HIDDEN;
    for (int64_t i = 0; i < INPUT - 1; i++) {
      const float *weights = model->hidden.value + i * HIDDEN;
      float sum[16] = {0}, total = 0.0f; /* lanes, since a compiler may not reorder a float sum */
      for (int64_t h = 0; h < HIDDEN; h += 16) {
        for (int64_t lane = 0; lane < 16; lane++)
          sum[lane] += weights[h + lane] * d[h + lane];
      }
      for (int64_t lane = 0; lane < 16; lane++)
        total += sum[lane];
      batch->input_gradient[m * INPUT + i] = total;
    }
  }
}

void adam(struct param *param, int64_t from, int64_t count, const float *gradient, float rate) {
  float *value = param->value + from, *mean = param->mean + from, *square = param->square + from;
  for (int64_t i = 0; i < count; i++) {
    mean[i] += 0.1f * (gradient[i] - mean[i]);
    square[i] += 0.01f * (gradient[i] * gradient[i] - square[i]);
    value[i] -= rate * mean[i] / (sqrtf(square[i]) + 1e-8f);
  }
}

void model_update(struct model *model, const struct batch *batch, const float *dx, float rate,
                  int64_t part, int64_t parts) {
  /* The hidden layer by input rows. */
  for (int64_t i = INPUT * part / parts; i < INPUT * (part + 1) / parts; i++) {
    float gradient[HIDDEN] = {0};
    for (int64_t m = 0; m < batch->tokens; m++) {
      float input = batch->input[m * INPUT + i];
      for (int64_t h = 0; h < HIDDEN; h++)
        gradient[h] += input * dx[m * HIDDEN + h];
    }
    adam(&model->hidden, i * HIDDEN, HIDDEN, gradient, rate);
  }
  /* The embeddings of the ids whose remainder is `part`: an id occurs more than once in a batch, so
   * its gradients are summed first. Ids that do not occur stay as they are. */
  int32_t *slot = zeroed(model->vocab, sizeof(int32_t)); /* place of an id's sum, from 1; 0: none */
  int64_t *id_of = zeroed(batch->tokens * CONTEXT, sizeof(int64_t));
  float *sums = zeroed(batch->tokens * CONTEXT * EMBED, sizeof(float));
  int32_t slots = 0;
  for (int64_t k = 0; k < batch->tokens * CONTEXT; k++) {
    int64_t id = batch->context[k];
    if (id % parts != part) continue;
    if (!slot[id]) {
      id_of[slots++] = id;
      slot[id] = slots;
    }
    const float *add = batch->input_gradient + k / CONTEXT * INPUT + k % CONTEXT * EMBED;
    float *sum = sums + (int64_t)(slot[id] - 1) * EMBED;
    for (int64_t e = 0; e < EMBED; e++)
      sum[e] += add[e];
  }
  for (int32_t s = 0; s < slots; s++) {
    adam(&model->embed, id_of[s] * EMBED, EMBED, sums + (int64_t)s * EMBED, rate);
  }
  free(sums);
  free(id_of);
  free(slot);
}
