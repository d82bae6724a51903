/* The law: each wrapper does what the PTX text says, to the bit. Oracles are plain C that shares
 * nothing with the executor: swizzles by row and column, products in double, conversions by search
 * for the nearest representable value. */
#include "wrappers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loom.h>

extern const struct loom_kernel wrappers_tensor_load, wrappers_tensor_store, wrappers_bulk_store,
    wrappers_cluster, wrappers_wgmma, wrappers_matrix, wrappers_convert, wrappers_warp,
    wrappers_mbarrier;

static int failed, checks;
static uint64_t seed_now;

static void check(int good, const char *what, long a, long b) {
  checks++;
  if (good) return;
  if (failed++ < 20) printf("FAIL seed %d: %s (%ld, %ld)\n", (int)seed_now, what, a, b);
}

static void begin(void) {
  struct loom_config config = LOOM_CONFIG_INIT;
  config.seed = seed_now;
  config.policy = (enum loom_policy)(seed_now % LOOM_POLICIES);
  check(loom_begin(&config) == 0, "begin", 0, 0);
}

static void launch(const struct loom_kernel *k, const struct wrappers_args *args, uint32_t ctas) {
  const struct loom_launch l = {k, args, 0, ctas, WRAPPERS_SMEM_BYTES, 0};
  check(loom_launch(&l) == 0, k->name, 0, 0);
  const int n = loom_run();
  for (int i = 0; i < n; i++)
    printf("    %s\n", loom_finding_at(i)->text);
  check(n == 0, k->name, n, 0);
}

/* ---- tensor copies ---- */

enum { T0 = 80, T1 = 40, T2 = 3 }; /* the tensor, 16-bit elements, rows padded to 96 */

/* Byte offset of 16-byte column c of row r of a box whose rows are `pitch` bytes. */
static uint32_t swizzled(enum loom_swizzle s, uint32_t r, uint32_t c, uint32_t pitch) {
  switch (s) {
  case LOOM_SWIZZLE_128B:
    return r * pitch + (c ^ r % 8) * 16;
  case LOOM_SWIZZLE_64B:
    return r * pitch + (c ^ r / 2 % 4) * 16;
  case LOOM_SWIZZLE_32B:
    return r * pitch + (c ^ r / 4 % 2) * 16;
  default:
    return r * pitch + c * 16;
  }
}

static uint16_t tensor[T2][T1][96];

static void tensor_case(enum loom_swizzle s, uint32_t rank, int32_t c0, int32_t c1, int32_t c2,
                        int store, int add) {
  begin();
  const uint32_t box[3] = {s == LOOM_SWIZZLE_NONE ? 24 : 8u << s, 20, rank == 3 ? 2 : 1};
  const uint64_t dims[3] = {T0, T1, T2}, strides[2] = {192, 192 * T1};
  const uint32_t pitch = box[0] * 2, bytes = pitch * box[1] * box[2];
  const uint64_t g = loom_alloc(0, sizeof tensor), buffer = loom_alloc(0, 65536);
  for (int z = 0; z < T2; z++)
    for (int y = 0; y < T1; y++)
      for (int x = 0; x < 96; x++) {
        const float f = (float)((x + 3 * y + 5 * z) % 100);
        uint32_t u;
        memcpy(&u, &f, 4);
        tensor[z][y][x] = (uint16_t)(u >> 16);
      }
  loom_write(g, tensor, sizeof tensor);
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  check(loom_tensor_map_encode(&args.map, LOOM_BF16, rank, g, dims, strides, box, s) == 0, "encode",
        s, rank);
  args.in.a = args.out.a = buffer;
  args.bytes = bytes;
  args.rank = rank;
  args.reduce = (uint32_t)add;
  args.at[0] = c0;
  args.at[1] = c1;
  args.at[2] = c2;
  static uint8_t image[65536];
  for (uint32_t i = 0; i < bytes; i += 2) {
    image[i] = 0x80; /* bf16 1.0: 0x3f80 */
    image[i + 1] = 0x3f;
  }
  if (store) loom_write(buffer, image, bytes);
  launch(store ? &wrappers_tensor_store : &wrappers_tensor_load, &args, 1);
  if (store)
    loom_read(g, tensor, sizeof tensor);
  else
    loom_read(buffer, image, bytes);
  for (uint32_t r = 0; r < box[1] * box[2]; r++)
    for (uint32_t e = 0; e < box[0]; e++) {
      const int64_t x = c0 + (int64_t)e, y = c1 + (int64_t)(r % box[1]),
                    z = (rank == 3 ? c2 : 0) + (int64_t)(r / box[1]);
      const int inside = x >= 0 && x < T0 && y >= 0 && y < T1 && (rank == 2 || (z >= 0 && z < T2));
      const float plain = inside ? (float)((x + 3 * y + 5 * z) % 100) : 0.0f;
      uint32_t want;
      uint16_t got;
      if (store) {
        if (!inside) continue; /* what else is written: below */
        const float f = add ? plain + 1.0f : 1.0f;
        memcpy(&want, &f, 4);
        got = tensor[z][y][x];
      } else {
        memcpy(&want, &plain, 4);
        memcpy(&got, image + swizzled(s, r, e / 8, pitch) + e % 8 * 2, 2);
      }
      check(got == want >> 16, store ? "tensor store" : "tensor load", (long)r, (long)e);
    }
  if (!store) return;
  /* Nothing outside the box changes, but in rows of the box the rest of a 16-byte unit that starts
   * inside the tensor (as measured on an H200). */
  for (int z = 0; z < T2; z++)
    for (int y = 0; y < T1; y++)
      for (int x = 0; x < 96; x++) {
        const int z0 = rank == 3 ? c2 : 0;
        const int row_in_box = y >= c1 && y < c1 + (int)box[1] && z >= z0 && z < z0 + (int)box[2];
        const int unit = x >= c0 ? c0 + (x - c0) / 8 * 8 : T0; /* where x's unit starts */
        if (row_in_box && x < c0 + (int)box[0] && unit < T0) continue;
        const float f = (float)((x + 3 * y + 5 * z) % 100);
        uint32_t u;
        memcpy(&u, &f, 4);
        check(tensor[z][y][x] == u >> 16, "beside the box", x, y);
      }
}

static void tensors(void) {
  for (int s = LOOM_SWIZZLE_NONE; s <= LOOM_SWIZZLE_128B; s++) {
    tensor_case((enum loom_swizzle)s, 2, 8, 4, 0, 0, 0);
    tensor_case((enum loom_swizzle)s, 2, 72, 30, 0, 0, 0); /* past both ends */
    tensor_case((enum loom_swizzle)s, 2, -3, -5, 0, 0, 0); /* before both, odd */
    tensor_case((enum loom_swizzle)s, 3, 77, 35, 2, 0, 0);
    tensor_case((enum loom_swizzle)s, 2, 72, 30, 0, 1, 0);
    tensor_case((enum loom_swizzle)s, 2, 3, 1, 0, 1, 1);
    tensor_case((enum loom_swizzle)s, 2, 74, 1, 0, 1, 0); /* a unit across the edge */
    tensor_case((enum loom_swizzle)s, 3, 64, 10, 2, 1, 0);
  }
  struct wrappers_args a;
  memset(&a, 0, sizeof a);
  const uint64_t dims[2] = {64, 64}, good[1] = {128}, odd[1] = {130};
  const uint32_t box[2] = {64, 8}, wide[2] = {64, 257}, narrow[2] = {32, 8};
  begin();
  const uint64_t g = loom_alloc(0, 8192);
  const enum loom_swizzle w = LOOM_SWIZZLE_128B;
  check(loom_tensor_map_encode(&a.map, LOOM_BF16, 2, g + 8, dims, good, box, w), "base", 0, 0);
  check(loom_tensor_map_encode(&a.map, LOOM_BF16, 2, g, dims, odd, box, w), "stride", 0, 0);
  check(loom_tensor_map_encode(&a.map, LOOM_BF16, 2, g, dims, good, wide, w), "box", 0, 0);
  check(loom_tensor_map_encode(&a.map, LOOM_BF16, 2, g, dims, good, narrow, w), "span", 0, 0);
  check(!loom_tensor_map_encode(&a.map, LOOM_BF16, 2, g, dims, good, box, w), "right", 0, 0);
  /* a store at a negative coordinate is an illegal instruction on an H200 */
  a.in.a = loom_alloc(0, 1024);
  loom_fill(a.in.a, 0, 1024);
  a.bytes = 1024;
  a.rank = 2;
  a.at[1] = -1;
  const struct loom_launch l = {&wrappers_tensor_store, &a, 0, 1, WRAPPERS_SMEM_BYTES, 0};
  check(loom_launch(&l) == 0 && loom_run() > 0 && loom_finding_at(0)->kind == LOOM_ILLEGAL,
        "negative coordinate", loom_finding_count(), 0);
}

/* ---- wgmma ---- */

static double a_value(int m, int k) {
  return (m * 5 + k * 3) % 7 - 3;
}
static double b_value(int n, int k) {
  return (n * 3 + k * 7) % 5 - 2;
}

static uint16_t narrow(double v, int f16) {
  if (!f16) {
    const float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
  }
  if (v == 0) return 0;
  const int sign = v < 0, i = (int)fabs(v); /* 1, 2 or 3 */
  return (uint16_t)(sign << 15 | (i == 1 ? 0x3c00 : i == 2 ? 0x4000 : 0x4200));
}

/* Where an operand's element lies: PTX's canonical layouts by row and column. */
static uint32_t operand_at(int swizzle_bytes, int mn_major, uint32_t mn, uint32_t k,
                           uint32_t rows) {
  if (!mn_major &&
      !swizzle_bytes) /* core matrices of 8 rows, both k halves of a row group together */
    return mn / 8 * 256 + k / 8 * 128 + mn % 8 * 16 + k % 8 * 2;
  if (!mn_major) {
    const uint32_t span = (uint32_t)swizzle_bytes;
    const uint32_t r = mn * span, line = r / 128 % (span / 16);
    return r + (k / 8 ^ line) * 16 + k % 8 * 2;
  }
  if (!swizzle_bytes) return mn / 8 * 128 + k / 8 * (rows / 8 * 128) + k % 8 * 16 + mn % 8 * 2;
  const uint32_t span = (uint32_t)swizzle_bytes, wide = span / 2;
  const uint32_t r = k * span, line = r / 128 % (span / 16);
  return mn / wide * (span * 32) + r + (mn % wide / 8 ^ line) * 16 + mn % 8 * 2;
}

/* k: 16 or 32. Operand images hold 32 of k when MN-major or when the span has room. */
static void wgmma_case(uint32_t n, int f16, int a_mn, int b_mn, int swizzle_bytes, int scale_d,
                       uint32_t k) {
  begin();
  static uint8_t image[81920];
  memset(image, 0, sizeof image);
  const uint32_t b_offset = 16384;
  for (uint32_t m = 0; m < 64; m++)
    for (uint32_t i = 0; i < k; i++) {
      const uint16_t v = narrow(a_value((int)m, (int)i), f16);
      memcpy(image + operand_at(swizzle_bytes, a_mn, m, i, 64), &v, 2);
    }
  for (uint32_t c = 0; c < n; c++)
    for (uint32_t i = 0; i < k; i++) {
      const uint16_t v = narrow(b_value((int)c, (int)i), f16);
      memcpy(image + b_offset + operand_at(swizzle_bytes, b_mn, c, i, n), &v, 2);
    }
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.in.a = loom_alloc(0, sizeof image);
  args.out.a = loom_alloc(0, 128 * 128 * 4);
  loom_write(args.in.a, image, sizeof image);
  args.bytes = sizeof image;
  args.b_offset = b_offset;
  args.reduce = (uint32_t)scale_d;
  args.variant = n / 64 - 1 + 4 * (uint32_t)f16 + 8 * (uint32_t)a_mn + 16 * (uint32_t)b_mn;
  args.swizzle = swizzle_bytes == 128 ? 1 : swizzle_bytes == 64 ? 2 : swizzle_bytes == 32 ? 3 : 0;
  if (!swizzle_bytes) { /* unswizzled: equal majors, and for MN-major equal row counts */
    args.sbo = a_mn ? 128 : 256;
    args.lbo = a_mn ? n / 8 * 128 : 128;
  } else {
    args.sbo = 8 * (uint32_t)swizzle_bytes;
    args.lbo = 32 * (uint32_t)swizzle_bytes;
  }
  if (k == 32) args.k_step = a_mn ? 16 * (uint32_t)swizzle_bytes : 32;
  launch(&wrappers_wgmma, &args, 1);
  static float d[128 * 128];
  loom_read(args.out.a, d, 128 * (n / 2) * 4);
  for (uint32_t t = 0; t < 128; t++)
    for (uint32_t i = 0; i < n / 2; i++) {
      const int m = (int)(16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2));
      const int c = (int)(8 * (i / 4) + 2 * (t % 4) + i % 2);
      double want = scale_d ? (double)i : 0;
      for (uint32_t q = 0; q < k; q++)
        want += a_value(m, (int)q) * b_value(c, (int)q);
      check(d[t * (n / 2) + i] == (float)want, "wgmma", m, c);
    }
}

static void products(void) {
  for (uint32_t n = 64; n <= 256; n += 64)
    for (int major = 0; major < 4; major++)
      wgmma_case(n, (int)(n / 64 + (uint32_t)major) % 2, major & 1, major >> 1, 128, major & 1, 16);
  for (int swizzle = 32; swizzle <= 64; swizzle *= 2)
    for (int major = 0; major < 4; major++)
      wgmma_case(128, 0, major & 1, major >> 1, swizzle, 1, 16);
  wgmma_case(64, 0, 0, 0, 0, 0, 16);
  wgmma_case(64, 1, 1, 1, 0, 0, 16);
  wgmma_case(192, 0, 0, 0, 128, 1, 32);
  wgmma_case(128, 1, 1, 1, 128, 0, 32);
}

/* ---- matrices, lanes, phases ---- */

static void matrices(void) {
  begin();
  uint16_t in[4][8][8], out[4][256];
  for (int m = 0; m < 4; m++)
    for (int r = 0; r < 8; r++)
      for (int c = 0; c < 8; c++)
        in[m][r][c] = (uint16_t)(1000 * m + 10 * r + c);
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.in.a = loom_alloc(0, 512);
  args.out.a = loom_alloc(0, 2048);
  loom_write(args.in.a, in, sizeof in);
  launch(&wrappers_matrix, &args, 1);
  loom_read(args.out.a, out, sizeof out);
  for (int lane = 0; lane < 32; lane++)
    for (int m = 0; m < 4; m++)
      for (int e = 0; e < 2; e++) {
        const int r = lane / 4, c = 2 * (lane % 4) + e, at = 8 * lane + 2 * m + e;
        check(out[0][at] == in[m][r][c], "ldmatrix", lane, m);
        check(out[1][at] == in[m][c][r], "ldmatrix.trans", lane, m);
        const uint16_t mine = (uint16_t)(1000 * lane + 2 * m + e);
        check(out[2][64 * m + 8 * r + c] == mine, "stmatrix", lane, m);
        check(out[3][64 * m + 8 * c + r] == mine, "stmatrix.trans", lane, m);
      }
}

static void warps(void) {
  begin();
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.out.a = loom_alloc(0, 2048);
  loom_fill(args.out.a, 0, 2048);
  launch(&wrappers_warp, &args, 1);
  uint32_t out[512];
  loom_read(args.out.a, out, sizeof out);
  uint32_t elected[2] = {0, 0};
  for (uint32_t t = 0; t < 64; t++) {
    const uint32_t *o = out + 4 * t;
    const float f = (float)(t ^ 8);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    check(o[0] == (t / 32 * 32 + 5) * 3, "shfl", t, o[0]);
    check(o[1] == bits, "shfl xor", t, o[1]);
    check(o[2] == 0x49249249u, "ballot", t, o[2]);
    elected[t / 32] += o[3];
  }
  check(elected[0] == 1 && elected[1] == 1, "elect", elected[0], elected[1]);
  const uint32_t *c = out + 256;
  float f;
  uint64_t wide;
  check(c[0] == 63 * 64 / 2, "atom.add", c[0], 0);
  check(c[1] == 64, "red.add", c[1], 0);
  check(c[2] >= 1 && c[2] <= 64, "atom.cas", c[2], 0);
  memcpy(&f, c + 3, 4);
  check(f == 32.0f, "red.add.f32", (long)f, 0);
  memcpy(&wide, c + 4, 8);
  check(wide == 64ull << 33, "atom.add.u64", (long)wide, 0);
  memcpy(&f, c + 6, 4);
  check(f == 64.0f, "red.add.v2 x", (long)f, 0);
  memcpy(&f, c + 7, 4);
  check(f == 128.0f, "red.add.v2 y", (long)f, 0);
  check(c[8] == 77, "atom.exch", c[8], 0);
}

static void phases(void) {
  begin();
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.in.a = loom_alloc(0, 64);
  args.out.a = loom_alloc(0, 64);
  loom_fill(args.in.a, 0, 64);
  launch(&wrappers_mbarrier, &args, 1);
  static const uint32_t want[9] = {1, 0, 0, 1, 0, 0, 1, 0, 1};
  uint32_t out[9];
  loom_read(args.out.a, out, sizeof out);
  for (int i = 0; i < 9; i++)
    check(out[i] == want[i], "mbarrier step", i, out[i]);
}

/* ---- bulk copies ---- */

static void bulk(void) {
  for (uint32_t type = 0; type < 3; type++) {
    begin();
    struct wrappers_args args;
    memset(&args, 0, sizeof args);
    args.bytes = 1024;
    args.reduce = type;
    args.in.a = loom_alloc(0, 1024);
    args.out.a = loom_alloc(0, 1024);
    uint32_t in[256], out[256];
    for (int i = 0; i < 256; i++) {
      const float f = (float)(i % 50);
      memcpy(&in[i], &f, 4);
      if (type == 2) in[i] = in[i] >> 16 | 0x3f800000u; /* pairs of bf16: i % 50, 1 */
    }
    loom_write(args.in.a, in, sizeof in);
    loom_write(args.out.a, in, sizeof in);
    launch(&wrappers_bulk_store, &args, 1);
    loom_read(args.out.a, out, sizeof out);
    for (int i = 0; i < 256; i++) {
      const float twice = (float)(i % 50 * 2);
      uint32_t want;
      memcpy(&want, &twice, 4);
      if (type == 0) want = in[i];
      if (type == 2) want = want >> 16 | 0x40000000u;
      check(out[i] == want, "bulk store", (long)type, i);
    }
  }
  begin();
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.bytes = 2048;
  args.in.a = loom_alloc(0, 2048);
  args.out.a = loom_alloc(0, 8192);
  uint32_t in[512], out[2048];
  for (uint32_t i = 0; i < 512; i++)
    in[i] = i * 2654435761u;
  loom_write(args.in.a, in, sizeof in);
  launch(&wrappers_cluster, &args, 2);
  loom_read(args.out.a, out, 2 * 2048 + 1024);
  for (int i = 0; i < 512; i++) {
    check(out[i] == in[i], "multicast", i, 0);
    check(out[512 + i] == in[i], "push", i, 0);
  }
  for (uint32_t t = 0; t < 128; t++) {
    check(out[1024 + t] == 1000 + t, "remote store to CTA 0", (long)t, out[1024 + t]);
    check(out[1152 + t] == t, "remote store to CTA 1", (long)t, out[1152 + t]);
  }
}

/* ---- conversions ---- */

/* The value of a finite encoding. */
static double value_of(uint32_t code, int mantissa, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int e = (int)(code >> mantissa) & ((1 << exponent_bits) - 1);
  const double m = code & ((1u << mantissa) - 1);
  return e ? ldexp((1 << mantissa) + m, e - bias - mantissa) : ldexp(m, 1 - bias - mantissa);
}

/* Nearest of the non-negative encodings 0 .. last, even code on a tie; `over` from half a step
 * above. */
static uint32_t nearest(double v, int mantissa, int exponent_bits, uint32_t last, uint32_t over) {
  uint32_t low = 0, high = last;
  while (low < high) { /* the last one not above v */
    const uint32_t middle = (low + high + 1) / 2;
    if (value_of(middle, mantissa, exponent_bits) <= v)
      low = middle;
    else
      high = middle - 1;
  }
  const double here = value_of(low, mantissa, exponent_bits);
  const double next = low == last ? here + (here - value_of(low - 1, mantissa, exponent_bits))
                                  : value_of(low + 1, mantissa, exponent_bits);
  const uint32_t up = low == last ? over : low + 1;
  if (v - here != next - v) return v - here < next - v ? low : up;
  return low % 2 ? up : low;
}

static void conversions(void) {
  enum { N = 1024 };
  static uint32_t in[N], out[N * 8];
  for (uint32_t i = 0; i < N; i++)
    in[i] = i * 2654435761u ^ i * i * 40503u;
  static const uint32_t special[] = {
      0,           0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x3f800000u,
      0x43e00000u, 0x43e80000u, 0x43e80001u, 0x7f7fffffu, 0x477fe000u, 0x477ff000u,
      0x477fefffu, 0x33000000u, 0x33000001u, 0x3b000000u, 0x3a800000u, 0x3a800001u,
      0x3f808000u, 0x3f818000u, 0x7f7f8000u, 0x00000001u, 0x38800000u, 0x387fffffu};
  memcpy(in, special, sizeof special);
  for (uint32_t i = 64; i < 512; i++) { /* and many of ordinary size */
    const float f = ((float)(int)(i * 7919 % 4001) - 2000.0f) / (float)(1 << i % 20);
    memcpy(&in[i], &f, 4);
  }
  begin();
  struct wrappers_args args;
  memset(&args, 0, sizeof args);
  args.in.a = loom_alloc(0, sizeof in);
  args.out.a = loom_alloc(0, sizeof out);
  loom_write(args.in.a, in, sizeof in);
  launch(&wrappers_convert, &args, N / 128);
  loom_read(args.out.a, out, sizeof out);
  for (int i = 0; i < N; i++) {
    float v;
    memcpy(&v, &in[i], 4);
    const uint32_t *o = out + 8 * i, sign = in[i] >> 31;
    const double m = fabs((double)v);
    uint32_t bf16 = isinf(v) ? 0x7f80 : nearest(m, 7, 8, 0x7f7f, 0x7f80) | 0;
    uint32_t f16 = isinf(v) ? 0x7c00 : nearest(m, 10, 5, 0x7bff, 0x7c00);
    uint32_t e4m3 = isinf(v) ? 0x7e : nearest(m, 3, 4, 0x7e, 0x7e);
    bf16 = isnan(v) ? 0x7fff : bf16 | sign << 15;
    f16 = isnan(v) ? 0x7fff : f16 | sign << 15;
    e4m3 = isnan(v) ? 0x7f : e4m3 | sign << 7;
    check(o[0] == (bf16 | 0x3f800000u), "bf16", in[i], o[0]);
    check(o[1] == (f16 | 0x3c000000u), "f16", in[i], o[1]);
    check(o[2] == (e4m3 | 0x3800u), "e4m3", in[i], o[2]);
    const uint32_t half = in[i] & 0xffff;
    float back;
    memcpy(&back, &o[3], 4);
    if ((half >> 10 & 31) == 31)
      check((half & 0x3ff) ? o[3] == 0x7fffffffu : isinf(back), "f16 to f32", half, o[3]);
    else
      check(fabs(back) == value_of(half & 0x7fff, 10, 5) && !signbit(back) == !(half >> 15),
            "f16 to f32", half, o[3]);
    check(o[4] == (in[i] & 0xffff0000u) && o[5] == in[i] << 16, "bf16 halves", in[i], 0);
    const float most = v > 2.0f ? v : 2.0f; /* NaN gives the other operand */
    check(memcmp(&most, &o[6], 4) == 0, "max", in[i], o[6]);
    check(!isnan(v) || o[7] == 0x7fffffffu, "fma of NaN", in[i], o[7]);
  }
}

int main(int argc, char **argv) {
  const uint64_t seeds = argc > 1 ? (uint64_t)atoi(argv[1]) : 4;
  for (seed_now = 0; seed_now < seeds; seed_now++) {
    tensors();
    if (seed_now < 2) products();
    matrices();
    warps();
    phases();
    bulk();
    conversions();
  }
  loom_end();
  printf("%d checks, %d failed\n", checks, failed);
  return failed != 0;
}
