/* The law: what is written is read back, what NumPy writes is read, and a file that is not exactly
 * right is refused with words, without reading or allocating beyond it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "dtype.h"
#include "npy.h"

/* A version 1 file of this dictionary and so many zero bytes of data, in exactly its own memory, so
 * that a sanitizer sees every byte read past it. */
static bool read_text(const char *dictionary, size_t data, tensor *tensor, error *error) {
  const size_t length = strlen(dictionary), bytes = 10 + length + data;
  unsigned char *file = calloc(bytes, 1);
  memcpy(file, "\x93NUMPY\x01\x00", 8);
  file[8] = (unsigned char)(length & 255);
  file[9] = (unsigned char)(length >> 8);
  memcpy(file + 10, dictionary, length);
  source source;
  source_memory(&source, file, (int64_t)bytes);
  const bool good = npy_read(&source, tensor, error);
  free(file);
  return good;
}

static void accepted(void **state) {
  (void)state;
  static const struct {
    const char *dictionary;
    size_t data;
    weft_dtype dtype;
    int dims;
    int64_t shape[3];
  } cases[] = {
      /* exactly as numpy.save writes them */
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }          \n",
       48,
       WEFT_F32,
       2,
       {3, 4}},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (5,), }\n", 10, WEFT_F16, 1, {5}},
      {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 3), }\n",
       24,
       WEFT_I32,
       3,
       {2, 1, 3}},
      {"{'descr': '<i8', 'fortran_order': False, 'shape': (), }\n", 8, WEFT_I64, 0, {0}},
      {"{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }\n", 0, WEFT_I64, 1, {0}},
      /* the same dictionary, written otherwise */
      {"{\"shape\":(3,4,),\"fortran_order\":False,\"descr\":\"<f4\"}", 48, WEFT_F32, 2, {3, 4}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tensor t;
    error e = {""};
    if (!read_text(cases[i].dictionary, cases[i].data, &t, &e)) fail_msg("%zu: %s", i, e.text);
    assert_int_equal(t.dtype, cases[i].dtype);
    assert_int_equal(t.dims, cases[i].dims);
    assert_int_equal(t.count * dtype_bytes(t.dtype), cases[i].data);
    for (int d = 0; d < t.dims; d++)
      assert_int_equal(t.shape[d], cases[i].shape[d]);
    tensor_free(&t);
  }
}

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *dictionary;
    size_t data;
    const char *words;
  } cases[] = {
      {"", 0, "not a dictionary"},
      {"{", 0, "malformed"},
      {"{}", 0, "lacks"},
      {"{'descr': '<f4'}", 0, "lacks"},
      {"{'descr': '<f4', 'descr': '<f4'}", 0, "repeated"},
      {"{'descr': '<f4', 'more': 1}", 0, "unknown"},
      {"{'descr': '<f4' 'shape': (1,)}", 0, "malformed"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, "plain type name"},
      {"{'descr': '<f4\\x00', 'fortran_order': False, 'shape': (1,), }", 4, "plain type name"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, "expected <f4"},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", 8, "'<f8'"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8, "'|O'"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", 4, "Fortran order"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, "neither True nor False"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1), }", 4, "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4,
       "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 4,
       "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 4,
       "fit int64"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 1073741824), }", 4,
       "fit int64"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", 4, "file holds 4"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 7, "file holds 7"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 9, "file holds 9"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", 4, "text after"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1", 4, "not a tuple"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tensor t;
    error e = {""};
    assert_false(read_text(cases[i].dictionary, cases[i].data, &t, &e));
    assert_null(t.data);
    if (strstr(e.text, cases[i].words) == NULL)
      fail_msg("%s: \"%s\" is not in \"%s\"", cases[i].dictionary, cases[i].words, e.text);
  }
}

/* Every beginning of a good file, and every change of one byte of its head, is refused or read. */
static void cut_and_changed(void **state) {
  (void)state;
  static const char dictionary[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  enum { HEAD = 10, LENGTH = sizeof dictionary - 1, BYTES = HEAD + LENGTH + 8 };
  unsigned char good[BYTES] = "\x93NUMPY\x01";
  good[8] = LENGTH;
  memcpy(good + HEAD, dictionary, LENGTH);
  for (int cut = 0; cut < BYTES; cut++) {
    unsigned char *part = malloc((size_t)cut + 1);
    memcpy(part, good, (size_t)cut);
    source source;
    tensor t;
    error e = {""};
    source_memory(&source, part, cut);
    assert_false(npy_read(&source, &t, &e));
    assert_true(e.text[0] != '\0');
    free(part);
  }
  int read = 0;
  for (int at = 0; at < HEAD + LENGTH; at++)
    for (int value = 0; value < 256; value++) {
      unsigned char *changed = malloc(BYTES);
      memcpy(changed, good, BYTES);
      changed[at] = (unsigned char)value;
      source source;
      tensor t;
      error e = {""};
      source_memory(&source, changed, BYTES);
      if (npy_read(&source, &t, &e)) {
        read++;
        assert_int_equal(t.count * dtype_bytes(t.dtype), 8);
        tensor_free(&t);
      }
      free(changed);
    }
  assert_true(read >= HEAD + LENGTH - 8 && read < 3 * (HEAD + LENGTH) + 256);
}

static void round_trip(void **state) {
  (void)state;
  char path[] = "/tmp/weft-npy-XXXXXX";
  assert_true(mkstemp(path) >= 0);
  static const weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_I32, WEFT_I64};
  for (int k = 0; k < 4; k++) {
    tensor a = {.dtype = dtypes[k], .dims = 2, .shape = {3, 5}}, b;
    error e = {""};
    assert_true(tensor_allocate(&a, &e));
    const size_t bytes = (size_t)(15 * dtype_bytes(dtypes[k]));
    for (size_t i = 0; i < bytes; i++)
      ((unsigned char *)a.data)[i] = (unsigned char)(i * 37 + 11);
    if (!npy_write(path, &a, &e)) fail_msg("%s", e.text);
    source source;
    assert_true(source_open(&source, path, &e));
    if (!npy_read(&source, &b, &e)) fail_msg("%s", e.text);
    source_close(&source);
    assert_true(b.dtype == a.dtype && b.dims == 2 && b.shape[0] == 3 && b.shape[1] == 5);
    assert_memory_equal(a.data, b.data, bytes);
    tensor_free(&a);
    tensor_free(&b);
  }
  unlink(path);
  error e;
  source source;
  assert_false(source_open(&source, "/nonexistent/x.npy", &e));
  assert_non_null(strstr(e.text, "/nonexistent/x.npy"));
  assert_false(source_open(&source, "/dev/zero", &e));
  assert_non_null(strstr(e.text, "not a regular file"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(accepted), cmocka_unit_test(refused),
                                     cmocka_unit_test(cut_and_changed),
                                     cmocka_unit_test(round_trip)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
