/* The law: what is written is read back, what the reference implementation writes is read, and a
 * file whose header does not describe its data exactly is refused with words. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "dtype.h"
#include "safetensors.h"

static bool read_file(const unsigned char *file, size_t bytes, const char *name, tensor *tensor,
                      error *error) {
  source source;
  source_memory(&source, file, (int64_t)bytes);
  return safetensors_read(&source, name, tensor, error);
}

/* A file of this header and so many bytes of data 0, 1, 2, … */
static bool read_text(const char *header, size_t data, const char *name, tensor *tensor,
                      error *error) {
  const size_t length = strlen(header), bytes = 8 + length + data;
  unsigned char *file = calloc(bytes, 1);
  for (int i = 0; i < 8; i++)
    file[i] = (unsigned char)((uint64_t)length >> 8 * i);
  memcpy(file + 8, header, length);
  for (size_t i = 0; i < data; i++)
    file[8 + length + i] = (unsigned char)i;
  const bool good = read_file(file, bytes, name, tensor, error);
  free(file);
  return good;
}

static void accepted(void **state) {
  (void)state;
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[8,20]},"
      "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
      "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
      "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[20,24]},"
      "\"strange\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[24,28]}}   ";
  tensor t;
  error e = {""};
  if (!read_text(header, 28, "b", &t, &e)) fail_msg("%s", e.text);
  assert_true(t.dtype == WEFT_BF16 && t.dims == 2 && t.shape[0] == 3 && t.shape[1] == 2);
  for (int i = 0; i < 12; i++)
    assert_int_equal(((unsigned char *)t.data)[i], 8 + i);
  tensor_free(&t);
  if (!read_text(header, 28, "a", &t, &e)) fail_msg("%s", e.text);
  assert_true(t.dtype == WEFT_I64 && t.count == 1);
  tensor_free(&t);
  if (!read_text(header, 28, "empty", &t, &e)) fail_msg("%s", e.text);
  assert_true(t.count == 0 && t.shape[1] == 7);
  tensor_free(&t);
  if (!read_text(header, 28, "scalar", &t, &e)) fail_msg("%s", e.text);
  assert_true(t.count == 1 && t.dims == 0);
  tensor_free(&t);
  assert_false(read_text(header, 28, "strange", &t, &e));
  assert_non_null(strstr(e.text, "F8_E4M3"));
  assert_false(read_text(header, 28, "c", &t, &e));
  assert_non_null(strstr(e.text, "no tensor \"c\""));
  assert_non_null(strstr(e.text, "\"scalar\""));
  assert_false(read_text(header, 28, "__metadata__", &t, &e));
}

#define ENTRY(dtype, shape, begin, end)                                                            \
  "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t data;
    const char *words;
  } cases[] = {
      {"", 0, "does not begin with {"},
      {" {}", 0, "does not begin with {"},
      {"[]", 0, "does not begin with {"},
      {"{", 0, "no JSON"},
      {"{}x", 0, "no JSON"},
      {"{}", 0, "no tensor"},
      {"{\"a\":1}", 0, "is not {dtype"},
      {"{\"a\":[]}", 0, "is not {dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "is not {dtype"},
      {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "is not {dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
       "is not {dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two whole numbers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4,
       "two whole numbers"},
      {"{\"a\":" ENTRY("F32", "1", "0", "4") ",\"a\":" ENTRY("F32", "1", "0", "4") "}", 4,
       "no JSON"},
      {"{\"a\":" ENTRY("F32", "1", "0", "99999999999999999999") "}", 4, "no JSON"},
      {"{\"a\":" ENTRY("F32", "1", "-4", "0") "}", 4, "lies at bytes -4"},
      {"{\"a\":" ENTRY("F32", "1", "4", "0") "}", 4, "lies at bytes 4 to 0"},
      {"{\"a\":" ENTRY("F32", "1", "0", "8") "}", 4, "the file has 4"},
      {"{\"a\":" ENTRY("F32", "1", "4611686018427387904", "4611686018427387908") "}", 4,
       "the file has 4"},
      {"{\"a\":" ENTRY("F32", "2", "0", "4") "}", 4, "spans 4 bytes"},
      {"{\"a\":" ENTRY("F32", "-1", "0", "4") "}", 4, "bad or too large"},
      {"{\"a\":" ENTRY("F32", "1.0", "0", "4") "}", 4, "bad or too large"},
      {"{\"a\":" ENTRY("F32", "4294967296,4294967296", "0", "0") "}", 0, "bad or too large"},
      {"{\"a\":" ENTRY("F32", "4611686018427387904", "0", "0") "}", 0, "spans 0 bytes"},
      {"{\"a\":" ENTRY("F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, "9 dimensions"},
      {"{\"a\":" ENTRY("F64", "1", "0", "8") "}", 8, "is F64"},
      {"{\"a\":" ENTRY("F32", "1", "0", "4") ",\"b\":" ENTRY("F32", "1", "0", "4") "}", 4,
       "overlap"},
      {"{\"a\":" ENTRY("F32", "2", "0", "8") ",\"b\":" ENTRY("F32", "2", "4", "12") "}", 12,
       "overlap"},
      {"{\"a\":" ENTRY("F32", "1", "0", "4") ",\"b\":" ENTRY("F32", "1", "8", "12") "}", 12,
       "hole"},
      {"{\"a\":" ENTRY("F32", "1", "0", "4") "}", 8, "the file has 8"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tensor t;
    error e = {""};
    assert_false(read_text(cases[i].header, cases[i].data, "a", &t, &e));
    assert_null(t.data);
    if (strstr(e.text, cases[i].words) == NULL)
      fail_msg("%s: \"%s\" is not in \"%s\"", cases[i].header, cases[i].words, e.text);
  }
}

static void lengths(void **state) {
  (void)state;
  static const unsigned char files[][10] = {
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'},
      {0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'},
      {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
      {0, 0, 0, 7, 0, 0, 0, 0, '{', '}'},
  };
  tensor t;
  error e = {""};
  for (int i = 0; i < 4; i++) {
    assert_false(read_file(files[i], 10, "a", &t, &e));
    assert_non_null(strstr(e.text, "a header of"));
  }
  for (size_t bytes = 0; bytes < 8; bytes++) {
    assert_false(read_file(files[0], bytes, "a", &t, &e));
    assert_non_null(strstr(e.text, "truncated"));
  }
}

/* Brackets nested a million deep must not exhaust the stack. */
static void deep(void **state) {
  (void)state;
  enum { DEPTH = 1000000 };
  char *header = malloc(DEPTH + 8);
  memcpy(header, "{\"a\":", 5);
  memset(header + 5, '[', DEPTH);
  header[5 + DEPTH] = '\0';
  tensor t;
  error e = {""};
  assert_false(read_text(header, 0, "a", &t, &e));
  assert_non_null(strstr(e.text, "no JSON"));
  free(header);
}

static void round_trip(void **state) {
  (void)state;
  char path[] = "/tmp/weft-safetensors-XXXXXX";
  assert_true(mkstemp(path) >= 0);
  static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I32, WEFT_I64};
  static const char *const names[] = {"nll", "dx", "a \"quoted\" name", "\xc3\xa9", "z"};
  tensor tensors[5], back;
  named_tensor list[5];
  error e = {""};
  for (int k = 0; k < 5; k++) {
    tensors[k] = (tensor){.dtype = dtypes[k], .dims = 2, .shape = {k, 5}};
    assert_true(tensor_allocate(&tensors[k], &e));
    for (int64_t i = 0; i < tensors[k].count * dtype_bytes(dtypes[k]); i++)
      ((unsigned char *)tensors[k].data)[i] = (unsigned char)(i * 37 + k);
    list[k] = (named_tensor){names[k], &tensors[k]};
  }
  if (!safetensors_write(path, list, 5, &e)) fail_msg("%s", e.text);
  for (int k = 0; k < 5; k++) {
    source source;
    assert_true(source_open(&source, path, &e));
    if (!safetensors_read(&source, names[k], &back, &e)) fail_msg("%s", e.text);
    source_close(&source);
    assert_true(back.dtype == dtypes[k] && back.shape[0] == k && back.shape[1] == 5);
    assert_memory_equal(back.data, tensors[k].data, (size_t)(back.count * dtype_bytes(back.dtype)));
    tensor_free(&back);
  }
  unlink(path);
  assert_false(safetensors_write("/nonexistent/out.safetensors", list, 5, &e));
  assert_non_null(strstr(e.text, "/nonexistent/out.safetensors"));
  assert_false(safetensors_write("/dev/full", list, 5, &e));
  assert_non_null(strstr(e.text, "cannot write"));
  for (int k = 0; k < 5; k++)
    tensor_free(&tensors[k]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(accepted), cmocka_unit_test(refused),
                                     cmocka_unit_test(lengths), cmocka_unit_test(deep),
                                     cmocka_unit_test(round_trip)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
