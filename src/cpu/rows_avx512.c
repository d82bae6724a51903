/* Row arithmetic for avx512; the flags of this file are in CMakeLists.txt. */
#define WEFT_ROWS_TABLE weft__rows_avx512
#define WEFT_ROWS_ISA   "avx512"
#include "cpu/rows_body.h"
