/* Arguments of the wrappers' own tests, for both sides. Each kernel reads `in`, writes `out`. */
#ifndef WEFT_TESTS_LOOM_WRAPPERS_H
#define WEFT_TESTS_LOOM_WRAPPERS_H

#include "device/ptx/address.h"

struct wrappers_args {
  struct tensor_map map;
  struct gmem in, out;
  uint32_t bytes;             /* of a copy */
  uint32_t rank;              /* of the map */
  int32_t at[3];              /* coordinates */
  uint32_t reduce;            /* 0 store, 1 add f32, 2 add bf16; tensor stores: add when not 0 */
  uint32_t variant;           /* wgmma: n / 64 - 1 (0, 1, 2, 3) + 4 * f16 + 8 * a_mn + 16 * b_mn */
  uint32_t lbo, sbo, swizzle; /* of both descriptors */
  uint32_t b_offset;          /* of operand B in the image */
  uint32_t k_step;            /* descriptor advance of the second k16, in bytes; 0: one k16 */
};

#define WRAPPERS_SMEM_BYTES (96 * 1024)

#endif
