/* The broken forms. */
#define LITMUS_MENDED 0
#include "cluster.h"
#include "global.h"
#include "stage.h"
#include "tensor_core.h"
