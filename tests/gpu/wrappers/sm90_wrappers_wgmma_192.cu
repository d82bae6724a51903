/* wgmma of 192 columns; see wgmma_body.h. */
#define WGMMA_COLUMNS 192
#include "wgmma_body.h"
