/* wgmma of 128 columns; see wgmma_body.h. */
#define WGMMA_COLUMNS 128
#include "wgmma_body.h"
