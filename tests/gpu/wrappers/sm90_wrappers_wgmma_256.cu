/* wgmma of 256 columns; see wgmma_body.h. */
#define WGMMA_COLUMNS 256
#include "wgmma_body.h"
