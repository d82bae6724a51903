/* wgmma of 64 columns; see wgmma_body.h. */
#define WGMMA_COLUMNS 64
#include "wgmma_body.h"
