/* Row arithmetic for baseline; the flags of this file are in CMakeLists.txt. */
#define WEFT_ROWS_TABLE weft__rows_baseline
#define WEFT_ROWS_ISA   "baseline"
#include "cpu/rows_body.h"
