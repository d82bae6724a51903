/* Row arithmetic for avx2; the flags of this file are in CMakeLists.txt. */
#define WEFT_ROWS_TABLE weft__rows_avx2
#define WEFT_ROWS_ISA   "avx2"
#include "cpu/rows_body.h"
