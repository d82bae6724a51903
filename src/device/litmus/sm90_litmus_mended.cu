/* The mended forms. */
#define LITMUS_MENDED 1
#include "cluster.h"
#include "global.h"
#include "stage.h"
#include "tensor_core.h"
