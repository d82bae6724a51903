/* The three products of backward as shapes of sm90_multiply.h, and what depends on the instance:
 * the dtype's instructions, and the registers of the roles. */
#ifndef WEFT_DEVICE_CE_SM90_BACKWARD_SHAPES_H
#define WEFT_DEVICE_CE_SM90_BACKWARD_SHAPES_H

#include <assert.h>

#include "device/ce/backward.h"
#include "device/ce/sm90_ring.h"

/* Which products' tiles the warpgroups take in turn. */
#ifndef DX_IN_TURN
#define DX_IN_TURN 0
#endif
#define DX_BLOCKS (DX_IN_TURN ? 2 : 1)
#if DX_IN_TURN
#define DX_COLS            128
#define BACKWARD_STAGES_DX 6
#define BACKWARD_WGMMA_DX  BACKWARD_WGMMA_128
#else
#define DX_COLS            256
#define BACKWARD_STAGES_DX 4
#define BACKWARD_WGMMA_DX  BACKWARD_WGMMA_256
#endif
#define BACKWARD_STAGES_DW 3

#ifdef BACKWARD_F16
#define BACKWARD_WGMMA_128 wgmma_m64n128k16_f16
#define BACKWARD_WGMMA_192 wgmma_m64n192k16_f16
#define BACKWARD_WGMMA_256 wgmma_m64n256k16_f16
#else
#define BACKWARD_WGMMA_128 wgmma_m64n128k16_bf16
#define BACKWARD_WGMMA_192 wgmma_m64n192k16_bf16
#define BACKWARD_WGMMA_256 wgmma_m64n256k16_bf16
#endif

#define SHAPE(name) dz_##name
#define BLOCKS      2
#define COLS        192
#define STAGES      BACKWARD_STAGES_DZ
#define A_MN        0
#define B_MN        0
#define SHARE_A     0
#define IN_TURN     1
#define WGMMA       BACKWARD_WGMMA_192
#include "device/ce/sm90_multiply.h"

#define SHAPE(name) dx_##name
#define BLOCKS      DX_BLOCKS
#define COLS        DX_COLS
#define STAGES      BACKWARD_STAGES_DX
#define A_MN        0
#define B_MN        1
#define SHARE_A     0
#define IN_TURN     DX_IN_TURN
#define WGMMA       BACKWARD_WGMMA_DX
#include "device/ce/sm90_multiply.h"

#define SHAPE(name) dw_##name
#define BLOCKS      2
#define COLS        192
#define STAGES      BACKWARD_STAGES_DW
#define A_MN        1
#define B_MN        1
#define SHARE_A     1
#define IN_TURN     0
#define WGMMA       BACKWARD_WGMMA_192
#include "device/ce/sm90_multiply.h"

/* Registers a thread: 168 at launch; the first warpgroup gives away what the sums need. */
#ifndef BACKWARD_REGISTERS
#define BACKWARD_REGISTERS       232
#define BACKWARD_OTHER_REGISTERS 40
#endif

#endif
