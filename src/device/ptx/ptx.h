/* Every wrapper. Device code includes this file and reaches memory that others can see in no other
 * way. */
#ifndef WEFT_DEVICE_PTX_PTX_H
#define WEFT_DEVICE_PTX_PTX_H

#include "access.h"
#include "address.h"
#include "arith.h"
#include "atomic.h"
#include "bulk.h"
#include "cluster.h"
#include "fence.h"
#include "grid.h"
#include "kernel.h"
#include "matrix.h"
#include "mbarrier.h"
#include "special.h"
#include "sync.h"
#include "tensor.h"
#include "types.h"
#include "wait.h"
#include "wgmma.h"

#endif
