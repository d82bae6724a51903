/* The laws that the device's dispatch and combine share with the host, held against what the
 * library's host side and its CPU backend say, and enumerated: shares and pieces cover all once. */
#include <stdlib.h>
#include <string.h>

#include "cpu/ep.h"
#include "cuda/ep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Every token in one share, and shares that differ by one at most. */
static void shares(void **state) {
  (void)state;
  for (uint32_t count = 0; count < 700; count += 1 + count / 40)
    for (uint32_t parts = 1; parts < 140; parts += 1 + parts / 9) {
      uint32_t next = 0, least = count, most = 0;
      for (uint32_t i = 0; i < parts; i++) {
        assert_int_equal(ep_share(count, parts, i), next);
        const uint32_t own = ep_share(count, parts, i + 1) - next;
        least = own < least ? own : least;
        most = own > most ? own : most;
        next += own;
      }
      assert_int_equal(next, count);
      assert_true(most - least <= 1);
    }
  assert_int_equal(ep_share(8192u * 1048576u / 16, 132, 132), 8192u * 1048576u / 16);
}

static void pieces(void **state) {
  (void)state;
  for (uint32_t bytes = 16; bytes < 70000; bytes += 16)
    for (uint32_t most = 64; most <= 32768; most *= 2) {
      const struct ep_pieces p = ep_pieces(bytes, most);
      uint32_t sum = 0;
      assert_true(p.bytes % 16 == 0 && p.bytes <= most);
      for (uint32_t i = 0; i < p.count; i++) {
        const uint32_t own = ep_piece_bytes(bytes, p, i);
        assert_true(own > 0 && own <= p.bytes && own % 16 == 0);
        sum += own;
      }
      assert_int_equal(sum, bytes);
    }
}

/* The scale of a block by its largest number, for every bf16: the CPU backend's words. */
static void scales(void **state) {
  (void)state;
  for (int32_t format = WEFT_EP_SCALE_F32; format <= WEFT_EP_SCALE_UE8M0; format++)
    for (uint32_t x = 0; x < 0x8000; x++) {
      const uint16_t row[8] = {0, (uint16_t)(x | (x & 1) << 15)};
      weft_ep_config c = WEFT_EP_CONFIG_INIT;
      float scratch[8];
      uint8_t codes[8];
      uint32_t word;
      c.hidden = 8;
      c.dtype = WEFT_E4M3;
      c.scale_format = format;
      weft__ep_cast_row(&c, weft__rows_best(), row, scratch, codes, &word);
      const uint32_t bits = ep_scale_bits(x, (uint32_t)format);
      assert_int_equal(format == WEFT_EP_SCALE_UE8M0 ? ep_ue8m0(bits) : bits, word);
    }
}

/* Places of scale words, and a plan's layout: whatever the config, the same as on the host. */
static void places(void **state) {
  (void)state;
  for (int i = 0; i < 48; i++) {
    const int64_t ranks = 1 + i % 4;
    weft_ep_config c = WEFT_EP_CONFIG_INIT;
    weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
    weft__sm90_ep_layout l;
    c.tokens_max = 5 + i;
    c.hidden = 8 * (1 + i * 37 % 200);
    c.experts = ranks * (1 + i % 5);
    c.topk = 1 + i % 32;
    c.dtype = WEFT_E4M3;
    c.layout = i / 2 % 2;
    c.alignment = c.layout == WEFT_EP_PACKED ? 128 : 1;
    c.scale_format = i % 3;
    c.scale_order = i / 4 % 2;
    assert_int_equal(weft__sm90_ep_layout_make(&c, ranks, &l, &info), WEFT_OK);
    for (int64_t row = 0; row < info.rows_max; row += 1 + row / 7)
      for (int64_t word = 0; word < weft__ep_scale_words(&c); word++) {
        const int64_t index = weft__ep_scale_index(&c, &info, row, word);
        assert_int_equal(ep_scale_index(&l.scales, (uint32_t)row, (uint32_t)word), index);
        assert_true(index < info.scale_bytes / 4);
      }
  }
}

/* Words of a slot lie apart, aligned, and within what the plan takes; rings fit an SM. */
static void layouts(void **state) {
  (void)state;
  for (int i = 0; i < 60; i++) {
    const int64_t ranks = (int64_t[]){1, 2, 3, 4, 8, 16, 64}[i % 7];
    weft_ep_config c = WEFT_EP_CONFIG_INIT;
    weft_ep_plan_info info = WEFT_EP_PLAN_INFO_INIT;
    weft__sm90_ep_layout l;
    c.tokens_max = 100;
    c.hidden = (int64_t[]){8, 264, 2880, 4104, 7168, 16384, 65536}[i / 3 % 7];
    c.experts = ranks * (i % 5 == 4 ? EP_MAX_EXPERTS / ranks : 1 + i % 5);
    c.topk = 1 + i * 5 % 32;
    c.dtype = i % 2 ? WEFT_E4M3 : WEFT_BF16;
    c.zero_copy = 1;
    assert_int_equal(weft__sm90_ep_layout_make(&c, ranks, &l, &info), WEFT_OK);
    const uint32_t r = (uint32_t)ranks, local = (uint32_t)info.experts_local;
    const struct ep_words w = ep_words_of(256, r, local);
    const uint64_t ends[][2] = {{w.hello, w.hello + r * 8},
                                {w.counts, w.counts + (uint64_t)r * local * 8},
                                {w.offer, w.offer + (uint64_t)r * EP_OFFER_BYTES},
                                {w.grant, w.grant + r * 4},
                                {w.permit, w.permit + r * 4},
                                {w.done, w.done + r * 4},
                                {w.first, w.first + (uint64_t)r * local * 4}};
    for (int a = 0; a < 7; a++) {
      assert_true(ends[a][0] >= 256 && ends[a][1] <= w.end);
      for (int b = 0; b < a; b++)
        assert_true(ends[a][1] <= ends[b][0] || ends[b][1] <= ends[a][0]);
    }
    assert_true(w.hello % 8 == 0 && w.counts % 8 == 0 && w.offer % 8 == 0 && w.first % 4 == 0);
    const uint64_t notice = ep_notice_of(0, r, local);
    assert_true(notice >= 2 * ep_words_of(0, r, local).end);
    assert_true(notice + r * 4 <= (uint64_t)l.words_bytes && l.words_bytes <= l.buffer);
    assert_true(l.buffer % 16 == 0 && l.buffer + info.buffer_bytes <= info.symmetric_bytes);
    assert_true(l.dispatch_shared <= EP_SHARED_BYTES && l.combine_shared <= EP_SHARED_BYTES);
    assert_true(c.dtype == WEFT_E4M3 || l.dispatch_stages > EP_STORE_LAG);
    assert_true(l.combine_stages >= 3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(shares), cmocka_unit_test(pieces),
                                     cmocka_unit_test(scales), cmocka_unit_test(places),
                                     cmocka_unit_test(layouts)};
  return cmocka_run_group_tests_name("ep laws of the device", tests, NULL, NULL);
}
