/* A dense row-major tensor in memory, and the byte source that file readers read from. */
#ifndef CLI_TENSOR_H
#define CLI_TENSOR_H

#include <stdio.h>
#include <weft/weft.h>

#include "base.h"

enum { TENSOR_DIMS = 8 };

typedef struct tensor {
  weft_dtype dtype;
  int dims;
  int64_t shape[TENSOR_DIMS];
  int64_t count; /* elements */
  void *data;    /* count × dtype_bytes(dtype) bytes, 64-byte aligned */
} tensor;

/* Allocates for tensor->dtype, dims and shape, and sets count. The bytes are not initialised. */
bool tensor_allocate(tensor *tensor, error *error);
void tensor_free(tensor *tensor);

/* Elements of a shape, with overflow checked; `bytes` gets count × element. */
bool shape_count(const int64_t *shape, int dims, int64_t element, int64_t *count, int64_t *bytes);

/* What a reader reads: a file, or memory in tests and fuzzers. `bytes` is its whole size, known
 * before anything is read, so that no header can make a reader allocate more than the file holds.
 */
typedef struct source {
  const char *name; /* for messages */
  FILE *file;       /* NULL: memory */
  const unsigned char *memory;
  int64_t bytes;
} source;

bool source_open(source *source, const char *path, error *error);
void source_memory(source *source, const void *bytes, int64_t count);
void source_close(source *source);

/* Reads exactly `count` bytes at `offset`, in bounded pieces. */
bool source_read(source *source, int64_t offset, void *to, int64_t count, error *error);

/* Ends the writing of `path`: closes the file, and where that fails or `good` is false, sets the
 * words and removes what was written, if it is a regular file. */
bool finish_writing(FILE *file, const char *path, bool good, error *error);

#endif
