/* The law: a conversion to a narrow format gives the nearest value, ties to even, and the
 * conversion back is exact. Nearness is tested against the neighbours, and, where the compiler has
 * _Float16, against the hardware's format. */
#include <math.h>
#include <string.h>

#include "cmocka_all.h"
#include "dtype.h"
#include "synth.h"

static float random_float(int64_t index) {
  const uint32_t bits = (uint32_t)synth_bits(9, SYNTH_X, index);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void round_trips(void **state) {
  (void)state;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const float b = bf16_to_float((uint16_t)bits), f = f16_to_float((uint16_t)bits);
    if (isnan(b))
      assert_true(isnan(bf16_to_float(bf16_from_float(b))));
    else
      assert_int_equal(bf16_from_float(b), bits);
    if (isnan(f))
      assert_true(isnan(f16_to_float(f16_from_float(f))));
    else
      assert_int_equal(f16_from_float(f), bits);
  }
}

static void known_values(void **state) {
  (void)state;
  assert_int_equal(bf16_from_float(1.0f), 0x3f80);
  assert_int_equal(bf16_from_float(1.00390625f), 0x3f80); /* 1 + 2^-8: tie, to even */
  assert_int_equal(bf16_from_float(1.01171875f), 0x3f82); /* 1 + 3·2^-8: tie, to even */
  assert_int_equal(bf16_from_float(3.4e38f), 0x7f80);     /* past the largest: infinity */
  assert_int_equal(f16_from_float(1.0f), 0x3c00);
  assert_int_equal(f16_from_float(65504.0f), 0x7bff);
  assert_int_equal(f16_from_float(65519.99f), 0x7bff);
  assert_int_equal(f16_from_float(65520.0f), 0x7c00);
  assert_int_equal(f16_from_float(-0.0f), 0x8000);
  assert_int_equal(f16_from_float(0x1p-24f), 1);
  assert_int_equal(f16_from_float(0x1p-25f), 0);                 /* tie, to even */
  assert_int_equal(f16_from_float(0x1.8p-24f), 2);               /* tie, to even */
  assert_int_equal(f16_from_float(0x1.ffcp-15f), 0x3ff + 1 - 0); /* rounds up to the least normal */
  assert_true(f16_to_float(0x3555) == 0.333251953125f);
  assert_true(f16_to_float(0x0001) == 0x1p-24f);
}

static void nearest(void **state) {
  (void)state;
  for (int64_t i = 0; i < 2000000; i++) {
    const float value = random_float(i);
    if (isnan(value)) continue;
    const uint16_t bits = bf16_from_float(value);
    const float got = bf16_to_float(bits);
    if (isfinite(got)) {
      const double off = fabs((double)got - value);
      const float away = bf16_to_float((uint16_t)(bits + 1));
      assert_true(off <= fabs((double)away - value));
      if ((bits & 0x7fff) != 0)
        assert_true(off <= fabs((double)bf16_to_float((uint16_t)(bits - 1)) - value));
    }
#ifdef __FLT16_MANT_DIG__
    /* Half of the floats in f16's own range of exponents. */
    const float scaled = i % 2 ? value : ldexpf(frexpf(value, &(int){0}), (int)(i % 48) - 28);
    const _Float16 native = (_Float16)scaled;
    uint16_t wanted;
    memcpy(&wanted, &native, sizeof wanted);
    assert_int_equal(f16_from_float(scaled), wanted);
#endif
  }
}

static void arrays(void **state) {
  (void)state;
  const float from[3] = {1.5f, -2.25f, 0.1f};
  static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
  static const double tolerance[] = {0, 4e-4, 5e-5};
  for (int k = 0; k < 3; k++) {
    uint32_t bytes[3];
    double to[3];
    dtype_store(bytes, dtypes[k], from, 3);
    dtype_load(to, bytes, dtypes[k], 3);
    assert_true(to[0] == 1.5 && to[1] == -2.25);
    assert_true(fabs(to[2] - (double)0.1f) <= tolerance[k]);
  }
  const int32_t narrow[2] = {-5, 6};
  const int64_t wide[2] = {INT64_C(4294967301), -1};
  assert_int_equal(dtype_int(narrow, WEFT_I32, 0), -5);
  assert_int_equal(dtype_int(wide, WEFT_I64, 0), INT64_C(4294967301));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(round_trips), cmocka_unit_test(known_values),
                                     cmocka_unit_test(nearest), cmocka_unit_test(arrays)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
