/* The format: "\x93NUMPY", version major and minor, header length (2 bytes, from version 2 on 4),
 * then a Python dictionary of exactly descr, fortran_order and shape, padded with spaces and ended
 * by a newline, then the data. The dictionary is parsed by hand, strictly. */
#include "npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"

enum { HEADER_MOST = 1 << 16, DESCR_MOST = 16 };

static const struct {
  const char *descr;
  weft_dtype dtype;
} DTYPES[] = {{"<f4", WEFT_F32}, {"<f2", WEFT_F16}, {"<i4", WEFT_I32}, {"<i8", WEFT_I64}};

enum { DTYPE_COUNT = sizeof DTYPES / sizeof DTYPES[0] };

/* The dictionary's text; `at` never passes `end`. */
typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
    c->at++;
}

static bool take(cursor *c, char wanted) {
  skip_space(c);
  if (c->at == c->end || *c->at != wanted) return false;
  c->at++;
  return true;
}

static bool take_word(cursor *c, const char *word) {
  skip_space(c);
  const size_t length = strlen(word);
  if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
  c->at += length;
  return true;
}

/* A quoted string without escapes, shorter than `most`. */
static bool take_string(cursor *c, char *out, size_t most) {
  skip_space(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
  const char quote = *c->at++;
  size_t length = 0;
  while (c->at < c->end && *c->at != quote) {
    if (length + 1 >= most || *c->at == '\\' || *c->at == '\0') return false;
    out[length++] = *c->at++;
  }
  out[length] = '\0';
  return take(c, quote);
}

static bool take_number(cursor *c, int64_t *out) {
  skip_space(c);
  const char *begin = c->at;
  *out = 0;
  while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
    if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *c->at - '0', out))
      return false;
    c->at++;
  }
  return c->at > begin;
}

/* A tuple: (), (3,), (3, 4), (3, 4,) */
static bool take_shape(cursor *c, tensor *tensor) {
  if (!take(c, '(')) return false;
  tensor->dims = 0;
  while (!take(c, ')')) {
    if (tensor->dims == TENSOR_DIMS) return false;
    if (!take_number(c, &tensor->shape[tensor->dims])) return false;
    tensor->dims++;
    if (take(c, ',')) continue;
    if (tensor->dims == 1) return false; /* (3) is a number in Python, not a tuple */
    if (!take(c, ')')) return false;
    break;
  }
  return true;
}

static bool parse_header(const char *name, cursor c, tensor *tensor, error *error) {
  char descr[DESCR_MOST] = "", key[DESCR_MOST];
  bool has_descr = false, has_order = false, has_shape = false, fortran = false;
  if (!take(&c, '{')) return error_set(error, "%s: the header is not a dictionary", name);
  while (!take(&c, '}')) {
    if (!take_string(&c, key, sizeof key) || !take(&c, ':'))
      return error_set(error, "%s: the header's dictionary is malformed", name);
    if (!strcmp(key, "descr") && !has_descr) {
      has_descr = true;
      if (!take_string(&c, descr, sizeof descr))
        return error_set(error, "%s: descr is not a plain type name", name);
    } else if (!strcmp(key, "fortran_order") && !has_order) {
      has_order = true;
      fortran = take_word(&c, "True");
      if (!fortran && !take_word(&c, "False"))
        return error_set(error, "%s: fortran_order is neither True nor False", name);
    } else if (!strcmp(key, "shape") && !has_shape) {
      has_shape = true;
      if (!take_shape(&c, tensor))
        return error_set(error, "%s: shape is not a tuple of at most %d whole numbers in int64",
                         name, TENSOR_DIMS);
    } else {
      return error_set(error, "%s: the header has an unknown or repeated key '%s'", name, key);
    }
    if (take(&c, ',')) continue;
    if (!take(&c, '}')) return error_set(error, "%s: the header's dictionary is malformed", name);
    break;
  }
  skip_space(&c);
  if (c.at != c.end) return error_set(error, "%s: text after the header's dictionary", name);
  if (!has_descr || !has_order || !has_shape)
    return error_set(error, "%s: the header lacks descr, fortran_order or shape", name);
  if (fortran)
    return error_set(error, "%s: Fortran order; expected C order (numpy.ascontiguousarray)", name);
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (!strcmp(descr, DTYPES[i].descr)) {
      tensor->dtype = DTYPES[i].dtype;
      return true;
    }
  return error_set(error, "%s: descr is '%s'; expected <f4, <f2, <i4 or <i8", name, descr);
}

bool npy_read(source *source, tensor *tensor, error *error) {
  *tensor = (struct tensor){0};
  unsigned char head[12];
  char *header = NULL;
  bool good = false;
  if (!source_read(source, 0, head, 10, error)) return false;
  if (memcmp(head, "\x93NUMPY", 6) != 0)
    return error_set(error, "%s: no .npy file: it does not begin with \\x93NUMPY", source->name);
  if (head[6] < 1 || head[6] > 3)
    return error_set(error, "%s: .npy version %d.%d; expected 1 to 3", source->name, head[6],
                     head[7]);
  int64_t start = 10, length = head[8] | head[9] << 8;
  if (head[6] > 1) {
    if (!source_read(source, 10, head + 10, 2, error)) return false;
    start = 12;
    length |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
  }
  if (length > HEADER_MOST)
    return error_set(error, "%s: a header of %lld bytes; expected at most %d", source->name,
                     (long long)length, HEADER_MOST);
  header = malloc((size_t)length + 1);
  if (header == NULL) return error_set(error, "%s: no memory for the header", source->name);
  if (!source_read(source, start, header, length, error)) goto cleanup;
  if (!parse_header(source->name, (cursor){header, header + length}, tensor, error)) goto cleanup;

  int64_t count = 0, bytes = 0;
  const int64_t rest = source->bytes - start - length;
  if (!shape_count(tensor->shape, tensor->dims, dtype_bytes(tensor->dtype), &count, &bytes)) {
    error_set(error, "%s: the shape asks for more bytes than fit int64", source->name);
    goto cleanup;
  }
  if (bytes != rest) {
    error_set(error, "%s: the shape asks for %lld bytes of data, the file holds %lld", source->name,
              (long long)bytes, (long long)rest);
    goto cleanup;
  }
  if (!tensor_allocate(tensor, error)) goto cleanup;
  good = source_read(source, start + length, tensor->data, bytes, error);
cleanup:
  free(header);
  if (!good) tensor_free(tensor);
  return good;
}

bool npy_write(const char *path, const tensor *tensor, error *error) {
  const char *descr = NULL;
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (DTYPES[i].dtype == tensor->dtype) descr = DTYPES[i].descr;
  if (descr == NULL) return error_set(error, "%s: .npy has no %s", path, dtype_name(tensor->dtype));
  char header[512];
  int length =
      snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
  for (int i = 0; i < tensor->dims; i++)
    length += snprintf(header + length, sizeof header - (size_t)length, "%lld,%s",
                       (long long)tensor->shape[i], i + 1 < tensor->dims ? " " : "");
  length += snprintf(header + length, sizeof header - (size_t)length, "), }");
  while ((10 + length + 1) % 64 != 0)
    header[length++] = ' ';
  header[length++] = '\n';
  const unsigned char head[10] = {0x93,
                                  'N',
                                  'U',
                                  'M',
                                  'P',
                                  'Y',
                                  1,
                                  0,
                                  (unsigned char)(length & 255),
                                  (unsigned char)(length >> 8)};
  FILE *file = fopen(path, "wb");
  if (file == NULL) return error_set(error, "%s: cannot create: %s", path, strerror(errno));
  const size_t bytes = (size_t)(tensor->count * dtype_bytes(tensor->dtype));
  const bool wrote = fwrite(head, 1, sizeof head, file) == sizeof head &&
                     fwrite(header, 1, (size_t)length, file) == (size_t)length &&
                     fwrite(tensor->data, 1, bytes, file) == bytes;
  return finish_writing(file, path, wrote, error);
}
