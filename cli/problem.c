/* Loads or makes a problem. A file that can't be read is a failure at run time; files and flags
 * that do not fit each other are wrong usage. */
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "npy.h"
#include "safetensors.h"
#include "synth.h"

static bool ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

/* Reads FILE.npy or FILE.safetensors:TENSOR. */
static int load_file(tensor *tensor, const char *flag, const char *argument, error *error) {
  static const char SAFETENSORS[] = ".safetensors";
  const char *mark = strstr(argument, ".safetensors:"), *name = NULL;
  char path[4096];
  size_t length = strlen(argument);
  if (mark != NULL) {
    length = (size_t)(mark - argument) + sizeof SAFETENSORS - 1;
    name = argument + length + 1;
  }
  if (length >= sizeof path || (name == NULL && !ends_with(argument, ".npy")) ||
      (name != NULL && *name == '\0')) {
    error_set(error, "%s is \"%.200s\"; expected FILE.npy or FILE.safetensors:TENSOR", flag,
              argument);
    return EXIT_USAGE;
  }
  memcpy(path, argument, length);
  path[length] = '\0';
  source source;
  if (!source_open(&source, path, error)) return EXIT_FAILED;
  const bool good = name != NULL ? safetensors_read(&source, name, tensor, error)
                                 : npy_read(&source, tensor, error);
  source_close(&source);
  return good ? EXIT_RIGHT : EXIT_FAILED;
}

/* Takes a size from a file: it must be what the flag or another file said, if one did. */
static bool settle(int64_t *size, int64_t found, const char *flag, const char *file, error *error) {
  if (*size >= 0 && *size != found)
    return error_set(error, "%s has %lld where %s is %lld; expected them equal", file,
                     (long long)found, flag, (long long)*size);
  *size = found;
  return true;
}

static bool settle_matrix(const tensor *tensor, const char *file, int64_t *rows,
                          const char *rows_flag, ce_options *o, error *error) {
  if (tensor->dims != 2 || dtype_bytes(tensor->dtype) == 8 || tensor->dtype == WEFT_I32)
    return error_set(error, "%s is %s with %d dimensions; expected f32, bf16 or f16 with 2", file,
                     dtype_name(tensor->dtype), tensor->dims);
  if (tensor->shape[1] < 1)
    return error_set(error, "%s has rows of 0 elements; expected at least 1", file);
  return settle(rows, tensor->shape[0], rows_flag, file, error) &&
         settle(&o->hidden, tensor->shape[1], "--hidden", file, error);
}

static int load_files(problem *p, ce_options *o, error *error) {
  int code = EXIT_RIGHT;
  if (o->x != NULL) {
    if ((code = load_file(&p->x, "--x", o->x, error)) != EXIT_RIGHT) return code;
    if (!settle_matrix(&p->x, "--x", &o->tokens, "--tokens", o, error)) return EXIT_USAGE;
  }
  if (o->w != NULL) {
    if ((code = load_file(&p->w, "--w", o->w, error)) != EXIT_RIGHT) return code;
    if (!settle_matrix(&p->w, "--w", &o->vocab, "--vocab", o, error)) return EXIT_USAGE;
    if (o->vocab < 1) {
      error_set(error, "--w has 0 rows; expected at least 1");
      return EXIT_USAGE;
    }
  }
  if (o->targets != NULL) {
    if ((code = load_file(&p->target, "--targets", o->targets, error)) != EXIT_RIGHT) return code;
    if (p->target.dims != 1 || (p->target.dtype != WEFT_I32 && p->target.dtype != WEFT_I64)) {
      error_set(error, "--targets is %s with %d dimensions; expected i32 or i64 with 1",
                dtype_name(p->target.dtype), p->target.dims);
      return EXIT_USAGE;
    }
    if (!settle(&o->tokens, p->target.shape[0], "--tokens", "--targets", error)) return EXIT_USAGE;
  }
  const tensor *either = o->x != NULL ? &p->x : &p->w;
  if (o->x != NULL || o->w != NULL) {
    if (o->dtype != WEFT_DTYPE_DEFAULT && o->dtype != either->dtype) {
      error_set(error, "--dtype is %s but the file holds %s", dtype_name(o->dtype),
                dtype_name(either->dtype));
      return EXIT_USAGE;
    }
    o->dtype = either->dtype;
  }
  return EXIT_RIGHT;
}

static bool make_matrix(tensor *tensor, int64_t rows, const ce_options *o, synth_array array,
                        float scale, error *error) {
  *tensor = (struct tensor){.dtype = o->dtype, .dims = 2, .shape = {rows, o->hidden}};
  if (!tensor_allocate(tensor, error)) return false;
  synth_normal(tensor, (uint64_t)o->seed, array, scale);
  return true;
}

static bool make_gradient(float **to, const ce_options *o, synth_array array, error *error) {
  *to = malloc((size_t)(o->tokens + 1) * sizeof **to);
  if (*to == NULL) return error_set(error, "no memory for upstream gradients");
  synth_gradient(*to, o->tokens, (uint64_t)o->seed, array);
  return true;
}

int problem_load(problem *p, ce_options *o, error *error) {
  *p = (problem){.temperature = (float)o->temperature,
                 .softcap = (float)o->softcap,
                 .ignore_index = o->ignore_index};
  int code = load_files(p, o, error);
  if (code != EXIT_RIGHT) goto cleanup;
  ce_options_defaults(o, o->backend == BACKEND_CUDA);
  p->tokens = o->tokens;
  p->hidden = o->hidden;
  p->vocab = o->vocab;
  p->dtype = o->dtype;
  code = EXIT_FAILED;
  if (o->x == NULL && !make_matrix(&p->x, o->tokens, o, SYNTH_X, 1.0f, error)) goto cleanup;
  if (o->w == NULL &&
      !make_matrix(&p->w, o->vocab, o, SYNTH_W, (float)(1 / sqrt((double)o->hidden)), error))
    goto cleanup;
  if (o->targets == NULL) {
    p->target = (tensor){.dtype = WEFT_I64, .dims = 1, .shape = {o->tokens}};
    if (!tensor_allocate(&p->target, error)) goto cleanup;
    synth_targets(&p->target, (uint64_t)o->seed, o->vocab, o->ignore, o->ignore_index);
  }
  if (!make_gradient(&p->g_nll, o, SYNTH_G_NLL, error) ||
      !make_gradient(&p->g_lse, o, SYNTH_G_LSE, error) ||
      (o->entropy && !make_gradient(&p->g_entropy, o, SYNTH_G_ENTROPY, error)))
    goto cleanup;
  for (int64_t i = 0; i < p->tokens; i++)
    p->counted += problem_counts(p, i);
  code = EXIT_RIGHT;
cleanup:
  if (code != EXIT_RIGHT) problem_free(p);
  return code;
}

void problem_free(problem *p) {
  tensor_free(&p->x);
  tensor_free(&p->w);
  tensor_free(&p->target);
  free(p->g_nll);
  free(p->g_entropy);
  free(p->g_lse);
  *p = (problem){0};
}

bool problem_counts(const problem *p, int64_t token) {
  return dtype_int(p->target.data, p->target.dtype, token) != p->ignore_index;
}

void vocab_range(int64_t vocab, int64_t ranks, int64_t rank, int64_t *start, int64_t *rows) {
  const int64_t each = vocab / ranks, more = vocab % ranks;
  *rows = each + (rank < more);
  *start = rank * each + (rank < more ? rank : more);
}
