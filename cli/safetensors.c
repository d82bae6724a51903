/* The format: a little-endian u64 length, a JSON object of that length, then the data. The object
 * maps each tensor's name to dtype, shape and data_offsets [begin, end), relative to the data;
 * "__metadata__" is a map of strings. The whole header is checked before a byte of data is read:
 * offsets inside the file, without overlap or hole, and as long as dtype and shape say. */
#include "safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"

enum { LENGTH_BYTES = 8, HEADER_MOST = 100 << 20, DATA_ALIGNMENT = 64 };

/* Every type of the format with its size; `dtype` is DEFAULT for those the program cannot use. */
static const struct {
  const char *name;
  int bytes;
  weft_dtype dtype;
} DTYPES[] = {
    {"F32", 4, WEFT_F32},           {"BF16", 2, WEFT_BF16},         {"F16", 2, WEFT_F16},
    {"I32", 4, WEFT_I32},           {"I64", 8, WEFT_I64},           {"F64", 8, WEFT_DTYPE_DEFAULT},
    {"U64", 8, WEFT_DTYPE_DEFAULT}, {"U32", 4, WEFT_DTYPE_DEFAULT}, {"I16", 2, WEFT_DTYPE_DEFAULT},
    {"U16", 2, WEFT_DTYPE_DEFAULT}, {"I8", 1, WEFT_DTYPE_DEFAULT},  {"U8", 1, WEFT_DTYPE_DEFAULT},
    {"BOOL", 1, WEFT_DTYPE_DEFAULT}};

enum { DTYPE_COUNT = sizeof DTYPES / sizeof DTYPES[0] };

typedef struct span {
  int64_t begin, end;
  const char *name;
} span;

static int by_begin(const void *a, const void *b) {
  const span *left = a, *right = b;
  if (left->begin != right->begin) return left->begin < right->begin ? -1 : 1;
  return (left->end > right->end) - (left->end < right->end);
}

static int find_dtype(const char *name) {
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (!strcmp(name, DTYPES[i].name)) return i;
  return -1;
}

/* One entry of the header: its span in the data, and, where the program knows the dtype, that the
 * span is as long as dtype and shape say. `tensor`, where not NULL, gets dtype and shape. */
static bool check_entry(const source *source, const char *name, const json_t *entry,
                        int64_t data_bytes, span *span, tensor *tensor, error *error) {
  const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) ||
      json_object_size(entry) != 3)
    return error_set(error, "%s: tensor \"%.80s\" is not {dtype, shape, data_offsets}",
                     source->name, name);
  const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
    return error_set(error, "%s: data_offsets of \"%.80s\" are not two whole numbers", source->name,
                     name);
  span->begin = json_integer_value(begin);
  span->end = json_integer_value(end);
  span->name = name;
  if (span->begin < 0 || span->end < span->begin || span->end > data_bytes)
    return error_set(error, "%s: \"%.80s\" lies at bytes %lld to %lld; the file has %lld of data",
                     source->name, name, (long long)span->begin, (long long)span->end,
                     (long long)data_bytes);

  const int known = find_dtype(json_string_value(dtype));
  int64_t count = 1, bytes = known < 0 ? 0 : DTYPES[known].bytes;
  const size_t dims = json_array_size(shape);
  for (size_t i = 0; i < dims; i++) {
    const json_t *item = json_array_get(shape, i);
    if (!json_is_integer(item) || !multiply(count, json_integer_value(item), &count))
      return error_set(error, "%s: the shape of \"%.80s\" has a bad or too large number",
                       source->name, name);
    if (tensor != NULL && i < TENSOR_DIMS) tensor->shape[i] = json_integer_value(item);
  }
  if (known >= 0 && (!multiply(count, bytes, &bytes) || bytes != span->end - span->begin))
    return error_set(error, "%s: \"%.80s\" asks for %lld elements of %s but spans %lld bytes",
                     source->name, name, (long long)count, DTYPES[known].name,
                     (long long)(span->end - span->begin));
  if (tensor == NULL) return true;
  if (known < 0 || DTYPES[known].dtype == WEFT_DTYPE_DEFAULT)
    return error_set(error, "%s: \"%.80s\" is %.20s; expected F32, BF16, F16, I32 or I64",
                     source->name, name, json_string_value(dtype));
  if (dims > TENSOR_DIMS)
    return error_set(error, "%s: \"%.80s\" has %zu dimensions; expected at most %d", source->name,
                     name, dims, TENSOR_DIMS);
  tensor->dtype = DTYPES[known].dtype;
  tensor->dims = (int)dims;
  return true;
}

/* Lists the tensors' names for a message that could not find one. */
static void list_names(const json_t *header, char *out, size_t most) {
  size_t length = 0;
  const char *name;
  json_t *entry;
  out[0] = '\0';
  json_object_foreach((json_t *)header, name, entry) {
    if (!strcmp(name, "__metadata__") || length + 1 >= most) continue;
    const int more =
        snprintf(out + length, most - length, "%s\"%.60s\"", length > 0 ? ", " : "", name);
    length += more > 0 ? (size_t)more : 0;
  }
}

/* Checks every entry; *found is the span of `wanted`, whose dtype and shape `tensor` gets. */
static bool check_header(const source *source, const json_t *header, int64_t data_bytes,
                         const char *wanted, span *found, tensor *tensor, error *error) {
  bool good = false, seen = false;
  size_t count = 0;
  const char *name;
  json_t *entry;
  span *spans = malloc((json_object_size(header) + 1) * sizeof *spans);
  if (spans == NULL) return error_set(error, "%s: no memory for the header", source->name);
  json_object_foreach((json_t *)header, name, entry) {
    if (!strcmp(name, "__metadata__")) continue;
    const bool here = !strcmp(name, wanted);
    if (!check_entry(source, name, entry, data_bytes, &spans[count], here ? tensor : NULL, error))
      goto cleanup;
    if (here) {
      *found = spans[count];
      seen = true;
    }
    count++;
  }
  qsort(spans, count, sizeof *spans, by_begin);
  int64_t covered = 0;
  for (size_t i = 0; i < count; i++) {
    if (spans[i].begin != covered) {
      error_set(error, "%s: \"%.80s\" begins at byte %lld of the data; expected %lld (%s)",
                source->name, spans[i].name, (long long)spans[i].begin, (long long)covered,
                spans[i].begin < covered ? "tensors overlap" : "there is a hole");
      goto cleanup;
    }
    covered = spans[i].end;
  }
  if (covered != data_bytes) {
    error_set(error, "%s: the tensors cover %lld bytes, the file has %lld of data", source->name,
              (long long)covered, (long long)data_bytes);
    goto cleanup;
  }
  if (!seen) {
    char names[300];
    list_names(header, names, sizeof names);
    error_set(error, "%s: no tensor \"%.80s\"; the file holds %s", source->name, wanted,
              names[0] ? names : "none");
    goto cleanup;
  }
  good = true;
cleanup:
  free(spans);
  return good;
}

bool safetensors_read(source *source, const char *name, tensor *tensor, error *error) {
  *tensor = (struct tensor){0};
  unsigned char length_bytes[LENGTH_BYTES];
  char *text = NULL;
  json_t *header = NULL;
  bool good = false;
  if (!source_read(source, 0, length_bytes, LENGTH_BYTES, error)) return false;
  uint64_t length = 0;
  for (int i = LENGTH_BYTES - 1; i >= 0; i--)
    length = length << 8 | length_bytes[i];
  if (length > HEADER_MOST || (int64_t)length > source->bytes - LENGTH_BYTES)
    return error_set(error, "%s: a header of %llu bytes; expected at most %d and what the file has",
                     source->name, (unsigned long long)length, HEADER_MOST);
  text = malloc((size_t)length + 1);
  if (text == NULL) return error_set(error, "%s: no memory for the header", source->name);
  if (!source_read(source, LENGTH_BYTES, text, (int64_t)length, error)) goto cleanup;
  if (length == 0 || text[0] != '{') {
    error_set(error, "%s: the header does not begin with {", source->name);
    goto cleanup;
  }
  json_error_t where;
  header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &where);
  if (header == NULL) {
    error_set(error, "%s: the header is no JSON: %s (byte %d)", source->name, where.text,
              where.position);
    goto cleanup;
  }
  const int64_t data = LENGTH_BYTES + (int64_t)length;
  span found = {0};
  if (!check_header(source, header, source->bytes - data, name, &found, tensor, error))
    goto cleanup;
  if (!tensor_allocate(tensor, error)) goto cleanup;
  good = source_read(source, data + found.begin, tensor->data, found.end - found.begin, error);
cleanup:
  json_decref(header);
  free(text);
  if (!good) tensor_free(tensor);
  return good;
}

static json_t *make_entry(const tensor *tensor, int64_t begin, int64_t end) {
  const char *dtype = "?";
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (DTYPES[i].dtype == tensor->dtype) dtype = DTYPES[i].name;
  json_t *shape = json_array();
  for (int i = 0; i < tensor->dims; i++)
    json_array_append_new(shape, json_integer(tensor->shape[i]));
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)end);
}

bool safetensors_write(const char *path, const named_tensor *tensors, int count, error *error) {
  json_t *header = json_object();
  char *text = NULL;
  FILE *file = NULL;
  bool good = false;
  int64_t offset = 0;
  for (int i = 0; i < count; i++) {
    const tensor *tensor = tensors[i].tensor;
    const int64_t end = offset + tensor->count * dtype_bytes(tensor->dtype);
    json_t *entry = make_entry(tensor, offset, end);
    if (entry == NULL || json_object_set_new(header, tensors[i].name, entry) != 0) {
      error_set(error, "%s: no memory for the header", path);
      goto cleanup;
    }
    offset = end;
  }
  text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
  if (text == NULL) {
    error_set(error, "%s: no memory for the header", path);
    goto cleanup;
  }
  /* Spaces after the object put the data on a cache line. */
  const size_t used = strlen(text);
  const size_t length =
      (LENGTH_BYTES + used + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT - LENGTH_BYTES;
  unsigned char length_bytes[LENGTH_BYTES];
  for (int i = 0; i < LENGTH_BYTES; i++)
    length_bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
  file = fopen(path, "wb");
  if (file == NULL) {
    error_set(error, "%s: cannot create: %s", path, strerror(errno));
    goto cleanup;
  }
  good = fwrite(length_bytes, 1, LENGTH_BYTES, file) == LENGTH_BYTES &&
         fprintf(file, "%s%*s", text, (int)(length - used), "") == (int)length;
  for (int i = 0; i < count && good; i++) {
    const size_t bytes = (size_t)(tensors[i].tensor->count * dtype_bytes(tensors[i].tensor->dtype));
    good = fwrite(tensors[i].tensor->data, 1, bytes, file) == bytes;
  }
  good = finish_writing(file, path, good, error);
cleanup:
  free(text);
  json_decref(header);
  return good;
}
