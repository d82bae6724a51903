/* What the planner of a GEMM launch refuses, and what its tensors may touch: never a byte outside
 * the matrices that the caller described. No device is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/gemm.h"

static const struct gemm_shape shapes[] = {{SM90_GEMM_LOGITS}, {SM90_GEMM_DX}, {SM90_GEMM_DW}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

static struct gemm_problem problem_of(const struct gemm_shape *shape, int64_t rows, int64_t cols,
                                      int64_t depth, int f32) {
  return (struct gemm_problem){.rows = rows,
                               .cols = cols,
                               .depth = depth,
                               .a = {1 << 20, up(shape->a_mn ? rows : depth, 8)},
                               .b = {2 << 20, up(shape->b_mn ? cols : depth, 8)},
                               .c = {3 << 20, up(shape->transposed ? rows : cols, f32 ? 4 : 8)},
                               .f32_out = f32};
}

static void refuse(const struct gemm_shape *shape, const struct gemm_problem *problem,
                   const char *message) {
  struct cuda_tensor tensors[3];
  struct gemm_args args;
  assert_int_equal(weft__gemm_plan(shape, problem, tensors, &args), WEFT_ERR_ARGUMENT);
  assert_non_null(strstr(weft_last_error(), message));
}

static void refusals(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    const struct gemm_problem good = problem_of(&shapes[s], 100, 200, 300, 0);
    struct gemm_problem bad = good;
    bad.rows = 0, refuse(&shapes[s], &bad, "gemm: 0 x 200 over 300");
    bad = good, bad.cols = -1, refuse(&shapes[s], &bad, "-1");
    bad = good, bad.depth = 0, refuse(&shapes[s], &bad, "over 0");
    bad = good, bad.rows = INT64_C(1) << 31, refuse(&shapes[s], &bad, "2147483648");
    bad = good, bad.a.stride += 4, refuse(&shapes[s], &bad, "A at");
    bad = good, bad.b.stride = 8, refuse(&shapes[s], &bad, "B at");
    bad = good, bad.c.address += 8, refuse(&shapes[s], &bad, "C at");
    bad = good, bad.f32_out = 1, bad.c.stride += 2, refuse(&shapes[s], &bad, "C at");
  }
}

/* The last byte, plus one, that a tensor's elements span. */
static uint64_t end_of(const struct cuda_tensor *t, uint64_t element) {
  uint64_t end = t->address + t->dims[0] * element;
  for (unsigned i = 1; i < t->rank; i++)
    end += (t->dims[i] - 1) * t->strides[i - 1];
  return end;
}

static uint64_t elements_of(const struct cuda_tensor *t) {
  uint64_t n = 1;
  for (unsigned i = 0; i < t->rank; i++)
    n *= t->dims[i];
  return n;
}

static void tensors_span_the_matrices(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{1, 1, 1},          {64, 64, 64},        {65, 64, 7},
                                     {4097, 50257, 100}, {128, 129280, 7168}, {5000, 8, 4096}};
  for (int s = 0; s < SHAPES; s++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      for (int f32 = 0; f32 < 2; f32++) {
        const struct gemm_shape *shape = &shapes[s];
        const int64_t rows = sizes[i][0], cols = sizes[i][1], depth = sizes[i][2];
        const struct gemm_problem p = problem_of(shape, rows, cols, depth, f32);
        struct cuda_tensor t[3];
        struct gemm_args args;
        assert_int_equal(weft__gemm_plan(shape, &p, t, &args), WEFT_OK);
        const struct {
          const struct gemm_matrix *m;
          int64_t lines, line, element;
        } stored[3] = {
            {&p.a, shape->a_mn ? depth : rows, shape->a_mn ? rows : depth, 2},
            {&p.b, shape->b_mn ? depth : cols, shape->b_mn ? cols : depth, 2},
            {&p.c, shape->transposed ? cols : rows, shape->transposed ? rows : cols, f32 ? 4 : 2}};
        /* C's map ends at the last 16 whole bytes of a line; ordinary stores do the rest */
        const int64_t piece = 16 / stored[2].element;
        assert_int_equal(args.result.end, stored[2].line);
        assert_int_equal(args.result.whole, stored[2].line / piece * piece);
        assert_int_equal(args.result.lines, stored[2].lines);
        assert_int_equal(args.result.address.a, p.c.address);
        assert_int_equal(args.result.stride_bytes, p.c.stride * stored[2].element);
        for (int m = 0; m < 3; m++) {
          const uint64_t element = (uint64_t)stored[m].element;
          const uint64_t line = m < 2               ? (uint64_t)stored[m].line
                                : args.result.whole ? args.result.whole
                                                    : 1;
          assert_int_equal(t[m].address, stored[m].m->address);
          assert_int_equal(elements_of(&t[m]), (uint64_t)stored[m].lines * line);
          assert_int_equal(end_of(&t[m], element),
                           stored[m].m->address +
                               ((uint64_t)((stored[m].lines - 1) * stored[m].m->stride) + line) *
                                   element);
          assert_int_equal(t[m].box[0] * element, 128); /* the width of the swizzle */
        }
        assert_true((int64_t)args.depth_steps * GEMM_DEPTH_STEP >= depth);
        assert_true((int64_t)(args.depth_steps - 1) * GEMM_DEPTH_STEP < depth);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refusals),
      cmocka_unit_test(tensors_span_the_matrices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
