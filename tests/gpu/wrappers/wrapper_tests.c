/* See wrapper_tests.h. */
#include "wrapper_tests.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *image_of(const char *kernel) {
#define X(name, image)                                                                             \
  if (!strcmp(kernel, #name)) return #image;
  WRAPPER_KERNELS(X)
#undef X
  return NULL;
}

struct list {
  struct wrapper_test *tests;
  size_t count;
};

static struct wrapper_test *add(struct list *list, const char *kernel, uint32_t threads,
                                uint32_t cluster, uint32_t shared_bytes, enum wrapper_fill fill,
                                uint32_t in_bytes, uint32_t out_bytes, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

static struct wrapper_test *add(struct list *list, const char *kernel, uint32_t threads,
                                uint32_t cluster, uint32_t shared_bytes, enum wrapper_fill fill,
                                uint32_t in_bytes, uint32_t out_bytes, const char *format, ...) {
  if (list->count == WRAPPER_TESTS_MAX || out_bytes > WRAPPER_OUT_MAX || !image_of(kernel)) abort();
  struct wrapper_test *test = &list->tests[list->count++];
  memset(test, 0, sizeof *test);
  test->kernel = kernel, test->image = image_of(kernel);
  test->threads = threads, test->cluster = cluster, test->shared_bytes = shared_bytes;
  test->fill = fill, test->in_bytes = in_bytes, test->out_bytes = out_bytes;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(test->name, sizeof test->name, format, arguments);
  va_end(arguments);
  return test;
}

static const struct {
  const char *name;
  enum cuda_swizzle swizzle;
  uint32_t line_bytes; /* of a box */
} swizzles[] = {{"none", CUDA_SWIZZLE_NONE, 64},
                {"32", CUDA_SWIZZLE_32, 32},
                {"64", CUDA_SWIZZLE_64, 64},
                {"128", CUDA_SWIZZLE_128, 128}};
/* Where a box lies, as the store kernel counts. */
static const char *const boxes[] = {"inside", "right", "left", "below", "above", "inside"};
enum { BOX_RIGHT = 1, BOX_LEFT = 2, BOX_ABOVE = 4, BOX_REDUCED = 5 };
enum { SWIZZLES = sizeof swizzles / sizeof *swizzles, BOX_LINES = 16 };

/* A 2-D tensor of two boxes and a bit less, with padded lines. */
static struct cuda_tensor tensor_2d(enum cuda_element element, size_t swizzle) {
  const uint32_t bytes = element == CUDA_F32 ? 4 : 2;
  const uint32_t wide = swizzles[swizzle].line_bytes / bytes;
  return (struct cuda_tensor){.element = element,
                              .swizzle = swizzles[swizzle].swizzle,
                              .rank = 2,
                              .dims = {2 * wide - 3, 30},
                              .strides = {2 * wide * bytes + 16},
                              .box = {wide, BOX_LINES}};
}

static uint32_t bytes_2d(const struct cuda_tensor *t) {
  return (uint32_t)(t->dims[1] * t->strides[0]);
}

static void add_tensor_tests(struct list *list) {
  struct wrapper_test *test;
  for (size_t s = 0; s < SWIZZLES; s++) {
    for (int f32 = 0; f32 < 2; f32++) {
      const struct cuda_tensor tensor = tensor_2d(f32 ? CUDA_F32 : CUDA_BF16, s);
      const enum wrapper_fill fill = f32 ? FILL_WHOLE_F32 : FILL_WHOLE_BF16;
      const uint32_t box = swizzles[s].line_bytes * BOX_LINES, wide = tensor.box[0];
      const char *type = f32 ? "f32" : "bf16", *name = swizzles[s].name;
      test = add(list, "wrapper_tensor_load_2d", 128, 1, 1024 + 4 * box, FILL_BYTES,
                 bytes_2d(&tensor), 4 * box, "tensor_load_2d/%s/%s", type, name);
      test->map = MAP_IN, test->tensor = tensor, test->parameter = box | wide << 16;
      for (uint32_t which = 0; which <= BOX_REDUCED; which++) {
        test = add(list, "wrapper_tensor_store_2d", 128, 1, 1024 + box, fill, box,
                   bytes_2d(&tensor), "tensor_%s_2d/%s/%s/%s",
                   which == BOX_REDUCED ? "reduce" : "store", type, name, boxes[which]);
        test->map = MAP_OUT, test->tensor = tensor;
        test->parameter = box | wide << 16 | which << 24;
        /* a store may not start at a negative coordinate, though a load may (seen on an H200) */
        test->illegal = which == BOX_LEFT || which == BOX_ABOVE;
      }
      /* the tensor ends with a whole piece of 16 bytes */
      test = add(list, "wrapper_tensor_store_2d", 128, 1, 1024 + box, fill, box, bytes_2d(&tensor),
                 "tensor_store_2d/%s/%s/right_whole", type, name);
      test->map = MAP_OUT, test->tensor = tensor;
      test->tensor.dims[0] = wide + wide / 2 + (f32 ? 4 : 8);
      test->parameter = box | wide << 16 | BOX_RIGHT << 24;
    }
    /* as an MN-major operand is loaded: lines of one swizzle width, blocks of 20 lines */
    const uint32_t line = swizzles[s].line_bytes, wide = line / 2;
    const struct cuda_tensor blocks = {.element = CUDA_BF16,
                                       .swizzle = swizzles[s].swizzle,
                                       .rank = 3,
                                       .dims = {wide, 20, 3},
                                       .strides = {line * 3 + 16, line},
                                       .box = {wide, 8, 2}};
    const uint32_t in = (uint32_t)(20 * blocks.strides[0]), box = line * 16;
    test = add(list, "wrapper_tensor_load_3d", 128, 1, 1024 + 2 * box, FILL_BYTES, in, 2 * box,
               "tensor_load_3d/%s", swizzles[s].name);
    test->map = MAP_IN, test->tensor = blocks, test->parameter = box;
    test = add(list, "wrapper_tensor_store_3d", 128, 1, 1024 + box, FILL_BYTES, box, in,
               "tensor_store_3d/%s", swizzles[s].name);
    test->map = MAP_OUT, test->tensor = blocks, test->parameter = box;
  }
  for (uint32_t rank = 2; rank <= 3; rank++) {
    struct cuda_tensor tensor = {.element = CUDA_BF16,
                                 .swizzle = CUDA_SWIZZLE_128,
                                 .rank = rank,
                                 .dims = {64, 24, 2},
                                 .strides = {256, 128},
                                 .box = {64, rank == 2 ? 16 : 8, 2}};
    test = add(list, "wrapper_tensor_multicast", 128, 2, 1024 + 4096, FILL_BYTES, 24 * 256, 8192,
               "tensor_load_%ud_multicast", rank);
    test->map = MAP_IN, test->tensor = tensor, test->parameter = rank;
  }
}

static void add_wgmma_tests(struct list *list) {
  static const char *const kernels[][2] = {{"wrapper_wgmma_64_bf16", "wrapper_wgmma_64_f16"},
                                           {"wrapper_wgmma_128_bf16", "wrapper_wgmma_128_f16"},
                                           {"wrapper_wgmma_192_bf16", "wrapper_wgmma_192_f16"},
                                           {"wrapper_wgmma_256_bf16", "wrapper_wgmma_256_f16"}};
  static const char *const descriptor[] = {"none", "128", "64", "32"}; /* as they count */
  for (uint32_t n = 0; n < 4; n++) {
    for (uint32_t f16 = 0; f16 < 2; f16++) {
      for (uint32_t p = 0; p < 64; p++) {
        const uint32_t a = p & 3, b = p >> 2 & 3;
        if (a != b && (n != 0 || f16)) continue; /* all pairs of swizzles once, for 64 columns */
        struct wrapper_test *test =
            add(list, kernels[n][f16], 128, 1, 1024 + 49152, f16 ? FILL_WHOLE_F16 : FILL_WHOLE_BF16,
                49152, (n + 1) * 32 * 128 * 4, "wgmma_m64n%uk16_%s/a_%s_%s/b_%s_%s", (n + 1) * 64,
                f16 ? "f16" : "bf16", p & 16 ? "mn" : "k", descriptor[a], p & 32 ? "mn" : "k",
                descriptor[b]);
        test->parameter = p;
      }
    }
  }
}

size_t wrapper_tests_make(struct wrapper_test tests[WRAPPER_TESTS_MAX]) {
  struct list list = {tests, 0};
  add(&list, "wrapper_memory", 32, 1, 4096, FILL_BYTES, 4096, 4096, "memory");
  add(&list, "wrapper_atomics", 64, 1, 64, FILL_BYTES, 1024, 64 * 64 + 16, "atomics");
  add(&list, "wrapper_dsmem", 32, 2, 2048, FILL_BYTES, 4096, 4096, "dsmem");
  add(&list, "wrapper_sync", 128, 1, 512, FILL_BYTES, 2048, 8192, "sync");
  add(&list, "wrapper_matrix", 32, 1, 1536, FILL_BYTES, 512, 2048, "matrix");
  for (int i = 0; i < 8; i++)
    add(&list, "wrapper_convert", 128, 1, 0, FILL_FLOATS, 2048, 128 * 40, "convert/%d", i);
  add(&list, "wrapper_mbarrier", 32, 1, 2048, FILL_BYTES, 64, 256, "mbarrier");
  add(&list, "wrapper_bulk", 32, 1, 1024 + 8192, FILL_WHOLE_BF16, 8192, 8192, "bulk");
  add(&list, "wrapper_bulk_cluster", 32, 2, 1024 + 2048, FILL_BYTES, 512, 4096, "bulk_cluster");
  add_tensor_tests(&list);
  add_wgmma_tests(&list);
  return list.count;
}

static uint32_t next(uint32_t *state) { /* xorshift, of 32 bits, never 0 */
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

/* f16 of a whole number of at most 11 bits. */
static uint16_t f16_of(int value) {
  uint32_t size = (uint32_t)(value < 0 ? -value : value), exponent = 25;
  if (size == 0) return 0;
  while (size < 1024)
    size <<= 1, exponent--;
  return (uint16_t)((value < 0 ? 0x8000u : 0) | exponent << 10 | (size & 1023));
}

void wrapper_input(const struct wrapper_test *test, size_t i, unsigned char *in) {
  /* Where conversions have their edges: zeros, ones, halves of steps, the largest and smallest of
   * E4M3, f16 and bf16, infinities, NaN, denormals. */
  static const uint32_t edges[] = {
      0,          0x80000000, 0x3f800000, 0xbf800000, 0x3f808000, 0x3f818000, 0x43e00000,
      0x43e80000, 0x43f00000, 0xc3e00001, 0x477fe000, 0x477ff000, 0x47800000, 0x33800000,
      0x33000000, 0x38800000, 0x387fe000, 0x7f7fffff, 0x7f7f8000, 0x7f800000, 0xff800000,
      0x7fc00000, 0xffc00001, 0x7f800001, 0x00000001, 0x007fffff, 0x00800000, 0x3b000000,
      0x3a800000, 0x3ac00000, 0x3c7fffff, 0x80000001};
  uint32_t state = (uint32_t)i * 2654435761u + 12345;
  for (uint32_t at = 0; at < test->in_bytes; at += 4) {
    uint32_t word = next(&state);
    const int lo = (int)(next(&state) >> 16) % 9 - 4, hi = (int)(next(&state) >> 16) % 9 - 4;
    switch (test->fill) {
    case FILL_BYTES:
      break;
    case FILL_FLOATS:
      if (word % 3 == 0)
        word = edges[next(&state) % (sizeof edges / sizeof *edges)];
      else if (word % 3 == 1) /* of a size that all formats hold */
        word = (word & 0x807fffffu) | (110 + next(&state) % 32) << 23;
      break;
    case FILL_WHOLE_F32: {
      const float value = (float)(lo * 16 + hi);
      memcpy(&word, &value, sizeof word);
      break;
    }
    case FILL_WHOLE_BF16: {
      const float values[] = {(float)lo, (float)hi};
      uint32_t bits[2];
      memcpy(bits, values, sizeof bits);
      word = bits[0] >> 16 | (bits[1] & 0xffff0000u);
      break;
    }
    case FILL_WHOLE_F16:
      word = (uint32_t)f16_of(lo) | (uint32_t)f16_of(hi) << 16;
      break;
    }
    memcpy(in + at, &word, sizeof word);
  }
}

uint64_t wrapper_hash(const unsigned char *bytes, size_t count) { /* FNV-1a */
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

void wrapper_write_line(FILE *file, const struct wrapper_test *test, const unsigned char *out) {
  fprintf(file, "%s %u %016llx\n", test->name, test->out_bytes,
          (unsigned long long)wrapper_hash(out, test->out_bytes));
}

int wrapper_find_hash(const char *path, const char *name, uint64_t *hash) {
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  char line[160], found[100];
  unsigned long long value;
  unsigned bytes;
  int status = -1;
  while (status && fgets(line, sizeof line, file)) {
    if (sscanf(line, "%99s %u %llx", found, &bytes, &value) == 3 && !strcmp(found, name)) {
      *hash = value;
      status = 0;
    }
  }
  fclose(file);
  return status;
}
